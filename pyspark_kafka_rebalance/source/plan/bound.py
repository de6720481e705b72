"""find_bound: up to which timestamp a batch reads, found with as few queries as possible. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: A batch of this load is full: the next query costs more than it gains. The load that is enough
#: falls with every query, but not below the last value.
FULL, _LESS_EACH, _LEAST = 0.9, 0.03, 0.5

#: The share that a guess aims at.
_AIM = 0.96

#: After this many queries, any batch that is not empty will do.
_PATIENT = 48

#: By which factor a first guess grows.
_GROWTH = 8


class Bound(NamedTuple):
    """The timestamps between which a batch becomes full."""

    low: int  #: records at or below it fit into the batch
    high: int  #: records at or below it do not fit
    asked: int  #: a timestamp whose load was queried, with the same records as ``low``


def find_bound(
    load: Callable[[int], float],
    next_after: Callable[[int], int | None],
    low: int,
    high: int,
    drift: int,
    step: int,
) -> Bound:
    """Find a bound, either tight up to the drift, or such that the records below fill the batch.

    Parameters
    ----------
    load : callable
        The records at or below a timestamp, as a share of what fits. It never falls as timestamps
        rise, and queries the brokers.
    next_after : callable
        The lowest timestamp that is left by a batch up to a timestamp whose ``load`` was queried.
    low, high : int
        Timestamps whose load is at most 1, and more than 1.
    drift : int
        Records no further apart than this need no order.
    step : int
        How far the first guess is above ``low``.
    """
    asked, below, above = low, load(low), 0.0  # at `high`; 0: not queried, and may be far away
    low = _raised(low, next_after(low), high)
    questions = misses = 0
    while high - low > 1 + drift and below < max(_LEAST, FULL - _LESS_EACH * questions):
        if below > 0 and questions >= _PATIENT:
            break
        span = high - low
        if not above:
            # Gets quickly to data that lie close together, however far away `high` is.
            guess = low + step
            step *= _GROWTH
            if guess >= high:
                guess = low + span // 2
        elif misses >= 4 and not below:
            guess = low + 1 + drift  # many equal timestamps; the next one decides
            misses = 0
        elif misses % 2:
            guess = low + span // 2
        else:
            guess = low + int(span * (_AIM - below) / (above - below))
        guess = min(max(guess, low + 1), high - 1)
        found = load(guess)
        questions += 1
        if found <= 1:
            asked, below = guess, found
            low = _raised(guess, next_after(guess), high)
        else:
            high, above = guess, found
        if above:
            misses = misses + 1 if high - low > span // 2 else 0
    return Bound(low, high, asked)


def _raised(low: int, following: int | None, high: int) -> int:
    """Raise ``low`` as far as nothing more lies at or below it."""
    return low if following is None else min(max(low, following - 1), high - 1)
