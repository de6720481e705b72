"""OffsetSet: a mutable set of offsets, kept as ranges. Pure.

Memory grows with the number of ranges, not of offsets. Most additions by far extend the last range.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from .gaps import Gap, common, without


class OffsetSet:
    """Offsets as ordered, disjoint ranges that do not touch."""

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
