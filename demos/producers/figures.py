"""Figures from the commits that the instances report, by table and time. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from ..time_axis import BIN_S


@dataclass(frozen=True)
class Commit:
    """Rows of one table that an instance has committed."""

    at: float
    instance: str
    table: int
    rows: int


@dataclass(frozen=True)
class HandOver:
    """A table that moved from one instance to another.

    Attributes
    ----------
    last_at, first_at : float
        The times of the old owner's last commit and of the new owner's first.
    """

    table: int
    old: str
    new: str
    last_at: float
    first_at: float

    @property
    def took_s(self) -> float:
        """How long no instance committed."""
        return self.first_at - self.last_at


def hand_overs(commits: Sequence[Commit]) -> list[HandOver]:
    """The hand-overs, where a table's committing instance changes, in order of time."""
    found = []
    for table in sorted({commit.table for commit in commits}):
        ordered = sorted((c for c in commits if c.table == table), key=lambda c: c.at)
        found += [
            HandOver(table, old.instance, new.instance, old.at, new.at)
            for old, new in pairwise(ordered)
            if old.instance != new.instance
        ]
    return sorted(found, key=lambda each: each.first_at)


def median_s(found: Sequence[HandOver], since: float, until: float) -> float | None:
    """The median time that the hand-overs between two times took; None if there are none."""
    took = [each.took_s for each in found if since <= each.first_at < until]
    return median(took) if took else None


def rates(commits: Sequence[Commit], edges: Sequence[float]) -> dict[tuple[int, str], list[float]]:
    """The rows per second in each bin, by table and instance."""
    found: dict[tuple[int, str], list[float]] = {}
    for commit in commits:
        n = int((commit.at - edges[0]) / BIN_S)
        if commit.at >= edges[0] and n < len(edges) - 1:
            key = (commit.table, commit.instance)
            found.setdefault(key, [0.0] * (len(edges) - 1))[n] += commit.rows / BIN_S
    return found
