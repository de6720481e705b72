"""The demo's live view of its instances."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..live_view import LiveView
from ..rebalance.screen import COLOURS as READERS_COLOURS
from .course import InstanceStatus

#: The instances' colours, here and in the picture.
COLOURS = {**READERS_COLOURS, "D": "#a8475e"}


class Screen(LiveView[InstanceStatus]):
    """Shows the instances, one row each."""

    def line(self) -> str:
        """The instances that own tables, in one line."""
        lines, _ = self._lines()
        return " | ".join(
            f"{line.instance}: {', '.join(line.tables)}, {line.rows_per_second:,.0f} rows/s"
            for line in lines
            if line.tables
        )

    def table(self) -> Table:
        """One row per instance."""
        lines, written = self._lines()
        table = Table(
            title=f"{self._title}, {written:,.0f} rows/s written",
            title_justify="left",
            title_style="bold",
        )
        table.add_column()  # the instance; with a heading, 80 columns are not enough
        table.add_column("state", min_width=9)
        table.add_column("tables", min_width=27)
        for name, width in {"rows/s": 6, "committed": 9, "aborted": 7}.items():
            table.add_column(name, justify="right", min_width=width)
        for line in lines:
            table.add_row(
                Text(line.instance, f"bold {COLOURS[line.instance]}"),
                line.state,
                ", ".join(line.tables),
                f"{line.rows_per_second:,.0f}",
                f"{line.committed:,}",
                f"{line.aborted:,}",
            )
        return table
