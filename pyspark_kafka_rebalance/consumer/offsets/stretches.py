"""Stretches: the ranges that polls of one partition have read without a seek in between. Pure.

Only these offsets belong to the current assignment: a late worker of the previous assignment may
name any. Offsets in a stretch that do not exist are not remembered, and are treated as handed out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .offset_set import OffsetSet

#: Bounds the memory for an application that seeks forward again and again.
_MOST = 1_000


class Stretches(OffsetSet):
    """The offsets that polls have read; of too many stretches, the lowest two become one."""

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
        """How far polls read in the stretch that starts below this next offset; 0 without one.

        Parameters
        ----------
        offset : int
            Exclusive.
        stand_at : int
            The position of polls, as of the last hand-out.
        read_to : int or None
            The position of polls now, if it is known and they were not sought to it.
        """
        at = bisect_left(self._starts, offset) - 1
        if at < 0:
            return 0
        start, end = self._starts[at], self._ends[at]
        return max(end, read_to or 0) if start <= stand_at <= end else end
