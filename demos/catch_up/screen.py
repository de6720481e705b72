"""The demo's live view of its two queries."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from ..live_view import LiveView
from ..rebalance.screen import COLOURS as READERS_COLOURS
from .course import LIVE, ORDERED
from .status import QueryStatus

#: The queries' colours here and in the picture, and their labels in the picture.
COLOURS = {LIVE: READERS_COLOURS["A"], ORDERED: READERS_COLOURS["B"]}
LABELS = {LIVE: "parallelRebalance=live", ORDERED: "ordered, the default"}

#: The numeric columns and their widths; the table fits in 80 columns.
_NUMBERS = {
    "newest\nrow's age": 9,
    "rows/s": 6,
    "not\ndelivered": 9,
    "gaps\nleft": 4,
    "offsets\nin gaps": 8,
}

#: The width of the bar for the largest backlog so far, and of a terminal that shows bars.
_BAR, _WIDE = 24, 104


class Screen(LiveView[QueryStatus]):
    """Shows both queries, one row each."""

    _largest = 1  #: the largest backlog so far

    def line(self) -> str:
        """The queries that have delivered rows, in one line."""
        lines, _ = self._lines()
        return " | ".join(_plain(line) for line in lines if line.age_s is not None)

    def table(self) -> Table:
        """One row per query."""
        lines, produced = self._lines()
        self._largest = max([self._largest, *(line.backlog for line in lines)])
        table = Table(
            title=f"{self._title}, {produced:,.0f} records/s produced",
            title_justify="left",
            title_style="bold",
        )
        table.add_column("query")
        table.add_column("state", min_width=8)
        for name, width in _NUMBERS.items():
            table.add_column(name, justify="right", min_width=width)
        has_bars = self._console.width >= _WIDE
        if has_bars:
            table.add_column("not delivered", min_width=_BAR)
        for line in lines:
            colour = COLOURS[line.query]
            bar = Text("█" * round(_BAR * line.backlog / self._largest), colour)
            table.add_row(
                Text(line.query, f"bold {colour}"),
                line.state,
                "-" if line.age_s is None else f"{line.age_s:,.1f} s",
                f"{line.rows_per_second:,.0f}",
                f"{line.backlog:,}",
                f"{line.gaps:,}",
                f"{line.in_gaps:,}",
                *([bar] if has_bars else []),
            )
        return table


def _plain(line: QueryStatus) -> str:
    text = f"{line.query}: newest row {line.age_s:.1f} s old, {line.backlog:,} behind"
    if line.gaps:
        text += f" ({line.in_gaps:,} in gaps)"
    return f"{text}, {line.rows_per_second:,.0f} rows/s"
