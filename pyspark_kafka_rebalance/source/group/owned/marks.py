"""Marks: how far each partition of a query has been read. Pure.

    handed out    some batch's range ends here
    proven        Spark has committed that batch, and has logged where it ends
    acknowledged  the group has accepted the commit

Each is at or behind the one before. They are kept when a partition leaves, since it may come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....fetch.offset_range import OffsetRange


class Marks:
    """The marks of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._handed_out: dict[TopicPartition, int] = {}
        self._proven: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        # What the group is owed as of the acknowledged commit, if there are gaps.
        self._owed: dict[TopicPartition, Remaining] = {}
        self._unlogged = False  # some position is in no offset yet, or one was dropped since

    # -- what moves them --------------------------------------------------------------------------

    def start_at(
        self, partition: TopicPartition, committed: int | None, otherwise: int, unread: bool
    ) -> int:
        """Decide where a newly assigned partition starts; parameters as in ``Positioning``.

        Parameters
        ----------
        unread : bool
            Whether no unproven batch reads it.
        """
        known = max(-1 if committed is None else committed, self._handed_out.get(partition, -1))
        start = otherwise if known < 0 else known
        self._unlogged |= self._handed_out.get(partition) != start
        if committed is not None:
            self._acknowledged[partition] = committed
            if committed >= self._proven.get(partition, -1):
                self._proven[partition] = committed
        else:
            self._acknowledged.pop(partition, None)  # the group's offset has expired or was deleted
            if partition not in self._proven and unread:
                # Nobody has committed anything. Unless this start is committed, "latest" is another
                # offset for the next owner, and records produced in between are lost.
                self._proven[partition] = start
        self._handed_out[partition] = start
        return start

    def begin_live(self, partition: TopicPartition, position: int) -> None:
        """Continue at this live position; what is still owed below it is kept as gaps."""
        self._unlogged |= self._handed_out.get(partition) != position
        self._handed_out[partition] = self._proven[partition] = position

    def restore(self, positions: Mapping[TopicPartition, int]) -> None:
        """Spark's checkpoint proves these positions."""
        for partition, position in positions.items():
            self._handed_out[partition] = max(position, self._handed_out.get(partition, -1))
        self.prove(positions.items())

    def resume(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """A previous process handed out these ranges."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = max(handed.end, self._handed_out.get(partition, -1))
        # All before the batch was read: whatever of that the group lacks is committed at once.
        self.prove((p, handed.start) for p, handed in ranges.items())

    def hand_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """A batch reads these."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = handed.end

    def prove(self, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """Everything below these positions is in batches that Spark has committed and logged."""
        proven = self._proven
        for partition, position in positions:
            if position > proven.get(partition, -1):
                proven[partition] = position

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        acknowledged = self._acknowledged
        for partition, offset in offsets.items():
            if offset > acknowledged.get(partition, -1):
                acknowledged[partition] = offset

    def acknowledge_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`acknowledge`, with everything that the group is owed as it knows it."""
        self.acknowledge({p: left.committed() for p, left in remaining.items()})
        for partition, left in remaining.items():
            if left.committed() != self._acknowledged[partition]:
                continue  # the group has a later commit by now
            if left.gaps:
                self._owed[partition] = left
            else:
                self._owed.pop(partition, None)

    def move_to(self, partition: TopicPartition, position: int) -> None:
        """Continue at another position, because the records in between are gone from Kafka."""
        self._handed_out[partition] = self._proven[partition] = position
        self._unlogged = True
        self._acknowledged[partition] = -1  # the group's offset must move as well

    def forget(self, partition: TopicPartition) -> None:
        """Drop the marks of a log that is gone, or is read anew.

        Until an offset records that, a restart would go on in a new partition of the same name.
        """
        self._unlogged |= partition in self._proven
        for marks in (self._handed_out, self._proven, self._acknowledged):
            marks.pop(partition, None)
        self._owed.pop(partition, None)

    # -- what there is to see ---------------------------------------------------------------------

    def behind(
        self,
        partitions: Iterable[TopicPartition],
        committed: Callable[[TopicPartition, int], int] | None = None,
    ) -> set[TopicPartition]:
        """The given partitions of which the group lacks something that is proven.

        ``committed`` returns the offset to commit for a proven position with gaps below it.
        """
        proven, acknowledged = self._proven, self._acknowledged
        # Nearly all are equal, and every trigger checks thousands of partitions.
        ahead = [p for p in partitions if proven.get(p, -1) > acknowledged.get(p, -1)]
        if committed is None:
            return set(ahead)
        return {p for p in ahead if committed(p, proven[p]) > acknowledged.get(p, -1)}

    def handed_out(self, partition: TopicPartition) -> int | None:
        """How far the partition was handed out; None if this query has no position in it."""
        return self._handed_out.get(partition)

    def heard(self) -> dict[TopicPartition, int]:
        """The group's committed offsets, as far as they are known."""
        return dict(self._acknowledged)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The group's committed offset of the partition, as far as it is known."""
        return self._acknowledged.get(partition)

    def group_has(self, partition: TopicPartition) -> Remaining | None:
        """What the group is owed, as far as known; None if no committed offset is known."""
        acknowledged, owed = self._acknowledged.get(partition), self._owed.get(partition)
        if owed is not None and owed.committed() == acknowledged:
            return owed
        return None if acknowledged is None else Remaining(max(0, acknowledged))

    def with_gaps(self) -> KeysView[TopicPartition]:
        """The partitions whose last known commit has gaps."""
        return self._owed.keys()

    def unacknowledged(self, ends: Mapping[TopicPartition, int]) -> Iterable[TopicPartition]:
        """The given partitions whose committed offset is not known to have reached this end."""
        return [p for p, end in ends.items() if end > self._acknowledged.get(p, -1)]

    def unheard_of(self) -> list[TopicPartition]:
        """Partitions in which this query has a position, but whose committed offset is unknown."""
        return [p for p in self._handed_out if p not in self._acknowledged]

    def known(self) -> dict[TopicPartition, int]:
        """Where each partition goes on: as far as it was handed out, in this run or before."""
        return dict(self._handed_out)

    def are_known(self, partition: TopicPartition) -> bool:
        """Whether this query has a position in the partition, from this run or an earlier one."""
        return partition in self._handed_out

    def positions(self) -> Mapping[TopicPartition, int]:
        """The proven positions of all partitions that were ever owned; not to be changed."""
        return self._proven

    def log_positions(self) -> Mapping[TopicPartition, int]:
        """As :meth:`positions`, for writing them into the offset that is being made."""
        self._unlogged = False
        return self._proven

    def are_unlogged(self) -> bool:
        """Whether the last offset lacks current positions, or still has deleted partitions."""
        return self._unlogged
