"""A live table with the current step below it, or plain lines if there is no terminal."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Generic, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from typing_extensions import Self

_PLAIN_LINE_EVERY_S = 3.0

Status = TypeVar("Status")


class LiveView(ABC, Generic[Status]):
    """Shows a demo while it runs; a context manager.

    Parameters
    ----------
    console : Console
        Where to show it.
    title : str
        The table's title.
    lines : callable
        Returns the current statuses, one per row, and the records written per second.
    """

    def __init__(
        self, console: Console, title: str, lines: Callable[[], tuple[list[Status], float]]
    ) -> None:
        self._title = title
        self._lines = lines
        self._console = console
        self._status = ""
        self._began = time.monotonic()
        self._live = Live(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )
        self._stop = threading.Event()
        self._printer = threading.Thread(target=self._print_lines, daemon=True)

    @abstractmethod
    def table(self) -> Table:
        """The current state as a table."""

    @abstractmethod
    def line(self) -> str:
        """The current state in one line; empty if there is nothing yet."""

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
        """Announce the current step; it stays above the table as a separate line."""
        self._status = status
        self._print(status)

    def _print(self, text: str) -> None:
        self._console.print(
            f"{self._elapsed()}  {text}", highlight=False, markup=False, soft_wrap=True
        )

    def _elapsed(self) -> str:
        return f"{time.monotonic() - self._began:5.1f} s"

    def _print_lines(self) -> None:
        while not self._stop.wait(_PLAIN_LINE_EVERY_S):
            if text := self.line():
                self._print(text)

    def _render(self) -> Group:
        return Group(self.table(), Text(f"{self._elapsed()}  {self._status}", "bold"))
