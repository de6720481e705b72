"""Whether the goals are met, over one or more runs. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median

from .judge import Verdict, longest
from .peers import HEARTBEAT_INTERVAL_MS

#: The goals for a client without Spark.
RATIO_GOAL = 2.0
PEERS_GOAL = 1 / 15
#: Heartbeat intervals from the last drained partition to the new owner's first record, with the
#: classic protocol.
INTERVALS_GOAL = 1.3


@dataclass(frozen=True)
class Overall:
    """One peer over several runs.

    Attributes
    ----------
    before_s, during_s : float or None
        The median of the runs' longest silences, as the longest of one run depends on whatever else
        the machine does.
    drained_to_first_s : float or None
        The longest of all runs.
    duplicates, holes : int
        The sum over all runs.
    """

    peer: str
    drain: bool
    ours: bool
    classic: bool
    before_s: float | None
    during_s: float | None
    drained_to_first_s: float | None
    duplicates: int
    holes: int


@dataclass(frozen=True)
class Goal:
    """One goal and what was measured."""

    what: str
    measured: str
    met: bool


def over_runs(runs: Iterable[Iterable[Verdict]]) -> list[Overall]:
    """Combine all runs of each peer, with and without draining."""
    found: dict[tuple[str, bool], list[Verdict]] = {}
    for run in runs:
        for verdict in run:
            found.setdefault((verdict.peer, verdict.drain), []).append(verdict)
    return [
        Overall(
            peer=peer,
            drain=drain,
            ours=of[0].ours,
            classic=of[0].classic,
            before_s=_median(verdict.before_s for verdict in of),
            during_s=_median(verdict.during_s for verdict in of),
            drained_to_first_s=longest(verdict.drained_to_first_s for verdict in of),
            duplicates=sum(verdict.duplicates for verdict in of),
            holes=sum(verdict.holes for verdict in of),
        )
        for (peer, drain), of in found.items()
    ]


def goals(runs: Iterable[Iterable[Verdict]]) -> list[Goal]:
    """The goals of our clients, also compared with the peers of the same runs."""
    overall = over_runs(runs)
    draining = {o.peer: o.during_s for o in overall if o.drain and not o.ours and o.during_s}
    found = []
    for ours in (one for one in overall if one.ours):
        found.append(_against_itself(ours))
        if draining:
            found.append(_against_peers(ours, draining))
        found.append(
            Goal(
                f"{ours.peer}: no duplicates, no holes",
                f"{ours.duplicates:,} and {ours.holes:,}",
                ours.duplicates == ours.holes == 0,
            )
        )
        if ours.classic:
            found.append(_in_heartbeats(ours))
    return found


def _against_itself(ours: Overall) -> Goal:
    before, during = ours.before_s, ours.during_s
    ratio = during / before if before and during is not None else None
    return Goal(
        f"{ours.peer}: silence during ÷ before ≤ {RATIO_GOAL:g}",
        "-" if ratio is None else f"{ratio:.2f}",
        ratio is not None and ratio <= RATIO_GOAL,
    )


def _against_peers(ours: Overall, draining: Mapping[str, float]) -> Goal:
    best = min(draining, key=lambda peer: draining[peer])
    share = None if ours.during_s is None else ours.during_s / draining[best]
    return Goal(
        f"{ours.peer}: silence ≤ 1/{1 / PEERS_GOAL:.0f} of every draining peer's",
        "-" if not share else f"1/{1 / share:.1f} of {best}'s",
        share is not None and share <= PEERS_GOAL,
    )


def _in_heartbeats(ours: Overall) -> Goal:
    seconds = ours.drained_to_first_s
    intervals = None if seconds is None else seconds * 1000 / HEARTBEAT_INTERVAL_MS
    return Goal(
        f"{ours.peer}: last drained → first record ≤ {INTERVALS_GOAL} heartbeat intervals",
        "-" if intervals is None else f"{intervals:.2f}",
        intervals is not None and intervals <= INTERVALS_GOAL,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
