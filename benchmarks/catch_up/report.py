"""The tables of the benchmark, and whether it reaches its goals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .figures import Goal, client_goals, memory_goals, query_goals


def print_report(
    console: Console,
    clients: Sequence[dict[str, Any]],
    queries: Sequence[dict[str, Any]],
    memory: Sequence[dict[str, Any]],
) -> list[Goal]:
    """Print the tables of the measurements, then the goals; return the goals."""
    for protocol in dict.fromkeys(one["protocol"] for one in clients):
        console.print(client_table([one for one in clients if one["protocol"] == protocol]))
    if queries:
        console.print(query_table(queries))
    if memory:
        console.print(memory_table(memory))
    goals: list[Goal] = []
    for protocol in dict.fromkeys(one["protocol"] for one in clients):
        goals += client_goals([one for one in clients if one["protocol"] == protocol])
    goals += query_goals(queries) + memory_goals(memory)
    console.print(goal_table(goals))
    return goals


def client_table(figures: Sequence[dict[str, Any]]) -> Table:
    title = (
        f"A client takes over {figures[0]['backlog']:,} records, {figures[0]['protocol']} protocol"
    )
    columns = (
        "first live",
        "caught up",
        "records/s",
        "÷ ordinary",
        "per CPU s",
    )
    made = _table(title, ("form",), columns)
    for column in ("before", "during", "after"):
        made.add_column(f"live ms p50 / p99, {column}", justify="right")
    ordinary = next((one for one in figures if one["form"] == "ordinary"), None)
    for one in figures:
        ratio = one["records_per_second"] / ordinary["records_per_second"] if ordinary else None
        made.add_row(
            one["form"],
            f"{one['first_live_s']:.2f} s",
            f"{one['caught_up_s']:.1f} s",
            f"{one['records_per_second']:,}",
            "" if ratio is None else f"{ratio:.2f}",
            f"{one['records_per_cpu_second']:,}",
            *(_waits(one[when]) for when in ("before", "during", "after")),
        )
    return made


def query_table(figures: Sequence[dict[str, Any]]) -> Table:
    title = f"A Spark query starts again with {figures[0]['backlog']:,} records"
    columns = ("first live row", "its batch", "replay", "caught up", "records/s", "batches")
    made = _table(title, ("query",), columns)
    for one in figures:
        made.add_row(
            one["form"],
            f"{one['first_live_s']:.2f} s",
            f"{one['batch_s']:.2f} s",
            f"{one['replay_s']:.2f} s",
            f"{one['caught_up_s']:.1f} s",
            f"{one['records_per_second']:,}",
            str(one["batches"]),
        )
    return made


def memory_table(figures: Sequence[dict[str, Any]]) -> Table:
    title = f"Memory of a client that catches up with {figures[0]['partitions']} partitions"
    columns = ("backlog", "read of it", "watched", "most, first half", "most, second half")
    made = _table(title, (), columns)
    for one in figures:
        made.add_row(
            f"{one['backlog']:,}",
            f"{one['read']:,}",
            f"{one['watched_s']:.0f} s",
            f"{one['first_half_mb']:.0f} MB",
            f"{one['second_half_mb']:.0f} MB",
        )
    return made


def goal_table(goals: Sequence[Goal]) -> Table:
    made = _table("Goals", ("what",), ("found", "goal"))
    made.add_column("")
    for goal in goals:
        verdict = "[green]holds[/]" if goal.holds else "[red]missed[/]"
        made.add_row(goal.what, goal.found, goal.goal, verdict)
    return made


def _table(title: str, names: Sequence[str], figures: Sequence[str]) -> Table:
    made = Table(title=title, box=SIMPLE_HEAD)
    for name in names:
        made.add_column(name, no_wrap=True)
    for name in figures:
        made.add_column(name, justify="right")
    return made


def _waits(waits: dict[str, Any]) -> str:
    if not waits["records"]:
        return "-"
    return f"{waits['p50_ms']:,.0f} / {waits['p99_ms']:,.0f}"
