"""The demo's live view of its readers."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from measuring.scenario import ReaderStatus

from ..live_view import LiveView

#: The readers' colours, here and in the picture.
COLOURS = {"A": "#3b78b8", "B": "#e08a1e", "C": "#3f9b5f"}


class Screen(LiveView[ReaderStatus]):
    """Shows the readers, one row each."""

    def line(self) -> str:
        """The readers that own or are revoking partitions, in one line."""
        lines, _ = self._lines()
        return " | ".join(_plain(line) for line in lines if line.partitions or line.revoking)

    def table(self) -> Table:
        """One row per reader, and a total."""
        lines, produced = self._lines()
        table = Table(title=self._title, title_justify="left", title_style="bold")
        table.add_column("query")
        table.add_column("state", min_width=14)
        for name in ("partitions", "rows/s", "revoking", "lost", "lag", "committed"):
            table.add_column(name, justify="right", min_width=9)
        for line in lines:
            colour = COLOURS.get(line.reader, "")
            table.add_row(
                Text(line.reader, f"bold {colour}"),
                line.state,
                *(
                    f"{n:,.0f}"
                    for n in (
                        line.partitions,
                        line.rows_per_second,
                        line.revoking,
                        line.lost,
                        line.lag,
                        line.committed,
                    )
                ),
            )
        table.add_section()
        table.add_row(
            "all",
            f"produced {produced:,.0f}/s",
            f"{sum(line.partitions for line in lines):,}",
            f"{sum(line.rows_per_second for line in lines):,.0f}",
            f"{sum(line.revoking for line in lines):,}",
            f"{sum(line.lost for line in lines):,}",
            f"{sum(line.lag for line in lines):,}",
            f"{sum(line.committed for line in lines):,}",
        )
        return table


def _plain(line: ReaderStatus) -> str:
    text = f"{line.reader}: {line.partitions} partitions, {line.rows_per_second:,.0f} rows/s"
    if line.revoking:
        text += f", revoking {line.revoking}"
    return f"{text}, lag {line.lag:,}"
