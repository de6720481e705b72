"""OffsetRange: a contiguous piece of one partition."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class OffsetRange:
    """The offsets ``start`` (inclusive) to ``end`` (exclusive) of one partition.

    A range counts offsets, not records: compaction and transaction markers leave gaps.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"
