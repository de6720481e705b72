"""How a planner process ends: Spark closes its socket, and sends it SIGTERM."""

from __future__ import annotations

import atexit
import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import TracebackType

log = logging.getLogger(__name__)


def stop_on_sigterm(end: Callable[[], None]) -> None:
    """Let stop() run: Spark ends the planner process with SIGTERM, sent twice, without waiting.

    Raising SystemExit makes the process call ``stop()``; ignoring the signal from then on keeps
    the second one from ending it halfway. But the closed socket makes it call ``stop()`` too, and
    the first signal may come just as that call starts, and cut it off. So the process calls ``end``
    on its way out, unless :func:`has_ended` was called.
    """
    atexit.register(end)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def has_ended(end: Callable[[], None]) -> None:
    """``end`` has done its work."""
    atexit.unregister(end)


def _on_sigterm(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.excepthook = _hide_closed_socket  # stop() may not get so far
    raise SystemExit(0)


def ignore_sigterm() -> None:
    """Keep the first SIGTERM from ending a stop() that started when Spark closed the socket."""
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_silently() -> None:
    """Called by stop(): if Spark has ended this process, hide the errors of the closed socket.

    PySpark reports the end of its loop to the JVM like an error. If the JVM has closed the socket,
    that fails, too, and Python would print three tracebacks, each during the handling of another.
    (Other sources do not live that long: the signal ends them.)
    """
    if isinstance(sys.exc_info()[1], (EOFError, SystemExit)):
        sys.excepthook = _hide_closed_socket


def _hide_closed_socket(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if issubclass(kind, ConnectionError):
        log.debug("Spark has closed the socket", exc_info=(kind, error, trace))
    else:
        sys.__excepthook__(kind, error, trace)
