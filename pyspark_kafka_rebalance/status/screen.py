"""Where reports go that come again and again: a terminal, or a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError
from .report import GroupReport
from .table import HEADINGS, NUMBERS, as_json, as_text, cells, summary

if TYPE_CHECKING:
    from rich.console import Group

#: Shows a report, the last one while a look fails, and why that failed.
Show = Callable[[GroupReport, str], None]


class RichMissingError(KafkaRebalanceError):
    """A live table on a terminal takes the package rich."""


@contextmanager
def live_table() -> Iterator[Show]:
    """A table on a terminal, drawn over the one before."""
    try:
        from rich.console import Console
        from rich.live import Live
    except ImportError:
        raise RichMissingError(
            "--watch on a terminal takes the package rich (pip install rich); "
            "--watch | cat and --watch --json do without"
        ) from None
    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda report, problem: live.update(_rendered(report, problem), refresh=True)


@contextmanager
def lines(as_lines_of_json: bool) -> Iterator[Show]:
    """One after the other: JSON, a line each, or tables with an empty line between them."""

    def show(report: GroupReport, problem: str) -> None:
        if problem:
            print(f"error: {problem}", file=sys.stderr, flush=True)
            return
        print(as_json(report) if as_lines_of_json else f"{as_text(report)}\n", flush=True)

    yield show


def _rendered(report: GroupReport, problem: str) -> Group:
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left")
    for row in report.rows:
        # No markup: a client id may have brackets.
        style = "red" if row.backlog.note else "yellow" if row.revoking else ""
        table.add_row(*map(Text, cells(report, row)), style=style)
    above = Text(summary(report), "bold")
    return Group(above, table, Text(f"error: {problem}", "red")) if problem else Group(above, table)
