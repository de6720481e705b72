"""Waiting: how long the next record of a partition has been waiting, at most; pure.

The timestamp of an unread record is not known. But the record arrived after any time at which the
log ended at or below its offset, and after the record before it. The later of the two bounds how
long it has been waiting. Clocks may run ahead, so neither counts as later than the first time at
which the log's end was seen beyond the record: by then it was there.
"""

from __future__ import annotations

from bisect import bisect_right

#: How many log ends are kept with their times; between them the answer is less exact.
_KEPT = 64


class Waiting:
    """The log ends seen of one partition, with their times.

    Times are in seconds, on the clock of the records' timestamps.
    """

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._from: list[float] = []  # when the log was first seen to end there
        self._at: list[float] = []  # when it was last seen to end there

    def ended_at(self, end: int, at: float) -> None:
        """Note that the log ended at this offset at this time."""
        if self._ends and end < self._ends[-1]:  # truncated, or recreated
            self._ends, self._from, self._at = [], [], []
        if self._ends and end == self._ends[-1]:
            self._at[-1] = max(at, self._at[-1])
            return
        self._ends.append(end)
        self._from.append(at)
        self._at.append(at)
        if len(self._ends) > _KEPT:
            del self._ends[1:-1:2], self._from[1:-1:2], self._at[1:-1:2]

    def since(self, position: int, record_before_at: float | None) -> float | None:
        """Return the earliest time since which the record at ``position`` may have been waiting.

        If nothing bounds that, return when it was first known to wait; None if no record is known
        to wait. ``position`` is the next offset to be read: of the ends at or below it, only the
        last is kept. ``record_before_at`` is the timestamp of the record before, if known.
        """
        found = bisect_right(self._ends, position) - 1
        if not self._ends or found == len(self._ends) - 1:
            return None
        if found > 0:
            del self._ends[:found], self._from[:found], self._at[:found]
            found = 0
        hints = [self._at[0]] if found == 0 else []
        if record_before_at is not None:
            hints.append(record_before_at)
        return min(max(hints), self._from[found + 1]) if hints else self._from[0]
