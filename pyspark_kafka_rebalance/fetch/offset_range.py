"""A contiguous range of one partition's offsets; its class says why it is not frozen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(order=True, slots=True, unsafe_hash=True)
class OffsetRange:
    """The offsets ``start`` (inclusive) to ``end`` (exclusive) of one partition.

    A range counts offsets, not records: compaction and transaction markers leave gaps. Do not
    change one: it is a key in dictionaries. ``frozen`` would enforce that, but a batch of 10,000
    partitions makes 10,000 ranges, which would then take five times as long.
    """

    topic: str
    partition: int
    start: int
    end: int

    def __len__(self) -> int:
        return max(0, self.end - self.start)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"
