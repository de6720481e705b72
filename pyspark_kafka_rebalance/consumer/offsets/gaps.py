"""Gaps: sets of offsets as ordered ranges. Pure."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple


class Gap(NamedTuple):
    """Offsets from ``start``, inclusive, to ``end``, exclusive."""

    start: int
    end: int


#: Keys to search for a gap by one of its ends.
start_of = attrgetter("start")
end_of = attrgetter("end")


def holding(gaps: Sequence[Gap], offset: int) -> Gap | None:
    """The gap that holds the offset, if any; the gaps are in order and disjoint."""
    at = bisect_right(gaps, offset, key=end_of)
    return gaps[at] if at < len(gaps) and gaps[at].start <= offset else None


def runs(offsets: Sequence[int]) -> Iterator[Gap]:
    """Turn ascending offsets into gaps."""
    if not offsets:
        return
    start = previous = offsets[0]
    if offsets[-1] - start == len(offsets) - 1:
        previous = offsets[-1]
    else:
        for offset in offsets[1:]:
            if offset != previous + 1:
                yield Gap(start, previous + 1)
                start = offset
            previous = offset
    yield Gap(start, previous + 1)


def joined(pieces: Iterable[Gap]) -> Iterator[Gap]:
    """Join the pieces that touch; they come in order."""
    last: Gap | None = None
    for piece in pieces:
        if last is not None and last.end == piece.start:
            last = Gap(last.start, piece.end)
        else:
            if last is not None:
                yield last
            last = piece
    if last is not None:
        yield last


def without(pieces: Iterable[Gap], start: int, end: int | None = None) -> list[Gap]:
    """The pieces without what lies in [start, end), or from ``start`` on if there is no end."""
    left = []
    for piece in pieces:
        left.append(Gap(piece.start, min(piece.end, start)))
        if end is not None:
            left.append(Gap(max(piece.start, end), piece.end))
    return [piece for piece in left if piece.start < piece.end]


def less(pieces: Sequence[Gap], others: Iterable[Gap]) -> list[Gap]:
    """The pieces without what lies in the others; each in order and disjoint."""
    taken = [other for other in others if other.start < other.end]  # an empty one cuts nothing
    return list(common(pieces, list(outside(taken, 0, sys.maxsize))))


def above(pieces: Sequence[Gap], start: int) -> list[Gap]:
    """The part of the pieces, which are in order, at or above this offset."""
    left = list(pieces[bisect_right(pieces, start, key=end_of) :])
    if left and left[0].start < start:
        left[0] = Gap(start, left[0].end)
    return left


def outside(pieces: Iterable[Gap], start: int, end: int) -> Iterator[Gap]:
    """The part of [start, end) that is in none of the pieces, which are in order."""
    for piece in pieces:
        if start < min(piece.start, end):
            yield Gap(start, min(piece.start, end))
        start = max(start, piece.end)
    if start < end:
        yield Gap(start, end)


def common(one: Sequence[Gap], other: Sequence[Gap]) -> Iterator[Gap]:
    """What is in both; each in order and disjoint."""
    at = beside = 0
    while at < len(one) and beside < len(other):
        start = max(one[at].start, other[beside].start)
        end = min(one[at].end, other[beside].end)
        if start < end:
            yield Gap(start, end)
        if one[at].end == end:
            at += 1
        else:
            beside += 1
