"""StopRequest: how a planner process learns that its query shall stop after this batch.

Spark has no way to reach the planner but the calls of the stream, so a file on the driver's host
carries the message. Its name is that of the run, which stands in every offset and so in the
query's progress: whoever sees the progress can ask, and a later run is never meant by mistake.

The planner makes the file, empty and for its own user only. Who asks appends lines: the first says
"plan nothing more"; each has an offset whose batch Spark has committed, or null, by when the
planner's commits are waited for, and within what time the query will be stopped. If that passes,
whoever asked is gone, and the query is to go on.

The planner answers when it has left the group, whether or not anybody asked: a query that ended by
itself, or was stopped by somebody else, may be asked about as well. It renames the file, and the
answer stays as it is, for all who ask, for an hour; then a planner that starts removes it. Of a
planner that does not answer in time whoever asked gives the answer. While the planner lives it
holds a lock on the file, which ends with it however it dies; the file that it leaves is an answer
too, and removed like one.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeAlias

log = logging.getLogger(__name__)

#: What a planner is found to be: still in its group (or dead); gone with everything committed; gone
#: without; or not known, because it was never there, or left long ago.
Answer: TypeAlias = Literal["reached", "committed", "uncommitted", "absent"]

_PREFIX = "pyspark-kafka-rebalance-"
_REQUEST, _COMMITTED, _UNCOMMITTED = ".stop", ".committed", ".uncommitted"

#: For how long an answer is kept for those who have not asked before.
_ANSWER_KEPT_S = 3600.0


class StopRequest:
    """The planner's side.

    Parameters
    ----------
    run : str
        The run that this planner works for; unique.
    clock : callable
        Seconds, monotonic, and the same for all processes of this host.
    """

    def __init__(self, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = _path(run)
        self._clock = clock
        self._size = 0  # of what is known of the file
        self._stop_by = 0.0
        self._failed = False
        self._file = -1  # open, and locked, until the answer
        _remove_old_files()
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

    def commits_wanted_s(self) -> float:
        """For how long from now somebody waits for the commits; 0 if nobody does."""
        by = max((line["commit_by"] for line in self._lines()), default=0.0)
        return max(0.0, float(by) - self._clock())

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]  # one may be half written

    def answer(self, committed: bool) -> bool:
        """The planner has left the group, with everything committed or not; idempotent.

        Returns
        -------
        bool
            Whether somebody waits to be told that not everything is committed.
        """
        asked = bool(self._lines())
        if self._size > 0 and self._clock() >= self._stop_by:
            self._path.unlink(missing_ok=True)  # they are gone, and the query goes on
            self._release()
            return False
        try:
            _rename(self._path, _COMMITTED if committed else _UNCOMMITTED)
        except FileNotFoundError:
            return False  # answered, or they did not wait any longer
        finally:
            self._release()  # not before it is renamed: nobody may take this planner for dead
        return asked and not committed

    def _release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _create(self) -> None:
        try:
            file = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            self._release()
            self._file = file
        except OSError as error:
            if not self._failed:
                log.warning("stop_gracefully() will not find this query: %s", error)
            self._failed = True


def ask_to_stop(
    run: str, proven: dict[str, Any] | None, stop_within_s: float, commit_within_s: float = 0.0
) -> bool:
    """Ask the planner of this run, on this host.

    Parameters
    ----------
    run : str
        From an offset of the query.
    proven : dict or None
        The end of a batch that Spark has committed, as far as it is known.
    stop_within_s : float
        Once this has passed, the query goes on unless it is stopped.
    commit_within_s : float
        For how long the answer is waited for, whether everything is committed.

    Returns
    -------
    bool
        False when there is no such planner: it has not begun, has left, or was killed.
    """
    if answer_of(run) != "reached":
        return False
    try:
        # Neither made here, nor through a link that another user of the host laid.
        file = os.open(_path(run), os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        commit_by = time.monotonic() + commit_within_s
        line = {"proven": proven, "stop_within_s": stop_within_s, "commit_by": commit_by}
        os.write(file, f"{json.dumps(line)}\n".encode())
    finally:
        os.close(file)
    return True


def answer_of(run: str) -> Answer:
    """What has become of the planner of this run, on this host; the same however often asked."""
    path = _path(run)
    if path.exists() and not _is_left_behind(path):
        return "reached"
    # In this order: the planner may rename it meanwhile.
    if path.with_suffix(_UNCOMMITTED).exists():
        return "uncommitted"
    if path.with_suffix(_COMMITTED).exists():
        return "committed"
    return "uncommitted" if path.exists() else "absent"


def give_up(run: str) -> None:
    """Answer for a planner that has not: it is dead, or late; idempotent."""
    with suppress(FileNotFoundError):
        _rename(_path(run), _UNCOMMITTED)


def _rename(path: Path, suffix: str) -> None:
    answer = path.with_suffix(suffix)
    path.rename(answer)
    os.utime(answer)  # from now on it is kept


def _is_left_behind(path: Path) -> bool:
    """Whether the planner that made the file is dead; False where it has renamed it."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def _remove_old_files() -> None:
    """Answers that were kept for long enough, and what planners have left that were killed."""
    oldest = time.time() - _ANSWER_KEPT_S
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another planner was faster
            if path.stat().st_mtime < oldest and (
                path.suffix in (_COMMITTED, _UNCOMMITTED)
                or (path.suffix == _REQUEST and _is_left_behind(path))
            ):
                path.unlink()


def _path(run: str) -> Path:
    # Hashed: the user's client id is a part of it, and may be no file name.
    name = hashlib.sha256(run.encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"{_PREFIX}{name}{_REQUEST}")
