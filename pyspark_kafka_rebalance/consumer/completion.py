"""Completion: which handed out records are processed, in whatever order that happens.

Asynchronous workers finish out of order; a committed position may only pass what is complete
(KIP-983, problem 4). Offsets are kept as ranges: memory grows with the gaps between what is
pending (out of order workers, compaction, transaction markers), not with the records.

Invariants:
 1. What is pending was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or ``next_offset`` when none is.
 3. What was never handed out (a forward seek, compaction) holds nothing up.
 4. A call that is refused changes nothing.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from ..errors import PartitionsLostError


class PartitionCompletion:
    """The handed out records of one partition, from the first after its assignment."""

    def __init__(self) -> None:
        # Disjoint and not touching, in order: first offset, and the offset after the last.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lowest: int | None = None
        self._next: int | None = None
        self._singly = False  # whether records were completed one by one

    @property
    def next_offset(self) -> int | None:
        """The offset after the highest that was handed out; None before the first."""
        return self._next

    def reached(self, offset: int) -> bool:
        """Whether the offset lies between the lowest and the highest that were handed out.

        Those between that do not exist are not remembered, and count as handed out.
        """
        return (
            self._lowest is not None
            and self._next is not None
            and (self._lowest <= offset < self._next)
        )

    @property
    def position(self) -> int | None:
        """The offset to commit, exclusive (invariant 2); None before the first hand-out."""
        return self._starts[0] if self._starts else self._next

    @property
    def any_pending(self) -> bool:
        """Whether something that was handed out is not complete."""
        return bool(self._starts)

    def hand_out(self, offsets: Sequence[int]) -> None:
        """These offsets, ascending, are in processing now; also again, after a seek back."""
        if not offsets:
            return
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            self._add(offsets[0], offsets[-1] + 1)
        else:
            start = previous = offsets[0]
            for offset in offsets[1:]:
                if offset != previous + 1:
                    self._add(start, previous + 1)
                    start = offset
                previous = offset
            self._add(start, previous + 1)
        after = offsets[-1] + 1
        self._lowest = offsets[0] if self._lowest is None else min(self._lowest, offsets[0])
        self._next = after if self._next is None else max(self._next, after)

    def complete(self, offset: int) -> None:
        """The record at this offset is processed; again is fine."""
        self._singly = True
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._ends[at]:
            return
        start, end = self._starts[at], self._ends[at]
        if start == offset and end == offset + 1:
            del self._starts[at], self._ends[at]
        elif start == offset:
            self._starts[at] = offset + 1
        elif end == offset + 1:
            self._ends[at] = offset
        else:
            self._ends[at] = offset
            self._starts.insert(at + 1, offset + 1)
            self._ends.insert(at + 1, end)

    def complete_below(self, offset: int) -> int:
        """Everything below this next offset is processed.

        Returns
        -------
        int
            The position to commit: what was given, or more if workers have completed more.
        """
        at = bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset
        # Without workers no more than was asked for, although nothing may lie in between.
        return max(offset, self.position or 0) if self._singly else offset

    def _add(self, start: int, end: int) -> None:
        """Add a range, merged with what it touches."""
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


class Completion:
    """The handed out records of every owned partition."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionCompletion] = {}
        # The offset after the highest that was handed out under an assignment that is over.
        self._over: dict[TopicPartition, int] = {}

    def hand_out(self, partition: TopicPartition, offsets: Sequence[int]) -> None:
        """A poll returned the records at these offsets, ascending."""
        self._partitions.setdefault(partition, PartitionCompletion()).hand_out(offsets)

    def complete(self, partition: TopicPartition, offsets: Iterable[int]) -> int | None:
        """The records at these offsets are processed.

        Returns
        -------
        int or None
            The partition's position to commit if it advanced.

        Raises
        ------
        PartitionsLostError
            One was handed out before the partition was lost or revoked, and not again since it is
            assigned anew.
        ValueError
            One was not handed out: nobody can have processed it.
        """
        offsets = tuple(offsets)
        found = self._partitions.get(partition, PartitionCompletion())
        for offset in offsets:
            if not found.reached(offset):
                raise self._not_handed_out(partition, offset)
        before = found.position
        for offset in offsets:
            found.complete(offset)
        after = found.position
        return after if after != before else None

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Everything below these next offsets is processed; what to commit therefore."""
        return {
            partition: (
                self._partitions[partition].complete_below(offset)
                if partition in self._partitions
                else offset
            )
            for partition, offset in offsets.items()
        }

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.any_pending)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not owned any more; assigned again, they begin anew."""
        for partition in partitions:
            found = self._partitions.pop(partition, None)
            if found is not None and found.next_offset is not None:
                self._over[partition] = max(found.next_offset, self._over.get(partition, 0))

    def forget_all(self) -> None:
        """No partition is owned any more."""
        self.forget(list(self._partitions))

    def _not_handed_out(self, partition: TopicPartition, offset: int) -> Exception:
        name = f"{partition.topic}-{partition.partition}"
        if partition in self._over and offset < self._over[partition]:
            return PartitionsLostError(
                f"nothing committed: {name} was lost or revoked after offset {offset} was handed "
                "out, and is assigned anew"
            )
        return ValueError(f"{name}: offset {offset} was not handed out")
