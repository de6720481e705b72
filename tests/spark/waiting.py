"""Waiting for what a query does in its own time."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    done: Callable[[], bool], what: str | Callable[[], str], patience_s: float = 60.0
) -> None:
    """Until it is so; ``what`` says what was waited for in vain, asked only then if callable."""
    deadline = time.monotonic() + patience_s
    while not done():
        assert time.monotonic() < deadline, what() if callable(what) else what
        time.sleep(0.05)
