"""Waiting: how long the next record of a partition has been waiting, at most; pure.

Nobody knows the timestamp of a record that was not read. But it arrived after any time at which the
log had ended where it is, and after the record before it. The later of the two says how long it has
been waiting at most.
"""

from __future__ import annotations

from bisect import bisect_right

#: Of so many ends of a log the times are kept; between them it is less exact.
_KEPT = 64


class Waiting:
    """One partition. Times are seconds on one clock, the same as that of timestamps."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._at: list[float] = []  # when the log was last seen to end there

    def ended_at(self, end: int, at: float) -> None:
        """At this time the log ended there."""
        if self._ends and end < self._ends[-1]:  # truncated, or created anew
            self._ends, self._at = [], []
        if self._ends and end == self._ends[-1]:
            self._at[-1] = max(at, self._at[-1])
            return
        self._ends.append(end)
        self._at.append(at)
        if len(self._ends) > _KEPT:
            del self._ends[1:-1:2], self._at[1:-1:2]

    def since(self, position: int, record_before_at: float | None) -> float | None:
        """Since when the record at ``position`` has been waiting, at the earliest.

        Without any hint: since when it is known to wait.

        Parameters
        ----------
        position : int
            The next offset to be read. Ends far below it are forgotten.
        record_before_at : float or None
            The timestamp of the record before, if that is known.

        Returns
        -------
        float or None
            None: nothing waits, as far as is known.
        """
        found = bisect_right(self._ends, position) - 1
        if not self._ends or found == len(self._ends) - 1:
            return None
        if found > 0:
            del self._ends[:found], self._at[:found]
            found = 0
        hints = [self._at[0]] if found == 0 else []
        if record_before_at is not None:
            hints.append(record_before_at)
        return max(hints) if hints else self._at[0]
