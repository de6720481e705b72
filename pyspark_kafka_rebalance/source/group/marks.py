"""Marks: how far each partition of a query has come. Pure.

    handed out    some batch's range ends here
    proven        Spark has committed that batch, and has logged where it ends
    acknowledged  the group has accepted the commit

Each is at or behind the one before. They outlive the ownership of a partition, which may come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, KeysView, Mapping

from kafka.structs import TopicPartition

from ...consumer.remaining import Remaining
from ...fetch.offset_range import OffsetRange


class Marks:
    """Those of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._handed_out: dict[TopicPartition, int] = {}
        self._proven: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        # What the group is owed as of that commit, where there are gaps.
        self._owed: dict[TopicPartition, Remaining] = {}
        self._unlogged = False  # a position was found that no offset has, or one is gone

    # -- what moves them --------------------------------------------------------------------------

    def start_at(
        self, partition: TopicPartition, committed: int | None, otherwise: int, unread: bool
    ) -> int:
        """Find where a newly assigned partition starts; parameters as ``Positioning``'s.

        Parameters
        ----------
        unread : bool
            Whether no batch that is not proven reads it.
        """
        known = max(-1 if committed is None else committed, self._handed_out.get(partition, -1))
        start = otherwise if known < 0 else known
        self._unlogged |= self._handed_out.get(partition) != start
        if committed is not None:
            self._acknowledged[partition] = committed
            if committed >= self._proven.get(partition, -1):
                self._proven[partition] = committed
        else:
            self._acknowledged.pop(partition, None)  # what was there has expired or was deleted
            if partition not in self._proven and unread:
                # Nobody has committed anything: without this, "latest" would be another offset
                # for the next owner, and what is produced in between would be lost.
                self._proven[partition] = start
        self._handed_out[partition] = start
        return start

    def begin_live(self, partition: TopicPartition, position: int) -> None:
        """Go on here: what lies below, and is owed, is a matter of its gaps."""
        self._unlogged |= self._handed_out.get(partition) != position
        self._handed_out[partition] = self._proven[partition] = position

    def restore(self, positions: Mapping[TopicPartition, int]) -> None:
        """These are proven by Spark's checkpoint."""
        for partition, position in positions.items():
            self._handed_out[partition] = max(position, self._handed_out.get(partition, -1))
        self.prove(positions.items())

    def resume(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """These were handed out by a process before this one."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = max(handed.end, self._handed_out.get(partition, -1))
        # Before the batch nothing is unread: what the group does not know is committed at once.
        self.prove((p, handed.start) for p, handed in ranges.items())

    def hand_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """A batch reads these."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = handed.end

    def prove(self, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """Everything below these is in batches that Spark has committed and logged."""
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
        """As :meth:`acknowledge`, with what the group knows that it is owed."""
        self.acknowledge({p: left.committed() for p, left in remaining.items()})
        for partition, left in remaining.items():
            if left.committed() != self._acknowledged[partition]:
                continue  # it has more by now
            if left.gaps:
                self._owed[partition] = left
            else:
                self._owed.pop(partition, None)

    def move_to(self, partition: TopicPartition, position: int) -> None:
        """Go on at another position, because what lay between is gone from Kafka."""
        self._handed_out[partition] = self._proven[partition] = position
        self._unlogged = True
        self._acknowledged[partition] = -1  # the group's offset must move as well

    def forget(self, partition: TopicPartition) -> None:
        """Of a log that is no more, or is read anew.

        Until an offset says so, a restart would go on in what gets its name.
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
        """Those of these of which the group lacks something that is proven.

        ``committed`` tells what may be committed of what is proven, if gaps below it may not be.
        """
        proven, acknowledged = self._proven, self._acknowledged
        # Nearly all are equal, and of thousands each is asked for in each trigger.
        ahead = [p for p in partitions if proven.get(p, -1) > acknowledged.get(p, -1)]
        if committed is None:
            return set(ahead)
        return {p for p in ahead if committed(p, proven[p]) > acknowledged.get(p, -1)}

    def handed_out(self, partition: TopicPartition) -> int | None:
        """How far the partition was handed out; None if this query has come to no position."""
        return self._handed_out.get(partition)

    def heard(self) -> dict[TopicPartition, int]:
        """The group's committed offsets, as far as they are known."""
        return dict(self._acknowledged)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The group's committed offset of the partition, as far as it is known."""
        return self._acknowledged.get(partition)

    def group_has(self, partition: TopicPartition) -> Remaining | None:
        """What the group is owed, as far as is known; None if nothing is."""
        acknowledged, owed = self._acknowledged.get(partition), self._owed.get(partition)
        if owed is not None and owed.committed() == acknowledged:
            return owed
        return None if acknowledged is None else Remaining(max(0, acknowledged))

    def with_gaps(self) -> KeysView[TopicPartition]:
        """Those of which the group was told of gaps."""
        return self._owed.keys()

    def unacknowledged(self, ends: Mapping[TopicPartition, int]) -> Iterable[TopicPartition]:
        """Those of which the group is not known to have come as far as this."""
        return [p for p, end in ends.items() if end > self._acknowledged.get(p, -1)]

    def unheard_of(self) -> list[TopicPartition]:
        """Partitions that this query knows, and whose committed offset it does not."""
        return [p for p in self._handed_out if p not in self._acknowledged]

    def known(self) -> dict[TopicPartition, int]:
        """How far each partition was handed out, or where it is to go on, in this run or before."""
        return dict(self._handed_out)

    def are_known(self, partition: TopicPartition) -> bool:
        """Whether this query has come to a position in the partition, in this run or before."""
        return partition in self._handed_out

    def positions(self) -> Mapping[TopicPartition, int]:
        """What is proven of every partition that was ever owned; not to be changed."""
        return self._proven

    def log_positions(self) -> Mapping[TopicPartition, int]:
        """As :meth:`positions`, which go into the offset that is being made."""
        self._unlogged = False
        return self._proven

    def are_unlogged(self) -> bool:
        """Whether the last offset does not have where partitions stand, or has some deleted."""
        return self._unlogged
