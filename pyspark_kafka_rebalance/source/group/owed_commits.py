"""OwedCommits: what is proven of a query's partitions, and the group has not acknowledged. Pure.

Invariants:
 1. Only what is proven is committed, only while owned, and only forward.
 2. Of a partition with gaps below its live position the group is told as a whole what it is owed,
    which may change while the offset stays: a revoke waits for that as for an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from ...consumer.remaining import Remaining
from ...settings.values import LONG_MAX
from .gap_marks import GapMarks
from .marks import Marks
from .owned_partitions import OwnedPartitions
from .unproven_batches import UnprovenBatches


class OwedCommits:
    """Of one query; tells what follows from the parts of its :class:`QueryAssignment`.

    It keeps which partitions are behind: of thousands, few are.
    """

    def __init__(
        self,
        partitions: OwnedPartitions,
        marks: Marks,
        gaps: GapMarks,
        batches: UnprovenBatches,
    ) -> None:
        self._partitions = partitions
        self._marks = marks
        self._gaps = gaps
        self._batches = batches
        self._behind: dict[TopicPartition, None] = {}  # owned, proven, and not acknowledged

    # -- what changes it --------------------------------------------------------------------------

    def compare(self, partitions: Collection[TopicPartition]) -> None:
        """After a change of what is owned, proven or acknowledged."""
        owned, has_gaps = self._partitions.all(), self._gaps.any()
        behind = self._marks.behind(partitions, self._gaps.committed if has_gaps else None)
        if has_gaps or self._marks.with_gaps():
            beside_gaps = self._gaps.all_unproven().keys() | self._marks.with_gaps()
            behind |= {p for p in partitions if p in beside_gaps and self._owes_more(p)}
        for partition in partitions:
            if partition in behind and partition in owned:
                self._behind[partition] = None
            else:
                self._behind.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """Not owned any more."""
        self._behind.pop(partition, None)

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        self._marks.acknowledge(offsets)
        self.compare(offsets)

    def acknowledge_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`acknowledge`, with what the group knows that it is owed."""
        self._marks.acknowledge_remaining(remaining)
        self.compare(remaining)

    # -- what there is to see ---------------------------------------------------------------------

    def is_open(self, partition: TopicPartition) -> bool:
        """Whether the group lacks something that is proven of an owned partition."""
        return partition in self._behind

    def by_member(self) -> dict[int, dict[TopicPartition, int]]:
        """By member, the offsets to commit: proven, not acknowledged, owned."""
        by_member: dict[int, dict[TopicPartition, int]] = {}
        owned, proven = self._partitions.all(), self._marks.positions()
        for partition in self._behind:
            own = owned[partition]
            if own.position is not None:
                offset = self._gaps.committed(partition, proven[partition])
                by_member.setdefault(own.member, {})[partition] = offset
        return by_member

    def remaining(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Remaining]:
        """What the group is owed of each of these: what neither it nor this query has proven."""
        return {p: self._left(p) for p in partitions}

    def uncommitted(self) -> set[TopicPartition]:
        """Of which partitions the group is not known to have what this query has read.

        Counted are the last batch with ranges, the batches that are not proven, and what is owned.
        What an earlier batch read of a partition that was lost since is not: its next owner has
        repeated that by now, and no later stop changes it.
        """
        owned = self._partitions.all()
        missing = set(self._marks.unacknowledged(self._batches.read_to()))
        caught_up = self._batches.with_caught_up()
        if caught_up or self._gaps.any():
            # There, an offset tells less than what was read.
            beside_gaps = caught_up | (missing & self._gaps.all_unproven().keys())
            missing -= beside_gaps
            missing |= {p for p in beside_gaps if self._batches.have(p) or self._owes_more(p)}
        # Of what was never read, only the start is to be committed.
        return missing | {p for p in self._behind if owned[p].read}

    def _left(self, partition: TopicPartition) -> Remaining:
        proven = self._marks.positions()[partition]
        left = Remaining.of(self._gaps.unproven(partition), proven)
        known = self._marks.group_has(partition)
        return left if known is None else left.merge(known)

    def _owes_more(self, partition: TopicPartition) -> bool:
        """Whether the group believes that it is owed something that is proven."""
        if partition not in self._marks.positions():
            return False
        known, left = self._marks.group_has(partition), self._left(partition)
        return known is None or left.between(0, LONG_MAX) != known.between(0, LONG_MAX)
