"""StopRequest: how a planner process learns that its query shall stop after this batch.

Spark has no way to reach the planner but the calls of the stream, so a file on the driver's host
carries the message. Its name is that of the run, which stands in every offset and so in the
query's progress: whoever sees the progress can ask, and a later run is never meant by mistake.

The planner makes the file, empty and for its own user only. Who asks appends lines: the first says
"plan nothing more"; each has an offset whose batch Spark has committed, or null, and within what
time the query will be stopped. If that passes, whoever asked is gone, and the query is to go on.
The planner removes the file when it has left the group.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class StopRequest:
    """The planner's side.

    Parameters
    ----------
    run : str
        The run that this planner works for; unique.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(self, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = _path(run)
        self._clock = clock
        self._size = 0  # of what is known of the file
        self._stop_by = 0.0
        self._failed = False
        self._create()

    def is_made(self) -> bool:
        """Whether somebody asked; for every trigger."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            self._create()  # what cleans up /tmp takes files that nobody touched for days
            return False
        if size > self._size and (lines := self._lines()):
            # From now on, so never before whoever asked would give up.
            self._size = size
            self._stop_by = self._clock() + max(line["stop_within_s"] for line in lines)
        return self._size > 0

    def is_abandoned(self) -> bool:
        """Whether somebody asked, and has not stopped the query in the time that was named."""
        return self.is_made() and self._clock() >= self._stop_by

    def proven(self) -> list[dict[str, Any]]:
        """Ends of batches that Spark has committed, as who asked knows from the progress."""
        return [line["proven"] for line in self._lines() if line["proven"] is not None]

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]  # one may be half written

    def remove(self) -> None:
        """The planner has left the group; idempotent."""
        self._path.unlink(missing_ok=True)

    def _create(self) -> None:
        try:
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except OSError as error:
            if not self._failed:
                log.warning("stop_gracefully() will not find this query: %s", error)
            self._failed = True


def ask_to_stop(run: str, proven: dict[str, Any] | None, stop_within_s: float) -> bool:
    """Ask the planner of this run, on this host.

    Parameters
    ----------
    run : str
        From an offset of the query.
    proven : dict or None
        The end of a batch that Spark has committed, as far as it is known.
    stop_within_s : float
        Once this has passed, the query goes on unless it is stopped.

    Returns
    -------
    bool
        False when there is no such planner: it has not begun, has left, or was killed.
    """
    try:
        # Neither made here, nor through a link that another user of the host laid.
        file = os.open(_path(run), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        line = {"proven": proven, "stop_within_s": stop_within_s}
        os.write(file, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(file)
    return True


def is_planner_here(run: str) -> bool:
    """Whether the planner of this run is on this host and has not left the group."""
    return _path(run).exists()


def _path(run: str) -> Path:
    # Hashed: the user's client id is a part of it, and may be no file name.
    name = hashlib.sha256(run.encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"pyspark-kafka-rebalance-{name}.stop")
