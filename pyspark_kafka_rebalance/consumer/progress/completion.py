"""Completion: which handed out records of the owned partitions are processed.

One ``Partition`` for each assigned partition, and one ``Former`` for its assignments that ended. A
partition of which nothing is known yet has neither.

Invariants:
 1. A call that is refused changes nothing.
 2. If polls return an offset below their position without a seek, the records there are new (the
    log was truncated or its topic recreated). The old ones are forgotten.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from kafka.structs import OffsetAndMetadata, TopicPartition

from ..offsets.commit_metadata import Remaining
from ..offsets.leader_epochs import UNKNOWN
from ..offsets.offset_set import Gap
from .partition import Former, Partition, PartitionCompletion


class Completion:
    """Maps each partition to its present assignment and to its former ones."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, Partition] = {}
        self._formers: dict[TopicPartition, Former] = {}

    def get(self, partition: TopicPartition) -> Partition | None:
        """The partition's assignment; None if nothing is known of it yet."""
        return self._partitions.get(partition)

    def partition(self, partition: TopicPartition) -> Partition:
        """The partition's assignment; starts one if nothing is known of it yet."""
        found = self._partitions.get(partition)
        if found is None:
            former = self._formers.setdefault(partition, Former(partition))
            found = self._partitions[partition] = Partition(former)
        return found

    def items(self) -> list[tuple[TopicPartition, Partition]]:
        """The partitions of which anything is known in the present assignment."""
        return list(self._partitions.items())

    def of(self, partition: TopicPartition) -> PartitionCompletion | None:
        """The partition's processed records; None if polls returned nothing in this assignment."""
        found = self._partitions.get(partition)
        return found.completion if found is not None and found.completion.begun else None

    def position(self, partition: TopicPartition, claims: Sequence[Gap] = ()) -> int | None:
        """The offset to commit; see ``Partition.position``."""
        found = self._partitions.get(partition)
        return None if found is None else found.position(claims)

    def remaining(
        self, partition: TopicPartition, offset: int, claims: Sequence[Gap] = ()
    ) -> tuple[Remaining, int]:
        """The unprocessed offsets when this offset is committed, and the highest leader epoch."""
        found = self.still_committed(partition)
        return (Remaining(offset), UNKNOWN) if found is None else found.remaining(offset, claims)

    def still_committed(self, partition: TopicPartition) -> Partition | None:
        """The assignment that the partition's commits belong to; None if polls returned nothing.

        While the last commit of a completed revoke is unanswered, that is the previous one.
        """
        found = self._partitions.get(partition)
        if found is not None and found.completion.begun:
            return found
        leaving = self._leaving(partition)
        if leaving is None or leaving.is_sought or not leaving.completion.begun:
            return None
        return leaving

    def bound(self, partition: TopicPartition) -> str | None:
        """The binding of the partition's gaps, set when its first records came; None before."""
        found = self._partitions.get(partition) or self._leaving(partition)
        return None if found is None else found.bound

    def _leaving(self, partition: TopicPartition) -> Partition | None:
        former = self._formers.get(partition)
        return None if former is None else former.leaving

    def complete(self, partition: TopicPartition, offsets: Iterable[int]) -> int | None:
        """The records at these offsets are processed.

        Returns the partition's position to commit if it advanced; or, if it moved back, once, with
        the first of the records that were handed out again. Raises PartitionsLostError if a record
        was handed out only before the partition was lost, revoked or truncated. Raises ValueError
        if one was never handed out.
        """
        found = self._partitions.get(partition)
        if found is not None:
            return found.complete(tuple(offsets))
        former = self._formers.get(partition) or Former(partition)
        for offset in offsets:
            raise former.why_not(offset)
        return None

    def refuse_truncated(
        self,
        offsets: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int | None] = MappingProxyType({}),
    ) -> None:
        """Raise PartitionsLostError if next offsets belong to truncated or lost records.

        The position of polls and a sought offset are accepted, even if an earlier assignment
        reached them. But while a set-aside backlog is unread, workers of an earlier assignment may
        report the position of polls too, so it is not accepted. The offsets below a sought one were
        not handed out.
        """
        for partition, offset in offsets.items():
            position, found = positions.get(partition), self._partitions.get(partition)
            if found is not None:
                found.refuse_truncated(offset, position)
            elif offset != position and (former := self._formers.get(partition)) is not None:
                former.refuse(offset, 0)

    def refused(self, partition: TopicPartition, offset: int) -> None:
        """Note that a worker's next offset is refused: the partition is lost, or not assigned."""
        if (former := self._formers.get(partition)) is not None:
            former.refused(offset, is_over=self.of(partition) is None)

    def heard(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group is at these next offsets, by any member's commit."""
        for partition, offset in offsets.items():
            if (former := self._formers.get(partition)) is not None:
                former.hear([Gap(0, offset)])

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Everything below these next offsets is processed; returns the offsets to commit."""
        reached = {}
        for partition, offset in offsets.items():
            found = self._partitions.get(partition)
            position = offset if found is None else found.complete_below(offset)
            if position is not None:
                reached[partition] = position
        return reached

    # -- leader epochs (KIP-320) ------------------------------------------------------------------

    def epoch_before(self, partition: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 where it is unknown."""
        found = self._partitions.get(partition)
        return UNKNOWN if found is None else found.epochs.of(next_offset)

    def entries(
        self, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Turn these next offsets into commit entries, each with that leader epoch."""
        before = self.epoch_before
        return {p: OffsetAndMetadata(at, "", before(p, at)) for p, at in offsets.items()}

    # -- backlogs set aside (KIP-333) -------------------------------------------------------------

    def unread(self, partition: TopicPartition) -> Sequence[Gap]:
        """The partition's gaps that are not handed out yet; see ``Partition.unread``."""
        found = self._partitions.get(partition)
        return () if found is None else found.unread()

    def catching_up(self, partition: TopicPartition) -> PartitionCompletion | None:
        """The partition's processed records; None once all below its live part are processed."""
        found = self._partitions.get(partition)
        return found.completion if found is not None and found.completion.catches_up else None

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.completion.pending)

    # -- an assignment ends -----------------------------------------------------------------------

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """As ``forget``, but :meth:`remaining` works until the last commit is answered."""
        for partition in partitions:
            found = self._partitions.get(partition)
            if found is not None:
                found.leave()  # first: the I/O loop reads the topic without the lock
                del self._partitions[partition]

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are no longer owned; another assignment of them starts from nothing."""
        for partition in partitions:
            found = self._partitions.pop(partition, None)
            if found is not None:
                found.end()
            elif (former := self._formers.get(partition)) is not None:
                former.leaving = None

    def forget_all(self) -> None:
        """No partition is owned any longer."""
        self.forget(self._formers)

    def start_over(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget the hand-outs of these partitions, but not the topic that they belong to."""
        for partition in partitions:
            found = self._partitions.get(partition)
            if found is not None:
                found.end()
                self._partitions[partition] = found.emptied()
            elif (leaving := self._leaving(partition)) is not None:
                leaving.former.leaving = leaving.emptied()

    def start_all_over(self) -> None:
        """Forget the hand-outs of all partitions."""
        self.start_over(self._formers)
