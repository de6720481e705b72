"""How a planner process ends: Spark closes its socket, and sends it SIGTERM."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import TracebackType

log = logging.getLogger(__name__)


def stop_on_sigterm() -> None:
    """Let stop() run: Spark ends the planner process with SIGTERM, sent twice, without waiting.

    Raising SystemExit makes the process call ``stop()``; ignoring the signal from then on keeps
    the second one from ending it halfway.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _on_sigterm)


def _on_sigterm(signum: int, frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(0)


def ignore_sigterm() -> None:
    """Keep the first SIGTERM from ending a stop() that began when Spark closed the socket."""
    if signal.getsignal(signal.SIGTERM) is _on_sigterm:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def end_silently() -> None:
    """Called by stop(): if Spark has ended this process, hide that nobody listens any more.

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
