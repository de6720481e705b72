"""Stretches: where polls of one partition went through, without a seek in between. Pure.

Of the present assignment are these offsets, and no other: a late worker of the assignment before
may name any. Those in between that do not exist are not remembered, and count as handed out.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from .offset_set import OffsetSet

#: An application that seeks forward without end does not take memory without end.
_MOST = 1_000


class Stretches(OffsetSet):
    """The offsets that polls went through; of too many stretches, the lowest two become one."""

    def add(self, start: int, end: int) -> None:
        """Polls went from here to there."""
        super().add(start, end)
        if len(self._starts) > _MOST:
            del self._starts[1], self._ends[0]

    def end_from(self, offset: int) -> int:
        """How far polls went through from this offset on without a gap."""
        at = bisect_right(self._starts, offset) - 1
        return max(offset, self._ends[at]) if at >= 0 else offset

    def end_below(self, offset: int, stand_at: int, read_to: int | None) -> int:
        """How far polls went through of what ends at this next offset; 0 if through nothing there.

        Parameters
        ----------
        offset : int
            Exclusive.
        stand_at : int
            Where polls stand, of what was handed out.
        read_to : int or None
            Where they stand by now, if that is known and they were not sought to it.
        """
        at = bisect_left(self._starts, offset) - 1
        if at < 0:
            return 0
        start, end = self._starts[at], self._ends[at]
        return max(end, read_to or 0) if start <= stand_at <= end else end
