"""find_bound: up to which timestamp a batch reads, found by as few questions as can be. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

#: A batch that has so much of what it may read is full: the next question costs more than it gains.
#: The more were asked, the less will do.
FULL, _LESS_EACH, _LEAST = 0.9, 0.03, 0.5

#: What a guess aims at.
_AIM = 0.96

#: After so many questions a batch with anything will do.
_PATIENT = 48

#: How a first guess grows.
_GROWTH = 8


class Bound(NamedTuple):
    """Between which timestamps a batch is full.

    Attributes
    ----------
    low : int
        What lies at or below fits into the batch.
    high : int
        What lies at or below is more than fits.
    asked : int
        Where the load was asked that has what lies at or below ``low``.
    """

    low: int
    high: int
    asked: int


def find_bound(
    load: Callable[[int], float],
    next_after: Callable[[int], int | None],
    low: int,
    high: int,
    drift: int,
    step: int,
) -> Bound:
    """Find a bound, either tight up to the drift, or such that what lies below fills the batch.

    Parameters
    ----------
    load : callable
        What lies at or below a timestamp, as a share of what fits; rises. Asks the brokers.
    next_after : callable
        The lowest timestamp that a batch leaves which reads up to one where ``load`` was asked.
    low, high : int
        With at most a load of 1, and with more.
    drift : int
        What lies no further apart than this needs no order.
    step : int
        The first guess is so far above ``low``.
    """
    asked, below, above = low, load(low), 0.0  # of `high`; 0: it was not asked, and may be far away
    low = _raised(low, next_after(low), high)
    questions = misses = 0
    while high - low > 1 + drift and below < max(_LEAST, FULL - _LESS_EACH * questions):
        if below > 0 and questions >= _PATIENT:
            break
        span = high - low
        if not above:
            # Where data lie close together at once, however far `high` is away.
            guess = low + step
            step *= _GROWTH
            if guess >= high:
                guess = low + span // 2
        elif misses >= 4 and not below:
            guess = low + 1 + drift  # a lump of equal timestamps; the next one decides
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
    """As high as nothing more lies at or below."""
    return low if following is None else min(max(low, following - 1), high - 1)
