"""Where the command shows a table: with rich on a terminal, as aligned text elsewhere."""

from __future__ import annotations

import sys
from dataclasses import replace

from .table import Table, as_text


def show(found: Table | str) -> None:
    """Print a table, or one line of JSON."""
    if isinstance(found, str):
        print(found, flush=True)
    elif not (sys.stdout.isatty() and found.rows and _show_on_terminal(found)):
        print(as_text(found), flush=True)


def _show_on_terminal(found: Table) -> bool:
    """Whether the table could be drawn: rich may be missing, and a narrow terminal would cut it."""
    try:
        from rich.console import Console
        from rich.table import Table as RichTable
        from rich.text import Text
    except ImportError:
        return False
    console = Console()
    if max(map(len, as_text(replace(found, summary=())).splitlines())) > console.width:
        return False
    table = RichTable(box=None, pad_edge=False)
    for heading in found.headings:
        number = heading in found.numbers
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    for row in found.rows:
        style = "red" if any(word in row[-1] for word in ("hanging", "overdue")) else ""
        # No markup: a transactional id can contain brackets.
        table.add_row(*map(Text, row), style=style)
    for line in found.summary:
        console.print(Text(line, "bold"))
    console.print(table)
    return True
