"""Where ``--watch`` shows its reports: on a terminal, or in a pipe."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError
from .report import GroupReport
from .table import HEADINGS, NUMBERS, as_json, as_text, cells, summary

if TYPE_CHECKING:
    from rich.console import Console, Group

#: Shows the last report and, if a later one failed, the reason.
Show = Callable[[GroupReport, str], None]

#: A terminal of fewer columns shows only partitions and their numbers.
_NARROW = 80


class RichMissingError(KafkaRebalanceError):
    """A live table on a terminal needs the package rich."""


@contextmanager
def live_table() -> Iterator[Show]:
    """A table on a terminal, drawn over the previous one."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise RichMissingError(
            "--watch on a terminal needs the package rich (pip install rich); --watch | cat and "
            "--watch --json do not"
        ) from None
    console = Console()
    latest: tuple[GroupReport, str] | None = None

    def show(report: GroupReport, problem: str) -> None:
        nonlocal latest
        latest = report, problem
        live.update(_fitting(report, problem, console), refresh=True)

    with Live(console=console, auto_refresh=False) as live:
        try:
            yield show
        finally:  # the last table stays in full
            if latest is not None:
                live.update(_rendered(*latest, console.width))


@contextmanager
def lines(as_lines_of_json: bool) -> Iterator[Show]:
    """Reports one after the other: JSON, a line each, or tables separated by an empty line."""

    def show(report: GroupReport, problem: str) -> None:
        if problem:
            print(f"error: {problem}", file=sys.stderr, flush=True)
            return
        print(as_json(report) if as_lines_of_json else f"{as_text(report)}\n", flush=True)

    yield show


def _fitting(report: GroupReport, problem: str, console: Console) -> Group:
    """As many rows as the terminal has lines for, and how many are missing."""

    def lines_of(rows: int) -> int:
        return len(console.render_lines(_rendered(report, problem, console.width, rows), pad=False))

    some = range(min(len(report.rows), console.height) + 1)
    fitting = bisect_right(some, console.height, key=lines_of) - 1
    return _rendered(report, problem, console.width, max(0, fitting))


def _rendered(report: GroupReport, problem: str, width: int, most: int | None = None) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    shown = [
        (at, heading)
        for at, heading in enumerate(HEADINGS)
        if width >= _NARROW or heading in NUMBERS or heading == "partition"
    ]
    table = Table(box=None, pad_edge=False)
    for _, heading in shown:
        number = heading in NUMBERS
        # A column that may wrap is narrowed before one that may not.
        table.add_column(
            heading,
            justify="right" if number else "left",
            no_wrap=number,
            overflow="fold" if heading == "partition" else "ellipsis",
        )
    rows = report.rows[:most]
    for row in rows:
        # No markup: a client id can contain brackets.
        style = "red" if row.backlog.note else "yellow" if row.revoking else ""
        found = cells(report, row)
        table.add_row(*(Text(found[at]) for at, _ in shown), style=style)
    # The error is first: a terminal that is too small cuts the end.
    parts = [Text(f"error: {problem}", "red")] if problem else []
    parts.append(Text(summary(report), "bold"))
    missing = len(report.rows) - len(rows)
    more = [Text(f"rows that do not fit: {missing:,}", "dim")] if missing else []
    return Group(*parts, table, *more)
