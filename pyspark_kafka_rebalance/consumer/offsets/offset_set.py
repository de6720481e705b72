"""OffsetSet: a set of offsets, kept as ordered ranges (``Gap``). Pure.

Memory grows with the number of ranges, not of offsets. Most additions by far extend the last range.
"""

from __future__ import annotations

import sys
from bisect import bisect_left, bisect_right
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
    """The gap that holds the offset, if any; the gaps must be in order and disjoint."""
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
    """The pieces without [start, end), or without all from ``start`` on if there is no end."""
    left = []
    for piece in pieces:
        left.append(Gap(piece.start, min(piece.end, start)))
        if end is not None:
            left.append(Gap(max(piece.start, end), piece.end))
    return [piece for piece in left if piece.start < piece.end]


def less(pieces: Sequence[Gap], others: Iterable[Gap]) -> list[Gap]:
    """The pieces without the others; each in order and disjoint."""
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
    """The offsets in both; each in order and disjoint."""
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


class OffsetSet:
    """Offsets as ordered ranges that neither overlap nor touch."""

    def __init__(self) -> None:
        # Two lists of numbers, because almost every poll only moves the last end.
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __len__(self) -> int:
        """The number of ranges."""
        return len(self._starts)

    def __iter__(self) -> Iterator[Gap]:
        return map(Gap, self._starts, self._ends)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    @property
    def first(self) -> int | None:
        """The lowest offset; None if there is none."""
        return self._starts[0] if self._starts else None

    def add(self, start: int, end: int) -> None:
        """Add [start, end), merged with the ranges that it touches."""
        if self._ends and self._ends[-1] == start:
            self._ends[-1] = end
            return
        first = bisect_left(self._ends, start)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]

    def discard(self, offset: int) -> None:
        """Remove one offset, if it is in the set."""
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._ends[at]:
            return
        start, end = self._starts[at], self._ends[at]
        if start == offset and end == offset + 1:
            del self._starts[at], self._ends[at]
        elif start == offset:
            self._starts[at] = offset + 1
        elif end == offset + 1:
            self._ends[at] = offset
        else:
            self._ends[at] = offset
            self._starts.insert(at + 1, offset + 1)
            self._ends.insert(at + 1, end)

    def discard_below(self, offset: int) -> None:
        """Remove all offsets below this one."""
        at = bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset

    def discard_from(self, offset: int) -> None:
        """Remove this offset and all above it."""
        at = bisect_left(self._starts, offset)
        del self._starts[at:], self._ends[at:]
        if self._ends and self._ends[-1] > offset:
            self._ends[-1] = offset

    def discard_all(self, ranges: Iterable[Gap]) -> None:
        """Remove the offsets that are in any of these ranges."""
        for taken in ranges:
            first = bisect_right(self._ends, taken.start)
            last = bisect_left(self._starts, taken.end)
            touched = map(Gap, self._starts[first:last], self._ends[first:last])
            left = without(touched, *taken)
            self._starts[first:last] = [gap.start for gap in left]
            self._ends[first:last] = [gap.end for gap in left]

    def keep(self, ranges: Iterable[Gap]) -> None:
        """Remove the offsets that are in none of these ranges, which are ordered and disjoint."""
        left = list(common(list(self), list(ranges)))
        self._starts = [gap.start for gap in left]
        self._ends = [gap.end for gap in left]

    def copy(self) -> OffsetSet:
        """A copy with the same offsets."""
        other = OffsetSet()
        other._starts, other._ends = list(self._starts), list(self._ends)
        return other


#: Bounds the memory for an application that seeks forward again and again.
_MOST = 1_000


class Stretches(OffsetSet):
    """The ranges that polls of one partition have read without a seek in between.

    Beyond ``_MOST`` stretches, the lowest two become one.

    Only these offsets belong to the current assignment: a late worker of the previous assignment
    may name any. Offsets in a stretch that do not exist are not remembered, and are treated as
    handed out.
    """

    def add(self, start: int, end: int) -> None:
        """Add [start, end), which polls have read."""
        super().add(start, end)
        if len(self._starts) > _MOST:
            del self._starts[1], self._ends[0]

    def end_from(self, offset: int) -> int:
        """How far polls have read from this offset on without a gap."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def end_below(self, offset: int, stand_at: int, read_to: int | None) -> int:
        """The end of the stretch that starts below this next offset; 0 without one.

        Polls were at ``stand_at`` at the last hand-out; now they are at ``read_to``, if that is
        known and not the result of a seek.
        """
        at = bisect_left(self._starts, offset) - 1
        if at < 0:
            return 0
        start, end = self._starts[at], self._ends[at]
        return max(end, read_to or 0) if start <= stand_at <= end else end
