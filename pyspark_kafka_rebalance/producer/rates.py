"""Rates: how many records of each source partition were committed recently; pure.

One thread at a time adds commits; any thread may read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

#: The window over which a rate is taken.
WINDOW_S = 30.0


class Rates:
    """The commits of the last half minute and the one before, the totals, the last times."""

    def __init__(self) -> None:
        self._commits: dict[int, deque[tuple[float, int]]] = {}
        self._totals: dict[int, int] = {}
        self._last: dict[int, float] = {}

    def committed(self, records: Mapping[int, int], now: float) -> None:
        """Note a committed transaction, with its number of records of each source partition."""
        for p, number in records.items():
            commits = self._commits.setdefault(p, deque())
            commits.append((now, number))
            while len(commits) > 1 and commits[1][0] < now - WINDOW_S:
                commits.popleft()
            self._totals[p] = self._totals.get(p, 0) + number
            self._last[p] = now

    def per_second(self, source_partition: int, now: float) -> float:
        """Return records per second in the window, or since the first commit if that is later.

        With only one commit in the window, return its records per second since the one before.
        """
        found = tuple(self._commits.get(source_partition, ()))  # copied: it may grow meanwhile
        within = [c for c in found if c[0] >= now - WINDOW_S]
        # The first commit's records were sent before it.
        commits = within if len(within) != 1 else found[-2:]
        if len(commits) < 2 or now <= commits[0][0]:
            return 0.0
        return sum(n for _, n in commits[1:]) / (now - commits[0][0])

    def total(self, source_partition: int) -> int:
        """Return how many of its records this member has committed in all."""
        return self._totals.get(source_partition, 0)

    def totals(self) -> dict[int, int]:
        """Return how many records this member has committed in all, by source partition."""
        return dict(self._totals)

    def age_s(self, source_partition: int, now: float) -> float | None:
        """Return the seconds since the last commit; None before the first."""
        last = self._last.get(source_partition)
        return None if last is None else now - last
