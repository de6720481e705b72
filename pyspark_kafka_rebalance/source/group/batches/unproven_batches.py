"""UnprovenBatches: what the unproven batches read. Pure.

There is more than one only with async progress tracking.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from kafka.structs import TopicPartition

from ....fetch.offset_range import OffsetRange

#: What a batch reads of the partitions' gaps.
CaughtUp: TypeAlias = Mapping[TopicPartition, Sequence[OffsetRange]]

NOTHING: CaughtUp = {}


class UnprovenBatches:
    """The unproven batches of one query, in this process.

    Attributes
    ----------
    number : int
        The number of the batch planned last; 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._ranges: dict[int, dict[TopicPartition, OffsetRange]] = {}  # by number, in order
        self._caught_up: dict[int, CaughtUp] = {}  # by number, of batches that read gaps
        # The ends of the ranges of the last proven batch that had any.
        self._last_read: dict[TopicPartition, int] = {}
        self._last_caught_up: frozenset[TopicPartition] = frozenset()  # likewise for gaps

    def add(
        self, ranges: Mapping[TopicPartition, OffsetRange], catch_up: CaughtUp = NOTHING
    ) -> None:
        """Record a planned batch that reads these: the live ranges, and parts of gaps."""
        self.number += 1
        if ranges or catch_up:
            self._ranges[self.number] = dict(ranges)
        if catch_up:
            self._caught_up[self.number] = dict(catch_up)

    def prove(self, last: int) -> list[tuple[Mapping[TopicPartition, OffsetRange], CaughtUp]]:
        """Prove this batch and all before it; returns the live ranges and parts of gaps of each."""
        proven: list[tuple[Mapping[TopicPartition, OffsetRange], CaughtUp]] = []
        for number in [number for number in self._ranges if number <= last]:
            ranges = self._ranges.pop(number)
            caught_up = self._caught_up.pop(number, NOTHING)
            self._last_read = {p: handed.end for p, handed in ranges.items()} or self._last_read
            self._last_caught_up = frozenset(caught_up) or self._last_caught_up
            proven.append((ranges, caught_up))
        return proven

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition whose log is gone: a later proof must not set its old end."""
        self._last_read.pop(partition, None)
        self._last_caught_up -= {partition}
        for number, ranges in self._ranges.items():
            ranges.pop(partition, None)
            if number in self._caught_up:
                kept = {p: read for p, read in self._caught_up[number].items() if p != partition}
                self._caught_up[number] = kept

    def have(self, partition: TopicPartition) -> bool:
        """Whether an unproven batch reads this partition."""
        return any(
            partition in ranges
            for batches in (self._ranges, self._caught_up)
            for ranges in batches.values()
        )

    def any(self) -> bool:
        """Whether there is an unproven batch."""
        return bool(self._ranges)

    def oldest(self) -> int | None:
        """The number of the oldest unproven batch; None if there is none."""
        return next(iter(self._ranges), None)

    def ranges(self, of: Container[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """The live ranges that they read of these partitions, merged into one for each."""
        found: dict[TopicPartition, OffsetRange] = {}
        for ranges in self._ranges.values():
            for partition, handed in ranges.items():
                before = found.get(partition)
                if before is not None and before.end == handed.start:
                    handed = replace(handed, start=before.start)
                if partition in of:
                    found[partition] = handed
        return found

    def caught_up(self) -> CaughtUp:
        """The parts of gaps that the batch planned last reads."""
        return self._caught_up.get(self.number, NOTHING)

    def with_caught_up(self) -> set[TopicPartition]:
        """Partitions whose gaps were read by them, or by the last proven batch with gaps."""
        return {*self._last_caught_up, *(p for read in self._caught_up.values() for p in read)}

    def read_to(self) -> dict[TopicPartition, int]:
        """Where their ranges end, and those of the last proven batch that had any."""
        ends = dict(self._last_read)
        for ranges in self._ranges.values():
            ends.update({p: handed.end for p, handed in ranges.items()})
        return ends
