"""LoadClaim: at most one running source for each ``load()``, unless the user wants several.

Two queries that are started from one DataFrame read with one ``load()``. Spark's own source gives
each of them all records. As members of one group, each would get only some of the partitions,
without an error. The same happens to a join of a DataFrame with itself, for which Spark makes two
sources unless one side renames its columns. (A union of a DataFrame with itself has one source.)

``load()`` runs in a short-lived process, which makes up a name for the load. Spark pickles the name
into every source of that load, so the planners of all its queries have it; two ``load()``s have two
names. A planner that starts locks a file of that name on the driver's host, and keeps the lock
until its query ends. The lock ends with the process, however it dies.
"""

from __future__ import annotations

import fcntl
import logging
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

#: How long a planner waits for the one before it. Spark does not wait for a planner when it stops
#: a query, so a DataFrame that is started again at once meets the planner that is just ending.
WAIT_S = 5.0

_ASK_EVERY_S = 0.02

_PREFIX, _SUFFIX = "pyspark-kafka-rebalance-load-", ".claim"

#: Files of planners that were killed are removed after this time.
_KEPT_S = 3600.0


class LoadClaim:
    """The claim of one planner.

    ``load`` is valid as part of a file name. ``run`` is for the planner that is refused.
    """

    def __init__(self, load: str, run: str, sleep: Callable[[float], None] = time.sleep) -> None:
        self._path = Path(tempfile.gettempdir(), f"{_PREFIX}{load}{_SUFFIX}")
        self._run = run
        self._sleep = sleep
        self._file = -1

    def take(self, wait_s: float | None = None) -> str | None:
        """Claim the load; waits at most this long (default: ``WAIT_S``) for another planner to end.

        Returns the run of the planner that has the claim; None if it is ours now, or if claims
        cannot be kept on this host.
        """
        _remove_old_files()
        deadline = time.monotonic() + (WAIT_S if wait_s is None else wait_s)
        try:
            while not self._try():
                if time.monotonic() >= deadline:
                    return _run_in(self._path)
                self._sleep(_ASK_EVERY_S)
        except OSError as error:
            log.warning("cannot tell whether another query reads the same load(): %s", error)
        return None

    def keep(self) -> None:
        """Take the claim again if a cleaner of /tmp has removed its file; every trigger calls it.

        Cleaners delete files that were not touched for days.
        """
        if self._file >= 0 and not self._path.exists():
            self.release()
            self.take(wait_s=0.0)

    def release(self) -> None:
        """Let another planner have it; idempotent."""
        # Set first: a SIGTERM between the two would close it again, which may be another's by then.
        file, self._file = self._file, -1
        if file >= 0:
            if _is_at(self._path, file):
                self._path.unlink(missing_ok=True)
            os.close(file)

    def _try(self) -> bool:
        file = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        if not _is_at(self._path, file):  # its holder has just removed it
            os.close(file)
            return False
        os.ftruncate(file, 0)
        os.write(file, self._run.encode())
        self._file = file
        return True


def _run_in(path: Path) -> str:
    """Return the run of the planner that holds this file."""
    try:
        return path.read_text("utf-8") or "a run that is starting"
    except FileNotFoundError:
        return "a run that has just ended"


def _is_at(path: Path, file: int) -> bool:
    """Whether the open file is the one at this path."""
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _remove_old_files() -> None:
    """Remove the files of planners that were killed."""
    oldest = time.time() - _KEPT_S
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # another user's, held, or another planner was faster
            if path.stat().st_mtime < oldest:
                file = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(file)
