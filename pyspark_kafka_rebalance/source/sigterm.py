"""How a planner process handles SIGTERM, which Spark sends to end it."""

from __future__ import annotations

import signal
import threading


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
