"""How many histories the randomized tests go through, and which.

Usually a run goes through all of them, the same ones as the run before. A run of CI goes through a
third, those of another seed each time: ``HISTORIES_SEED``, which it prints. With that seed, a run
repeats them. A history that has once failed is an example of its test and always part of a run.
"""

from __future__ import annotations

import os

_TIMES = os.environ.get("RANDOM_HISTORIES")
_SEED = None if _TIMES else os.environ.get("HISTORIES_SEED")

_PARTS = 3

#: Unless others are asked for, a run tries the same histories as the run before.
ALWAYS_THE_SAME = _TIMES is None and _SEED is None

#: As before, of what happens on real brokers, which a run of CI tries whole.
EVENTS_ALWAYS_THE_SAME = _TIMES is None


def histories(usual: int) -> int:
    """As many as usual, times ``RANDOM_HISTORIES``; with ``HISTORIES_SEED`` a third of them."""
    return events(usual) if _SEED is None else -(-usual // _PARTS)


def events(usual: int) -> int:
    """As many as usual on real brokers, times ``RANDOM_HISTORIES``."""
    return usual * int(_TIMES or 1)


def places(every: int) -> tuple[int, int]:
    """Return the first of the places to try, and how far the next is from each; from 1 on.

    Usually that is each ``every``-th one, and with ``RANDOM_HISTORIES`` all. With
    ``HISTORIES_SEED`` it is a third of that number, and seeds that follow each other have, between
    them, all.
    """
    if _SEED is not None:
        step = every * _PARTS
        return int(_SEED) % step + 1, step
    step = 1 if int(_TIMES or 1) > 1 else every
    return step, step
