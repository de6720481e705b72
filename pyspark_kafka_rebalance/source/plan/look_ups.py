"""Where the records of each partition pass a timestamp, as far as brokers have reported. Pure.

A record is treated as at least as late as the latest one before it in its partition. So a
partition's timestamps never fall, even if its producers wrote out of order, and one offset
separates records up to a timestamp from later ones. ListOffsets returns that offset without reading
data: the first record whose timestamp is at least the requested one.

Every trigger requests the same timestamps in all partitions, and there may be thousands of these.
So answers are kept by timestamp, in a column with all partitions, and do not change when positions
advance: an answer says where a record is, and holds wherever the position is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from ...consumer.offsets.found_records import RecordTime
from .timelines import Rows

#: The timestamp in the answer that there is no such record; its offset says up to where there is
#: none.
_NEVER = 2**63

#: If the first record for a timestamp is this much later, it may be a transaction's marker, which
#: has the time of the commit, not of the older records. Look-ups cannot tell the two apart.
LEAP_MS = 60_000

_Column = dict[TopicPartition, RecordTime]


class LookUps:
    """Keeps the brokers' answers by timestamp, and knows which of them may be markers."""

    def __init__(self) -> None:
        self._positions: Mapping[TopicPartition, int] = {}
        self._unread: Mapping[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}  # positions where something was unread once
        #: By timestamp: the first record of each partition at or after that timestamp.
        self._columns: dict[int, _Column] = {}
        self._asked: list[int] = []  # the columns' timestamps, rising
        # Partitions where any answer may be a marker; in others, offsets that may be markers; and
        # offsets known to be records.
        self._suspects: set[TopicPartition] = set()
        self._leaps: dict[TopicPartition, set[int]] = {}
        self._records: dict[TopicPartition, set[int]] = {}

    def begin(
        self, positions: Mapping[TopicPartition, int], unread: Mapping[TopicPartition, int]
    ) -> bool:
        """Start a batch; return whether it has partitions that no earlier batch had.

        ``unread`` is as for :meth:`order`. If a position moved back, its answers are forgotten.
        """
        known, self._positions = self._known, positions
        if len(known) > len(positions):
            self.forget(known.keys() - positions.keys())
        self.forget([p for p in unread if positions[p] < known.get(p, -1)])
        if has_new := not unread.keys() <= known.keys():
            self._suspects |= unread.keys() - known.keys()
        known.update({p: positions[p] for p in unread})
        self.order(unread)
        return has_new

    def order(self, unread: Mapping[TopicPartition, int]) -> None:
        """Use these partitions from now on: up to where there is something to read, exclusive."""
        self._unread = unread

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget all answers for these partitions."""
        for partition in list(partitions):
            for column in self._columns.values():
                column.pop(partition, None)
            self._known.pop(partition, None)
            self._suspects.discard(partition)
            self._leaps.pop(partition, None)
            self._records.pop(partition, None)

    def forget_below(self, timestamp: int) -> None:
        """Forget answers below this timestamp, which batches have reached, except the latest."""
        if passed := max(0, bisect_right(self._asked, timestamp) - 1):
            for asked in self._asked[:passed]:
                del self._columns[asked]
            del self._asked[:passed]
            for p, offsets in list(self._leaps.items()):
                kept = {at.offset for c in self._columns.values() if (at := c.get(p)) is not None}
                offsets &= kept
                if not offsets:
                    del self._leaps[p]

    def learn(self, timestamp: int, told: Mapping[TopicPartition, RecordTime | None]) -> None:
        """Keep answers: the first record at or after this timestamp, None if there is none."""
        column, unread = self._column(timestamp), self._unread
        leap = timestamp + LEAP_MS
        for p, found in told.items():
            end = unread[p]
            if found is None or found.offset >= end:
                column[p] = RecordTime(end, _NEVER)
                continue
            column[p] = found
            if found.timestamp > leap and found.offset not in self._records.get(p, ()):
                self._leaps.setdefault(p, set()).add(found.offset)

    def ends_at(
        self, timestamp: int
    ) -> tuple[dict[TopicPartition, int], int | None, list[TopicPartition]]:
        """Return where each partition ends if nothing at or after this timestamp is read.

        Returns
        -------
        ends : dict[TopicPartition, int]
            Exclusive; without partitions that have no answer.
        following : int or None
            The lowest timestamp that is left in one of them; None if nothing is left.
        unknown : list of TopicPartition
            Partitions that have no answer.
        """
        column, positions = self._column(timestamp), self._positions
        ends: dict[TopicPartition, int] = {}
        unknown: list[TopicPartition] = []
        following = _NEVER
        for p, end in self._unread.items():
            found = column.get(p)
            if found is None:
                unknown.append(p)
                continue
            at, late = found
            if at >= end:
                ends[p] = end
            elif late == _NEVER:
                unknown.append(p)  # the log has grown in the meantime
            else:
                position = positions[p]
                ends[p] = at if at > position else position
                if late < following:
                    following = late
        return ends, None if following == _NEVER else following, unknown

    def unknown_at(self, timestamp: int) -> list[TopicPartition]:
        """Return the partitions that have no answer, as :meth:`ends_at` does."""
        column = self._column(timestamp)
        return [
            p
            for p, end in self._unread.items()
            if (found := column.get(p)) is None or (found[1] == _NEVER and found[0] < end)
        ]

    def without_any(self, timestamp: int) -> list[TopicPartition]:
        """Return the partitions known to have no record at or after this timestamp."""
        column = self._column(timestamp)
        return [
            p
            for p, end in self._unread.items()
            if (found := column.get(p)) is not None and found == (end, _NEVER)
        ]

    def suspect(self, partitions: Iterable[TopicPartition]) -> None:
        """Treat any answer for these partitions as a possible marker, as for new partitions."""
        self._suspects.update(partitions)

    def trust(self, partition: TopicPartition) -> None:
        """Note that a partition's records belong to no transactions."""
        self._suspects.discard(partition)

    def doubted_at(self, timestamp: int) -> dict[TopicPartition, RecordTime]:
        """Return the answers for this timestamp that may be markers."""
        suspects, leaps, unread = self._suspects, self._leaps, self._unread
        if not suspects and not leaps:
            return {}
        column = self._column(timestamp)
        found: dict[TopicPartition, RecordTime] = {}
        for p in suspects | leaps.keys():
            told = column.get(p)
            if told is None or told.offset >= unread.get(p, 0):
                continue
            doubted = p in suspects or told.offset in leaps[p]
            if doubted and told.offset not in self._records.get(p, ()):
                found[p] = told
        return found

    def is_sure_at(self, partition: TopicPartition, timestamp: int) -> bool:
        """Whether the answer for this timestamp certainly is a record."""
        told = self._column(timestamp).get(partition)
        return told is not None and told.offset in self._records.get(partition, ())

    def is_record(self, partition: TopicPartition, offset: int) -> None:
        """Note that there certainly is a record at this offset."""
        known = self._records.get(partition, ())
        position = self._positions[partition]
        last_passed = max((at for at in known if at <= position), default=offset)
        self._records[partition] = {offset, *(at for at in known if at >= last_passed)}

    def correct(self, partition: TopicPartition, offset: int, timestamp: int, rows: Rows) -> bool:
        """Correct the answers that take this offset for a record: it is a marker.

        The rows were read from there, or from the position on. Returns whether they give the answer
        that there must be for ``timestamp``.
        """
        end = self._unread[partition]
        for asked, column in self._columns.items():
            if (told := column.get(partition)) is None or told.offset != offset:
                continue
            late = (o for o, at in zip(rows.offsets, rows.timestamps, strict=True) if at >= asked)
            if (at := next(late, None)) is not None:
                column[partition] = RecordTime(at, rows.timestamps[rows.offsets.index(at)])
                self.is_record(partition, at)
            elif rows.end >= end:
                column[partition] = RecordTime(end, _NEVER)
            else:
                del column[partition]
        return partition in self._columns[timestamp]

    def _column(self, timestamp: int) -> _Column:
        """Return the column of a timestamp, with the answers that follow from its neighbours."""
        column = self._columns.get(timestamp)
        if column is not None:
            return column
        at = bisect_right(self._asked, timestamp)
        column = {}
        if at:
            below = self._columns[self._asked[at - 1]]
            column.update((p, found) for p, found in below.items() if found[1] >= timestamp)
        if at < len(self._asked):
            # A record at or before the position is also the answer for all earlier timestamps.
            above, known = self._columns[self._asked[at]], self._known
            column.update(
                (p, found)
                for p, found in above.items()
                if found[0] <= known[p] and found[1] != _NEVER
            )
        self._asked.insert(at, timestamp)
        self._columns[timestamp] = column
        return column
