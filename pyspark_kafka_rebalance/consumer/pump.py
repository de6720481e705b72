"""Pump: the thread that keeps group members alive while the application is busy.

    application's thread                       pump thread
      start()                 ──────────►      begin()
      wake()                  ──────────►      tick() → seconds until the next, or None
      raise_failure()         ◄──────────      the error of any of them
      stop(timeout_s)         ──────────►      finish()  unless something was raised
                                               close()   always

Four rules:

 1. ``begin``, ``tick``, ``finish`` and ``close`` run only on the pump's thread, in this order.
 2. An error from one of the first three ends the pump. It is kept before ``close`` is called, and
    every later :meth:`Pump.raise_failure` raises it: a failure in the background surfaces in the
    application's next call.
 3. A wake-up is never lost: one that comes during a tick makes the next tick follow at once.
 4. Stopping has a deadline, which ``finish`` and ``close`` can read (:meth:`Pump.left_s`). The
    thread is a daemon: if it hangs beyond the deadline, it does not keep the process alive.

The pump knows nothing of groups: its owner defines a tick.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import KafkaRebalanceError

log = logging.getLogger(__name__)


class Pump:
    """One thread; started once, stopped once.

    ``tick`` returns the seconds until the next one is due; None: only when woken. ``begin`` may be
    slow. ``close`` is always called, and must not raise. ``what`` names for the log the thing that
    ends with the pump: ``group 'orders': the membership``.
    """

    def __init__(
        self,
        tick: Callable[[], float | None],
        *,
        name: str,
        what: str,
        begin: Callable[[], None] = lambda: None,
        finish: Callable[[], None] = lambda: None,
        close: Callable[[], None] = lambda: None,
    ) -> None:
        self._tick = tick
        self._begin = begin
        self._finish = finish
        self._close = close
        self._what = what
        self._failure: BaseException | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._stop_by = 0.0
        self._started = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; idempotent."""
        if not self._started:
            self._started = True
            self._thread.start()

    def wake(self) -> None:
        """Run the next tick at once."""
        self._wake.set()

    def leave(self, timeout_s: float) -> None:
        """Ask the thread to finish within ``timeout_s``, without waiting for it; idempotent."""
        if not self._stopping.is_set():
            self._stop_by = time.monotonic() + timeout_s
            self._stopping.set()
            self._wake.set()

    def stop(self, timeout_s: float) -> bool:
        """As :meth:`leave`, and wait for the thread; False if it has not ended in time.

        On the pump's own thread it does not wait: the pump ends after this call.
        """
        self.leave(timeout_s)
        if not self._started or self._thread is threading.current_thread():
            return True
        self._thread.join(timeout_s)
        return not self.is_alive()

    def is_alive(self) -> bool:
        """Whether the thread was started and has not ended."""
        return self._thread.is_alive()

    @property
    def is_stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait this long, or until the pump is asked to stop; return whether it was. Any thread."""
        return self._stopping.wait(seconds)

    def left_s(self) -> float:
        """Seconds until the deadline of :meth:`leave`; 0 when it has passed or none was set."""
        return max(0.0, self._stop_by - time.monotonic())

    def raise_failure(self) -> None:
        """Raise the error that ended the pump, if there is one."""
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            self._begin()
            while not self._stopping.is_set():
                due_s = self._tick()
                self._wake.wait(due_s)
                self._wake.clear()
            self._finish()
        except BaseException as error:
            self._fail(error)
        finally:
            self._close()

    def _fail(self, error: BaseException) -> None:
        # Our own errors need no stack; any other error is a defect.
        level = logging.DEBUG if isinstance(error, KafkaRebalanceError) else logging.ERROR
        log.log(level, "%s ended", self._what, exc_info=error)
        self._failure = error
