"""Where ``--watch`` shows its reports: on a terminal, or in a pipe."""

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

#: Shows a report and, if the latest look failed, the last report and the reason.
Show = Callable[[GroupReport, str], None]


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
    with Live(console=Console(), auto_refresh=False) as live:
        yield lambda report, problem: live.update(_rendered(report, problem), refresh=True)


@contextmanager
def lines(as_lines_of_json: bool) -> Iterator[Show]:
    """Reports one after the other: JSON, a line each, or tables separated by an empty line."""

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
        # No markup: a client id can contain brackets.
        style = "red" if row.backlog.note else "yellow" if row.revoking else ""
        table.add_row(*map(Text, cells(report, row)), style=style)
    above = Text(summary(report), "bold")
    return Group(above, table, Text(f"error: {problem}", "red")) if problem else Group(above, table)
