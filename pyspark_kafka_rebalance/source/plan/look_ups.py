"""LookUps: where the records of each partition pass a timestamp, as far as brokers told. Pure.

A record counts as late as the latest one before it in its partition. So a partition's timestamps
never fall, whatever order its producers have written in, and one offset divides what lies at or
below a timestamp from what lies beyond. ListOffsets tells that offset, without reading data: the
first record whose timestamp is at least the one asked for.

All partitions are asked for the same timestamps, with every trigger, and there may be thousands.
So answers are kept by timestamp, in a column with all partitions, and nothing is done to them when
positions move on: an answer says where a record is, and holds wherever the position is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition

from ...consumer.record_time import RecordTime

#: Below every timestamp that is asked for.
BEFORE_ALL = -1

#: In the answer that there is no such record: the offset then says up to where there is none.
_NEVER = 2**63

#: What is first at a timestamp, and so much later, may be a transaction's marker, which has the
#: time of the commit where the records have older ones. Look-ups do not tell it from a record.
LEAP_MS = 60_000

_Column = dict[TopicPartition, RecordTime]


class LookUps:
    """Of one query."""

    def __init__(self) -> None:
        self._positions: Mapping[TopicPartition, int] = {}
        self._unread: Mapping[TopicPartition, int] = {}
        self._known: dict[TopicPartition, int] = {}  # positions, of what was unread once
        #: Each says: of a partition, the first record that is as late as the column's timestamp.
        self._columns: dict[int, _Column] = {}
        self._asked: list[int] = []  # the columns' timestamps, rising
        # Offsets of what may be a marker, with the lowest timestamp asked for; and of what is none.
        self._doubts: dict[TopicPartition, dict[int, int]] = {}
        self._records: dict[TopicPartition, set[int]] = {}

    def begin(
        self, positions: Mapping[TopicPartition, int], unread: Mapping[TopicPartition, int]
    ) -> bool:
        """A batch begins; whether it has partitions that those before did not have.

        Parameters
        ----------
        positions : Mapping[TopicPartition, int]
            Next offset to read, of all partitions. What was told of one that moved back is
            forgotten.
        unread : Mapping[TopicPartition, int]
            As for :meth:`order`.
        """
        known, self._positions = self._known, positions
        if len(known) > len(positions):
            self.forget(known.keys() - positions.keys())
        self.forget([p for p in unread if positions[p] < known.get(p, -1)])
        has_new = not unread.keys() <= known.keys()
        known.update({p: positions[p] for p in unread})
        self.order(unread)
        return has_new

    def order(self, unread: Mapping[TopicPartition, int]) -> None:
        """These partitions from now on: up to where there is something to read, exclusive."""
        self._unread = unread

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """All that was told of these."""
        for partition in list(partitions):
            for column in self._columns.values():
                column.pop(partition, None)
            self._known.pop(partition, None)
            self._doubts.pop(partition, None)
            self._records.pop(partition, None)

    def forget_below(self, timestamp: int) -> None:
        """Batches have come so far; of what was told below, the latest counts alone."""
        if passed := max(0, bisect_right(self._asked, timestamp) - 1):
            for asked in self._asked[:passed]:
                del self._columns[asked]
            del self._asked[:passed]

    def learn(self, timestamp: int, told: Mapping[TopicPartition, RecordTime | None]) -> None:
        """What was told: the first record that is as late as this, None if there is none."""
        column, unread = self._column(timestamp), self._unread
        leap = timestamp + LEAP_MS
        for p, found in told.items():
            end = unread[p]
            if found is None or found.offset >= end:
                column[p] = RecordTime(end, _NEVER)
                continue
            column[p] = found
            if found.timestamp > leap and found.offset not in self._records.get(p, ()):
                doubts = self._doubts.setdefault(p, {})
                doubts[found.offset] = min(timestamp, doubts.get(found.offset, timestamp))

    def ends_at(
        self, timestamp: int
    ) -> tuple[dict[TopicPartition, int], int | None, list[TopicPartition]]:
        """Up to where each partition is read that has nothing as late as this read.

        Returns
        -------
        ends : dict[TopicPartition, int]
            Exclusive; without those of which nobody has told.
        following : int or None
            The lowest timestamp that is left in one of them; None where nothing is left.
        unknown : list of TopicPartition
            Of which nobody has told.
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
                unknown.append(p)  # the log has grown since
            else:
                position = positions[p]
                ends[p] = at if at > position else position
                if late < following:
                    following = late
        return ends, None if following == _NEVER else following, unknown

    def without_any(self, timestamp: int) -> list[TopicPartition]:
        """Those that are known to have no record that is as late as this."""
        column = self._column(timestamp)
        return [
            p
            for p, end in self._unread.items()
            if (found := column.get(p)) is not None and found == (end, _NEVER)
        ]

    def doubted_at(self, timestamp: int) -> dict[TopicPartition, list[int]]:
        """Offsets of what may be no records, of what was told for this timestamp or a lower one."""
        found: dict[TopicPartition, list[int]] = {}
        for p in list(self._doubts):
            if p not in self._unread:
                continue
            position, used = self._positions[p], self._column(timestamp).get(p)
            # What lies before the position counts if the position's record is as late by it.
            doubts = {
                offset: asked
                for offset, asked in self._doubts[p].items()
                if offset >= position or (used is not None and offset == used.offset)
            }
            self._doubts[p] = doubts
            if not doubts:
                del self._doubts[p]
            if offsets := sorted(o for o, asked in doubts.items() if asked <= timestamp):
                found[p] = offsets
        return found

    def is_record(self, partition: TopicPartition, offset: int) -> None:
        """There is no doubt about this one."""
        self._doubts.get(partition, {}).pop(offset, None)
        known = self._records.get(partition, ())
        position = self._positions[partition]
        last_passed = max((at for at in known if at <= position), default=offset)
        self._records[partition] = {offset, *(at for at in known if at >= last_passed)}

    def _column(self, timestamp: int) -> _Column:
        """That of a timestamp, with what follows from those beside it."""
        column = self._columns.get(timestamp)
        if column is not None:
            return column
        at = bisect_right(self._asked, timestamp)
        column = {}
        if at:
            below = self._columns[self._asked[at - 1]]
            column.update((p, found) for p, found in below.items() if found[1] >= timestamp)
        if at < len(self._asked):
            # What is passed by now is the answer for all that is earlier, too.
            above, known = self._columns[self._asked[at]], self._known
            column.update(
                (p, found)
                for p, found in above.items()
                if found[0] <= known[p] and found[1] != _NEVER
            )
        self._asked.insert(at, timestamp)
        self._columns[timestamp] = column
        return column
