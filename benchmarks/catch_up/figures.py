"""Figures and goals from the measured times. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

LIVE, ORDINARY, ORDERED, BUILT_IN = "live", "ordinary", "ordered", "Spark's built-in"

#: The goals.
FIRST_LIVE_GOAL_S = 1.0
RATE_GOAL = 0.8
P99_GOAL = 2.0
MEMORY_GOAL_MB = 300


class Goal(NamedTuple):
    """One line of the verdict."""

    what: str
    found: str
    goal: str
    holds: bool


def waits_of(waits_ms: Sequence[float]) -> dict[str, Any]:
    """The number of records, and the median and 99th percentile of their waits in ms."""
    if not waits_ms:
        return {"records": 0, "p50_ms": None, "p99_ms": None}
    ascending = sorted(waits_ms)

    def at(share: float) -> float:
        return round(ascending[min(len(ascending) - 1, int(share * len(ascending)))], 1)

    return {"records": len(ascending), "p50_ms": at(0.5), "p99_ms": at(0.99)}


def client_goals(figures: Sequence[dict[str, Any]]) -> list[Goal]:
    """The goals of the client's forms, from one run."""
    live = next((one for one in figures if one["form"] == LIVE), None)
    ordinary = next((one for one in figures if one["form"] == ORDINARY), None)
    found = [_ledger_goal(f"client, {one['form']}", one["audit"]) for one in figures]
    if live is None:
        return found
    first_s = live["first_live_s"]
    found.append(
        Goal(
            "client: assigned to first live record",
            f"{first_s:.2f} s",
            f"≤ {FIRST_LIVE_GOAL_S:g} s",
            first_s <= FIRST_LIVE_GOAL_S,
        )
    )
    if ordinary is not None:
        ratio = live["records_per_second"] / ordinary["records_per_second"]
        found.append(
            Goal(
                "client: catching up ÷ reading the same backlog ordinarily",
                f"{ratio:.2f}",
                f"≥ {RATE_GOAL}",
                ratio >= RATE_GOAL,
            )
        )
    before, during = live["before"]["p99_ms"], live["during"]["p99_ms"]
    if before and during:
        found.append(
            Goal(
                "client: live p99 while catching up ÷ before",
                f"{during / before:.1f} ({during:.0f} ÷ {before:.0f} ms)",
                f"≤ {P99_GOAL:g}",
                during <= P99_GOAL * before,
            )
        )
    return found


def query_goals(figures: Sequence[dict[str, Any]]) -> list[Goal]:
    """The goals of the Spark queries."""
    found = [_ledger_goal(f"query, {one['form']}", one["audit"]) for one in figures]
    for one in figures:
        if one["form"] == LIVE:
            # Whatever the form, the batch that the kill interrupted is rerun first.
            took_s = one["first_live_s"] - one["replay_s"]
            allowed_s = one["batch_s"] + FIRST_LIVE_GOAL_S
            found.append(
                Goal(
                    "query: first new trigger to first live row",
                    f"{took_s:.2f} s",
                    f"≤ a batch + {FIRST_LIVE_GOAL_S:g} s = {allowed_s:.2f} s",
                    took_s <= allowed_s,
                )
            )
    return found


def memory_goals(figures: Sequence[dict[str, Any]]) -> list[Goal]:
    """The goals of the process with many gaps."""
    return [
        Goal(
            "memory: the most of a client that catches up",
            f"{one['peak_mb']:.0f} MB",
            f"≤ {MEMORY_GOAL_MB} MB",
            one["peak_mb"] <= MEMORY_GOAL_MB,
        )
        for one in figures
    ]


def _ledger_goal(what: str, audit: dict[str, int]) -> Goal:
    return Goal(
        f"{what}: missing, twice",
        f"{audit['missing']}, {audit['repeated']} (and {audit['in_flight']:,} in flight)",
        "0, 0",
        audit["missing"] == audit["repeated"] == 0,
    )
