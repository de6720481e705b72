"""The verdict at the end: tables against topics, and how long each change of the group took."""

from __future__ import annotations

from itertools import pairwise

from rich.console import Console
from rich.table import Table

from .course import Course
from .figures import hand_overs, median_s


def summary(course: Course) -> str:
    """Say the result in one line."""
    rows = sum(verdict.rows for verdict in course.verdicts)
    records = sum(verdict.records for verdict in course.verdicts)
    lost = sum(verdict.lost for verdict in course.verdicts)
    twice = sum(verdict.twice for verdict in course.verdicts)
    return (
        f"{lost:,} lost, {twice:,} twice: {records:,} changes of {rows:,} rows; "
        f"a delta by timestamp has missed {course.missed_by_time:,}"
    )


def print_report(console: Console, title: str, course: Course) -> None:
    """Print the tables and explain how to read them."""
    console.print(f"\n{title}", style="bold", highlight=False)
    console.print(summary(course), highlight=False)
    ledger = Table()
    for heading in ("table", "rows", "records", "lost", "twice", "out of order", "rolled back"):
        ledger.add_column(heading, justify="left" if heading == "table" else "right")
    for verdict in course.verdicts:
        ledger.add_row(
            verdict.table,
            f"{verdict.rows:,}",
            f"{verdict.records:,}",
            *map(
                _judged,
                (verdict.lost, verdict.twice, verdict.out_of_order, verdict.never_committed),
            ),
        )
    console.print(ledger)
    changes = Table()
    changes.add_column("change")
    changes.add_column("tables moved", justify="right")
    changes.add_column("nobody committed, median", justify="right")
    moved = hand_overs(course.commits)
    times = [*course.marks.values(), course.stopping_at]
    for name, (since, until) in zip(course.marks, pairwise(times), strict=True):
        count = sum(since <= each.first_at < until for each in moved)
        took = median_s(moved, since, until)
        changes.add_row(name, str(count), "-" if took is None else f"{took:.2f} s")
    console.print(changes)
    console.print(
        f"{course.late:,} transactions of the shop committed after one that had begun later: what "
        "a delta by timestamp misses. Aborted transactions of instances: "
        f"{course.aborted:,}; readers of committed records do not see them.",
        style="dim",
    )


def _judged(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"
