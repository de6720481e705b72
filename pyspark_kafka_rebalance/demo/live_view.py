"""A live table with what happens now below it, or plain lines where there is no terminal."""

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
        Where.
    title : str
        Above the table.
    lines : callable
        What there is to see right now, a line each, and what is written per second.
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
        """What there is to see right now."""

    @abstractmethod
    def line(self) -> str:
        """The same in a line; empty when there is nothing yet."""

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
