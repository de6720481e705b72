"""Rates: how many records of each source partition were committed lately; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

#: Over which a rate is taken.
WINDOW_S = 30.0


class Rates:
    """Commits of the last half minute, and when the last one was."""

    def __init__(self) -> None:
        self._commits: dict[int, deque[tuple[float, int]]] = {}
        self._totals: dict[int, int] = {}
        self._last: dict[int, float] = {}

    def committed(self, records: Mapping[int, int], now: float) -> None:
        """A transaction was committed with so many records of each source partition."""
        for p, number in records.items():
            commits = self._commits.setdefault(p, deque())
            commits.append((now, number))
            while commits and commits[0][0] < now - WINDOW_S:
                commits.popleft()
            self._totals[p] = self._totals.get(p, 0) + number
            self._last[p] = now

    def per_second(self, source_partition: int, now: float) -> float:
        """Records per second; since the first commit, if that is later than the window's begin."""
        commits = [c for c in self._commits.get(source_partition, ()) if c[0] >= now - WINDOW_S]
        if not commits:
            return 0.0
        # The first commit's records were sent before it.
        since = commits[0][0]
        number = sum(n for _, n in commits[1:])
        return number / (now - since) if now > since and len(commits) > 1 else 0.0

    def total(self, source_partition: int) -> int:
        """All records that this member has committed of it."""
        return self._totals.get(source_partition, 0)

    def age_s(self, source_partition: int, now: float) -> float | None:
        """Seconds since the last commit; None before the first."""
        last = self._last.get(source_partition)
        return None if last is None else now - last
