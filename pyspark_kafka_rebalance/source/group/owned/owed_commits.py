"""OwedCommits: what a query has proven and the group has not acknowledged. Pure.

Invariants:
 1. Only what is proven is committed, only while owned, and only forward.
 2. For a partition with gaps below its live position, each commit carries everything that the group
    is owed. That can change while the offset stays the same, and a revoke waits for it as it waits
    for an offset.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....settings.values import LONG_MAX
from ..batches.unproven_batches import UnprovenBatches
from .gap_marks import GapMarks
from .marks import Marks
from .owned_partitions import OwnedPartitions


class OwedCommits:
    """The owed commits of one query, derived from the parts of its :class:`QueryAssignment`.

    It keeps the set of partitions that are behind: few out of thousands.
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
        self._behind: dict[TopicPartition, None] = {}  # owned, with proven parts unacknowledged

    # -- what changes it --------------------------------------------------------------------------

    def compare(self, partitions: Collection[TopicPartition]) -> None:
        """After a change of what is owned, proven or acknowledged: update which are behind."""
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
        """The partition is not owned any more."""
        self._behind.pop(partition, None)

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        self._marks.acknowledge(offsets)
        self.compare(offsets)

    def acknowledge_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`acknowledge`, with everything that the group is owed as it knows it."""
        self._marks.acknowledge_remaining(remaining)
        self.compare(remaining)

    # -- what there is to see ---------------------------------------------------------------------

    def is_open(self, partition: TopicPartition) -> bool:
        """Whether the partition is owned and the group lacks something proven of it."""
        return partition in self._behind

    def by_member(self) -> dict[int, dict[TopicPartition, int]]:
        """The offsets to commit by member: proven, not acknowledged, owned."""
        by_member: dict[int, dict[TopicPartition, int]] = {}
        owned, proven = self._partitions.all(), self._marks.positions()
        for partition in self._behind:
            own = owned[partition]
            if own.position is not None:
                offset = self._gaps.committed(partition, proven[partition])
                by_member.setdefault(own.member, {})[partition] = offset
        return by_member

    def remaining(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Remaining]:
        """What the group is owed of each of these: the parts that neither side has proven."""
        return {p: self._left(p) for p in partitions}

    def uncommitted(self) -> set[TopicPartition]:
        """The partitions of which the group may lack something that this query has read.

        This covers the last batch with ranges, the unproven batches, and the owned partitions. It
        leaves out what an earlier batch read of a partition that was lost since: the next owner has
        repeated that by now, and no later stop changes it.
        """
        owned = self._partitions.all()
        missing = set(self._marks.unacknowledged(self._batches.read_to()))
        caught_up = self._batches.with_caught_up()
        if caught_up or self._gaps.any():
            # With gaps, a committed offset does not show everything that was read.
            beside_gaps = caught_up | (missing & self._gaps.all_unproven().keys())
            missing -= beside_gaps
            missing |= {p for p in beside_gaps if self._batches.have(p) or self._owes_more(p)}
        # A partition that was never read only has its start to commit.
        return missing | {p for p in self._behind if owned[p].read}

    def _left(self, partition: TopicPartition) -> Remaining:
        proven = self._marks.positions()[partition]
        left = Remaining.of(self._gaps.unproven(partition), proven)
        known = self._marks.group_has(partition)
        return left if known is None else left.merge(known)

    def _owes_more(self, partition: TopicPartition) -> bool:
        """Whether the group still takes something proven as owed."""
        if partition not in self._marks.positions():
            return False
        known, left = self._marks.group_has(partition), self._left(partition)
        return known is None or left.between(0, LONG_MAX) != known.between(0, LONG_MAX)
