"""StopRequest: how a planner process learns that its query should stop after this batch.

Spark reaches the planner only through the stream's calls, so a file on the driver's host carries
the message. The file is named after the run. Every offset, and so the query's progress, has the
run's name: anyone who sees the progress can ask, and never asks a later run by mistake.

The planner creates the file, empty and accessible to its own user only. A caller appends lines. The
first line means "plan nothing more". Each line has an offset whose batch Spark has committed, or
null; the time until which the caller waits for the planner's commits; and the time within which the
query will be stopped. Once that time has passed, the caller has ended, and the query continues.

The planner answers when it has left the group, whether or not a caller asked: a caller can also ask
about a query that ended by itself or that another caller stopped. To answer, it renames the file.
The answer then stays the same for all callers, for an hour; after that, the next planner that
starts removes it. If a planner does not answer in time, the caller answers in its place. While the
planner lives, it holds a lock on the file. The lock ends with it, however it dies; the file that it
leaves is an answer too, and is removed like one.
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

#: The fate of a planner: it is still in its group; it left with everything committed; it left
#: without, or died; or that is unknown, because it was never there, or left long ago.
Answer: TypeAlias = Literal["reached", "committed", "uncommitted", "absent"]

_PREFIX = "pyspark-kafka-rebalance-"
_REQUEST, _COMMITTED, _UNCOMMITTED = ".stop", ".committed", ".uncommitted"

#: How long an answer is kept, for callers that have not asked before.
_ANSWER_KEPT_S = 3600.0


class StopRequest:
    """The planner's side: creates the file, checks it in every trigger, and answers.

    The clock is monotonic, in seconds, and the same for all processes of this host.
    """

    def __init__(self, run: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = _path(run)
        self._clock = clock
        self._size = 0  # of the known part of the file
        self._stop_by = 0.0
        self._failed = False
        self._file = -1  # open, and locked, until the answer
        _remove_old_files()
        self._create()

    def is_made(self) -> bool:
        """Whether a caller asked; checked in every trigger."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            self._create()  # cleaners of /tmp delete files that were not touched for days
            return False
        if size > self._size and (lines := self._lines()):
            # Counted from now on, so never earlier than the caller gives up.
            self._size = size
            self._stop_by = self._clock() + max(line["stop_within_s"] for line in lines)
        return self._size > 0

    def is_abandoned(self) -> bool:
        """Whether a caller asked, and has not stopped the query within the time that it named."""
        return self.is_made() and self._clock() >= self._stop_by

    def proven(self) -> list[dict[str, Any]]:
        """Ends of batches that Spark has committed, as callers know from the progress."""
        return [line["proven"] for line in self._lines() if line["proven"] is not None]

    def commits_wanted_s(self) -> float:
        """How much longer a caller waits for the commits; 0 if none does."""
        by = max((line["commit_by"] for line in self._lines()), default=0.0)
        return max(0.0, float(by) - self._clock())

    def _lines(self) -> list[dict[str, Any]]:
        try:
            text = self._path.read_text("utf-8")
        except FileNotFoundError:
            return []
        return [json.loads(line) for line in text.split("\n")[:-1]]  # the last may be half written

    def answer(self, committed: bool) -> bool:
        """Answer that the planner has left, with everything committed or not; idempotent.

        Returns whether not everything is committed and a caller waits for the answer.
        """
        asked = bool(self._lines())
        if self._size > 0 and self._clock() >= self._stop_by:
            self._path.unlink(missing_ok=True)  # the caller gave up, and the query continues
            self._release()
            return False
        try:
            _rename(self._path, _COMMITTED if committed else _UNCOMMITTED)
        except FileNotFoundError:
            return False  # already answered, or the caller stopped waiting
        finally:
            self._release()  # not before the rename, or this planner would look dead
        return asked and not committed

    def _release(self) -> None:
        # Set first: a SIGTERM between the two would close it again, which may be another's by then.
        file, self._file = self._file, -1
        if file >= 0:
            os.close(file)

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

    ``proven`` is the end of a batch that Spark has committed, if one is known. The query continues
    after ``stop_within_s`` unless it is stopped. The caller waits ``commit_within_s`` for the
    answer whether everything is committed. Returns False if there is no such planner: it has not
    started, has left, or was killed.
    """
    if answer_of(run) != "reached":
        return False
    try:
        # Never creates the file, nor follows a link that another user of the host has put there.
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
    """Return this run's ``Answer``, on this host; the same however often asked."""
    path = _path(run)
    if path.exists() and not _is_left_behind(path):
        return "reached"
    # In this order: the planner may rename it in between.
    if path.with_suffix(_UNCOMMITTED).exists():
        return "uncommitted"
    if path.with_suffix(_COMMITTED).exists():
        return "committed"
    return "uncommitted" if path.exists() else "absent"


def give_up(run: str) -> None:
    """Answer in place of a planner that is dead or late; idempotent."""
    with suppress(FileNotFoundError):
        _rename(_path(run), _UNCOMMITTED)


def _rename(path: Path, suffix: str) -> None:
    answer = path.with_suffix(suffix)
    path.rename(answer)
    os.utime(answer)  # it is kept for an hour from now


def _is_left_behind(path: Path) -> bool:
    """Whether the planner that created the file is dead; False if it has renamed the file."""
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
    """Remove answers that were kept long enough, and the files of planners that were killed."""
    oldest = time.time() - _ANSWER_KEPT_S
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):  # another user's, or another planner was faster
            if path.stat().st_mtime < oldest and (
                path.suffix in (_COMMITTED, _UNCOMMITTED)
                or (path.suffix == _REQUEST and _is_left_behind(path))
            ):
                path.unlink()


def _path(run: str) -> Path:
    # Hashed: it contains the user's client id, which may not be a valid file name.
    name = hashlib.sha256(run.encode()).hexdigest()[:32]
    return Path(tempfile.gettempdir(), f"{_PREFIX}{name}{_REQUEST}")
