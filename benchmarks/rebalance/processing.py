"""Simulates an application's processing: a poll's records take a random time, in order. Pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from random import Random


class Processing:
    """Records being processed asynchronously, and the processed offset of each partition.

    Nothing is really processed: only its end time is computed, so that processing takes no core
    from a client. The records of a partition end in order, as commits require.

    Parameters
    ----------
    longest_s : float
        The records of one poll and partition take a uniformly random time up to this.
    random : Random
        The source of these times.
    """

    def __init__(self, longest_s: float, random: Random) -> None:
        self._longest_s = longest_s
        self._random = random
        # By partition: when processing ends, and the offset after the last record.
        self._under_way: dict[int, deque[tuple[float, int]]] = defaultdict(deque)
        self._processed: dict[int, int] = {}

    def begin(self, partition: int, next_offset: int, now: float) -> None:
        """Start processing the polled records below this offset."""
        ends = now + self._random.uniform(0, self._longest_s)
        before = self._under_way[partition]
        if before:
            ends = max(ends, before[-1][0])
        before.append((ends, next_offset))

    def processed(self, now: float) -> dict[int, int]:
        """The next offset of each partition with processed records."""
        for partition, under_way in self._under_way.items():
            while under_way and under_way[0][0] <= now:
                self._processed[partition] = under_way.popleft()[1]
        return dict(self._processed)

    def done_at(self, partitions: Collection[int]) -> float:
        """When the last record of these partitions will be processed; 0 if all are."""
        last = [self._under_way[p][-1][0] for p in partitions if self._under_way.get(p)]
        return max(last, default=0.0)

    def forget(self, partitions: Collection[int]) -> None:
        """Drop all records of these partitions, which now belong to another member."""
        for partition in partitions:
            self._under_way.pop(partition, None)
            self._processed.pop(partition, None)
