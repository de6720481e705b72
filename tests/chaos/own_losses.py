"""When a reader's members gave up by themselves, as the log of their process says.

Of a query that is the log of its Spark. No coordinator answered for a session, so that none may log
the end of it.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from .surroundings import Background

if TYPE_CHECKING:
    from .plan_reader import RunningReader

_GIVEN_UP = re.compile(rb"group (\S+): member \S+ .*out of the group: no successful heartbeat for ")
_LOOK_EVERY_S = 0.2


class MembersLog:
    """The lines that a log gets from now on, whose time is that of the look at them.

    Parameters
    ----------
    path : Path
    group : str
        That of the members.
    """

    def __init__(self, path: Path, group: str) -> None:
        self._path = path
        self._group = group.encode()
        self._lock = threading.Lock()
        self._read = path.stat().st_size
        self._looked_at = time.time()

    def gives_up(self) -> tuple[float, float] | None:
        """Between which two looks a member gave up, if one did since the last of them."""
        with self._lock:
            since, self._looked_at = self._looked_at, time.time()
            with self._path.open("rb") as file:
                file.seek(self._read)
                lines, newline, _ = file.read().rpartition(b"\n")
            self._read += len(lines) + len(newline)
            gave_up = self._group in _GIVEN_UP.findall(lines)
            return (since, self._looked_at) if gave_up else None


class OwnLosses(Background):
    """Has every reader look at its members' log, again and again."""

    def __init__(self, readers: Iterable[RunningReader]) -> None:
        super().__init__()
        self._readers = list(readers)

    def run(self) -> None:
        while not self._stop.wait(_LOOK_EVERY_S):
            for reader in self._readers:
                reader.look_at_log()
