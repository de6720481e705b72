"""CommitLogWatch: look-ups in the query's commit log that do not block the pump.

The pump asks every few milliseconds while a revoke waits for its batch. A checkpoint on this
machine answers at once. A store may take seconds or not answer at all, and the pump must keep the
memberships alive. So each look-up in a store has its own thread, one at a time and not too often.
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
#: for all its readers). A hand-over takes about 0.3 s, so asking more often gains little.
_STORE_INTERVAL_S = 0.2


class _LookUp:
    """One look-up, and its outcome once it is done."""

    def __init__(self, offset: dict[str, Any], is_first: bool) -> None:
        self.offset = offset
        self.is_first = is_first
        self.began_at = time.monotonic()
        self.done = threading.Event()
        self.found = False

    def proves(self, offset: dict[str, Any]) -> bool:
        """Whether it is done and found this offset committed."""
        return self.done.is_set() and self.found and self.offset == offset


class CommitLogWatch:
    """The commit log of one query, for its pump; the location is parsed.

    It logs when the checkpoint becomes unreadable, and when it can be read again. In between, the
    commit log proves nothing, and a revoke waits for Spark's next trigger.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._commit_log = CommitLog(location)
        self._last: _LookUp | None = None
        self._failing = False

    @property
    def answers_at_once(self) -> bool:
        """Whether a look-up takes next to no time, and costs nothing."""
        return is_local(self._location)

    def begin(self) -> None:
        """Connect to a store early. If that fails, ``LocationCheck`` reports it."""
        if not is_local(self._location):
            self._look_up({}, 0.0, is_first=True)

    def is_committed(self, offset: dict[str, Any]) -> bool:
        """Whether the batch that ends here is known to be committed; does not wait for a store.

        This is called again and again: a store's answer comes with a later call.
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
        """Whether the batch is committed, by a look-up that starts now; waits at most this long."""
        deadline = time.monotonic() + timeout_s
        last = self._last
        if last is not None:
            last.done.wait(timeout_s)  # it may have started before Spark committed the batch
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

    def _look_up(
        self, offset: dict[str, Any], timeout_s: float | None, is_first: bool = False
    ) -> _LookUp:
        """Start a look-up and wait this long for it; None: run it on this thread."""
        look_up = self._last = _LookUp(offset, is_first)
        if timeout_s is None:
            self._run(look_up)
        else:
            # A daemon: if a store does not answer, the look-up may outlive the query.
            threading.Thread(
                target=self._run, args=(look_up,), name="commit-log", daemon=True
            ).start()
            look_up.done.wait(timeout_s)
        return look_up

    def _run(self, look_up: _LookUp) -> None:
        """Look up and report; one at a time, on any thread."""
        try:
            look_up.found = self._commit_log.is_committed(look_up.offset)
        # pyarrow raises more than OSError.
        except Exception as error:
            if not self._failing and not look_up.is_first:
                log.warning(
                    "the query's commit log %s cannot be read, so hand-overs wait for Spark's "
                    "next trigger, and the last batch before a stop may be repeated: %s",
                    redacted(self._location),
                    error,
                )
            self._failing = not look_up.is_first
        else:
            if self._failing:
                log.warning("the query's commit log %s can be read again", redacted(self._location))
            self._failing = False
        look_up.done.set()
