"""What the demo shows while it runs: a live table, or plain lines where there is no terminal."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ..testing.rebalances.scenario import ReaderStatus

if TYPE_CHECKING:
    from typing_extensions import Self

#: The readers' colours, here and in the picture.
COLOURS = {"A": "#3b78b8", "B": "#e08a1e", "C": "#3f9b5f"}

_PLAIN_LINE_EVERY_S = 3.0


class Screen:
    """Shows the lines and what happens now.

    Parameters
    ----------
    console : Console
        Where.
    title : str
        Above the table.
    lines : callable
        The readers right now, and the produced records per second.
    """

    def __init__(
        self, console: Console, title: str, lines: Callable[[], tuple[list[ReaderStatus], float]]
    ) -> None:
        self._console = console
        self._title = title
        self._lines = lines
        self._status = ""
        self._began = time.monotonic()
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        self._stop = threading.Event()
        self._printer = threading.Thread(target=self._print_lines, daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._printer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        if self._console.is_terminal:
            self._live.stop()
        else:
            self._printer.join()

    def say(self, status: str) -> None:
        """What happens now; it stays above the table as a line of its own."""
        self._status = status
        self._console.print(f"{self._elapsed()}  {status}", highlight=False, soft_wrap=True)

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    def _print_lines(self) -> None:
        while not self._stop.wait(_PLAIN_LINE_EVERY_S):
            lines, _ = self._lines()
            text = " | ".join(_plain(line) for line in lines if line.partitions or line.revoking)
            if text:
                self._console.print(f"{self._elapsed()}  {text}", highlight=False, soft_wrap=True)

    def _render(self) -> Group:
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
        return Group(table, Text(f"{self._elapsed()}  {self._status}", "bold"))


def _plain(line: ReaderStatus) -> str:
    text = f"{line.reader}: {line.partitions} partitions, {line.rows_per_second:,.0f} rows/s"
    if line.revoking:
        text += f", revoking {line.revoking}"
    return f"{text}, lag {line.lag:,}"
