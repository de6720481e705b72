"""How many histories the randomized tests go through."""

from __future__ import annotations

import os

_TIMES = os.environ.get("RANDOM_HISTORIES")

#: Unless more are asked for, a run tries the same histories as the run before.
ALWAYS_THE_SAME = _TIMES is None


def histories(usual: int) -> int:
    """As many as usual, times ``RANDOM_HISTORIES``."""
    return usual * int(_TIMES or 1)
