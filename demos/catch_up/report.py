"""The verdict at the end: the ledger's proof for each query, and the outage's cost."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .figures import OutageFigures
from .screen import COLOURS


def summary(produced: int, figures: Mapping[str, OutageFigures]) -> str:
    """Say the picture's result in one line."""
    verdict = f"{produced:,} records, {sum(f.missing for f in figures.values()):,} missing"
    ages = [f"{of.age_s:.1f} s {name}" for name, of in figures.items() if of.age_s is not None]
    if not ages:
        return verdict
    return f"{verdict}; the newest row's age while the backlog is read, median: {', '.join(ages)}"


def print_report(
    console: Console, title: str, produced: int, figures: Mapping[str, OutageFigures]
) -> None:
    """Print the table and explain how to read it."""
    console.print(f"\n{title}", style="bold", highlight=False)
    table = Table()
    table.add_column("")
    for name in figures:
        table.add_column(Text(name, f"bold {COLOURS[name]}"), justify="right", min_width=10)
    rows = {
        "records produced": [f"{produced:,}" for _ in figures],
        "delivered": [f"{of.delivered:,}" for of in figures.values()],
        "of them with catch_up = true": [f"{of.of_gaps:,}" for of in figures.values()],
        "missing": [_judged(of.missing) for of in figures.values()],
        "twice: in flight at the kill": [f"{of.in_flight:,}" for of in figures.values()],
        "twice: others": [_judged(of.repeated) for of in figures.values()],
        "first new row, after the restart": [
            _seconds(of.first_new_after_s) for of in figures.values()
        ],
        "backlog delivered, after the restart": [
            _seconds(of.backlog_read_after_s) for of in figures.values()
        ],
        "age of the newest row until then, median": [_seconds(of.age_s) for of in figures.values()],
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    console.print(table)
    console.print(
        "live: with parallelRebalance=live; ordered: without it, all else is the same. A new row: "
        "one that was produced after the restart. In flight: the batch that the kill interrupted; "
        "the restarted query runs it again.",
        style="dim",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _judged(count: int) -> str:
    return f"[bold red]{count:,}[/]" if count else "[green]0[/]"
