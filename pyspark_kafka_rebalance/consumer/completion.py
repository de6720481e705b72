"""Completion: which handed out records are processed, in whatever order that happens.

Asynchronous workers finish out of order; a committed position may only pass what is complete
(KIP-983, problem 4). Offsets are kept as ranges: memory grows with the gaps between what is
pending (out of order workers, compaction, transaction markers), not with the records.

Invariants:
 1. What is pending was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or ``next_offset`` when none is.
 3. What was never handed out (a forward seek, compaction) holds nothing up.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition


class PartitionCompletion:
    """The handed out records of one partition, from the first after its assignment."""

    def __init__(self) -> None:
        # Disjoint and not touching, in order: first offset, and the offset after the last.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._next: int | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after the highest that was handed out; None before the first."""
        return self._next

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
        self._next = after if self._next is None else max(self._next, after)

    def complete(self, offset: int) -> None:
        """The record at this offset is processed; again is fine.

        Raises
        ------
        ValueError
            It lies at or after ``next_offset``: nobody can have processed it.
        """
        if self._next is None or offset >= self._next:
            raise ValueError(f"offset {offset} was not handed out; the next will be {self._next}")
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

    def complete_below(self, offset: int) -> None:
        """Everything below this next offset is processed."""
        at = bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset

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
        ValueError
            One was not handed out; those before it count.
        """
        found = self._partitions.setdefault(partition, PartitionCompletion())
        before = found.position
        for offset in offsets:
            try:
                found.complete(offset)
            except ValueError as error:
                raise ValueError(f"{partition.topic}-{partition.partition}: {error}") from None
        after = found.position
        return after if after is not None and (before is None or after > before) else None

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything below these next offsets is processed."""
        for partition, offset in offsets.items():
            if partition in self._partitions:
                self._partitions[partition].complete_below(offset)

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.any_pending)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not owned any more; assigned again, they begin anew."""
        for partition in partitions:
            self._partitions.pop(partition, None)
