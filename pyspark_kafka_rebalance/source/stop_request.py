"""StopRequest: how a planner process learns that its query shall stop after this batch.

Spark has no way to reach the planner but the calls of the stream, so a file on the driver's host
carries the message. Its name is that of the run, which stands in every offset and so in the
query's progress: whoever sees the progress can ask, and a later run is never meant by mistake.

The planner makes the file, empty and for its own user only. Who asks appends lines: the first says
"plan nothing more"; each has an offset whose batch Spark has committed, or null. The planner
removes the file when it has left the group.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)


class StopRequest:
    """The planner's side.

    Parameters
    ----------
    run : str
        The run that this planner works for; unique.
    """

    def __init__(self, run: str) -> None:
        self._path = _path(run)
        self._failed = False
        self._create()

    def is_made(self) -> bool:
        """Whether somebody asked; for every trigger."""
        try:
            return self._path.stat().st_size > 0
        except FileNotFoundError:
            self._create()  # what cleans up /tmp takes files that nobody touched for days
            return False

    def proven(self) -> list[dict[str, Any]]:
        """Ends of batches that Spark has committed, as who asked knows from the progress."""
        try:
            lines = self._path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [offset for line in lines if (offset := json.loads(line)) is not None]

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


def ask_to_stop(run: str, proven: dict[str, Any] | None) -> bool:
    """Ask the planner of this run, on this host.

    Parameters
    ----------
    run : str
        From an offset of the query.
    proven : dict or None
        The end of a batch that Spark has committed, as far as it is known.

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
        os.write(file, f"{json.dumps(proven)}\n".encode())
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
