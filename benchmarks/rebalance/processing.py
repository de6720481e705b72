"""What an application does with its records: each poll's take a random time, in order; pure."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection
from random import Random


class Processing:
    """Records that are being processed, asynchronously, and how far each partition is.

    Nothing is really done: what takes part is when it ends, so that processing costs no client a
    core. The records of one partition end in their order, as commits need it.

    Parameters
    ----------
    longest_s : float
        The records of one poll and partition take a uniformly random time up to this.
    random : Random
        Where the times come from.
    """

    def __init__(self, longest_s: float, random: Random) -> None:
        self._longest_s = longest_s
        self._random = random
        # By partition: when it ends, and the offset after the last of its records.
        self._under_way: dict[int, deque[tuple[float, int]]] = defaultdict(deque)
        self._processed: dict[int, int] = {}

    def begin(self, partition: int, next_offset: int, now: float) -> None:
        """Records below this offset have been polled."""
        ends = now + self._random.uniform(0, self._longest_s)
        before = self._under_way[partition]
        if before:
            ends = max(ends, before[-1][0])
        before.append((ends, next_offset))

    def processed(self, now: float) -> dict[int, int]:
        """The next offset of each partition of which something is processed."""
        for partition, under_way in self._under_way.items():
            while under_way and under_way[0][0] <= now:
                self._processed[partition] = under_way.popleft()[1]
        return dict(self._processed)

    def done_at(self, partitions: Collection[int]) -> float:
        """When the last record of these is processed; 0 when all are."""
        last = [self._under_way[p][-1][0] for p in partitions if self._under_way.get(p)]
        return max(last, default=0.0)

    def forget(self, partitions: Collection[int]) -> None:
        """These are somebody else's: whatever is under way is dropped."""
        for partition in partitions:
            self._under_way.pop(partition, None)
            self._processed.pop(partition, None)
