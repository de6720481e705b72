"""CommitLogWatch: look-ups in the query's commit log that hold nobody up.

The pump asks every few milliseconds while a revoke waits for its batch. A checkpoint on this
machine answers at once. A store may take seconds or not answer at all, and the pump keeps the
memberships alive: there each look-up has a thread of its own, one at a time and not too often.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from .checkpoint_files import is_local, redacted
from .commit_log import CommitLog

log = logging.getLogger(__name__)

#: A look-up takes three requests, which stores charge for and limit by prefix (S3: 5,500 a second
#: for all who read there). A hand-over takes some 0.3 s, so that asking more often gains little.
_STORE_INTERVAL_S = 0.2


class _LookUp:
    """One look-up, and its outcome once it is done."""

    def __init__(self, offset: dict[str, Any]) -> None:
        self.offset = offset
        self.began_at = time.monotonic()
        self.done = threading.Event()
        self.found = False

    def proves(self, offset: dict[str, Any]) -> bool:
        """Whether it is done and found this offset committed."""
        return self.done.is_set() and self.found and self.offset == offset


class CommitLogWatch:
    """The commit log of one query, for its pump.

    A checkpoint that cannot be read is logged when that begins, and when it ends. Meanwhile
    nothing is proven by it: a revoke waits for Spark's next trigger.

    Parameters
    ----------
    location : str
        The query's ``checkpointLocation``, parsed: an absolute path or a URI.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._commit_log = CommitLog(location)
        self._last: _LookUp | None = None
        self._failing = False

    @property
    def answers_at_once(self) -> bool:
        """Whether a look-up takes no time worth mentioning, and costs nothing."""
        return is_local(self._location)

    def begin(self) -> None:
        """Connect to a store, so that what is wrong with it is in the log from the beginning."""
        if not is_local(self._location):
            self._look_up({}, 0.0)

    def is_committed(self, offset: dict[str, Any]) -> bool:
        """Whether the batch that ends here is known to be committed; of a store, without waiting.

        Called again and again: the answer of a store comes with a later call.
        """
        last = self._last
        if is_local(self._location):
            return self._look_up(offset, None).proves(offset)
        if last is not None and last.proves(offset):
            return True
        if last is None or (
            last.done.is_set() and time.monotonic() - last.began_at >= _STORE_INTERVAL_S
        ):
            self._look_up(offset, 0.0)
        return False

    def wait_for_answer(self, offset: dict[str, Any], timeout_s: float) -> bool:
        """Whether the batch is committed, by a look-up that begins now; waits for it so long."""
        deadline = time.monotonic() + timeout_s
        last = self._last
        if last is not None:
            last.done.wait(timeout_s)  # it may have looked before Spark committed the batch
        if last is None or (last.done.is_set() and not last.proves(offset)):
            local = is_local(self._location)
            left_s = max(0.0, deadline - time.monotonic())
            last = self._look_up(offset, None if local else left_s)
        if not last.done.is_set():
            log.warning(
                "the query's commit log %s did not answer within %.1f s",
                redacted(self._location),
                timeout_s,
            )
        return last.proves(offset)

    def _look_up(self, offset: dict[str, Any], timeout_s: float | None) -> _LookUp:
        """Begin a look-up and wait for it so long; None: do it on this thread."""
        look_up = self._last = _LookUp(offset)
        if timeout_s is None:
            self._run(look_up)
        else:
            # A daemon: a store that does not answer may outlive the query.
            threading.Thread(
                target=self._run, args=(look_up,), name="commit-log", daemon=True
            ).start()
            look_up.done.wait(timeout_s)
        return look_up

    def _run(self, look_up: _LookUp) -> None:
        """Look up and report; one at a time, on whatever thread."""
        try:
            look_up.found = self._commit_log.is_committed(look_up.offset)
        # pyarrow raises more than OSError.
        except Exception as error:
            if not self._failing:
                log.warning(
                    "the query's commit log %s cannot be read, so hand-overs wait for Spark's "
                    "next trigger, and the last batch before a stop may be repeated: %s",
                    redacted(self._location),
                    error,
                )
            self._failing = True
        else:
            if self._failing:
                log.warning("the query's commit log %s can be read again", redacted(self._location))
            self._failing = False
        look_up.done.set()
