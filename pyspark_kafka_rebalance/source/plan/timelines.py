"""Timeline: the timestamps of one partition that are read with its records. Pure.

If look-ups do not help (``event_time`` says when), the first rows from the position on are read,
and replace the brokers' answers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

#: Below every timestamp that is requested.
BEFORE_ALL = -1


@dataclass(frozen=True, slots=True)
class Rows:
    """Offsets and timestamps of records that were read for their timestamps, in order."""

    offsets: Sequence[int]
    timestamps: Sequence[int]
    end: int  #: where reading ended, exclusive
    last_told: int = -1  #: offset of the last record with a timestamp; -1 if none has one
    #: For a short range: whether it, or a range read with it, has records of transactions.
    has_transactions: bool = False

    def without_beyond(self, horizon: int, reached: int = BEFORE_ALL) -> Rows:
        """Return rows whose timestamps never fall.

        Each row gets the latest timestamp so far that is not past the horizon; before all of these
        that was ``reached``.
        """
        known = [at if at <= horizon else BEFORE_ALL for at in self.timestamps]
        told = [o for o, at in zip(self.offsets, known, strict=True) if at > BEFORE_ALL]
        late = list(accumulate(known, max, initial=reached))[1:]
        return Rows(self.offsets, late, self.end, told[-1] if told else -1)


class Timeline:
    """Answers look-ups for one partition from the rows that were read."""

    def __init__(self) -> None:
        self.position, self.until = -1, -1  #: there is something to read up to this, exclusive
        self.rows: Rows | None = None  #: from the position on; None while they are to be read
        self.reached = BEFORE_ALL  #: the latest timestamp before the position, as far as read

    def begin(self, position: int, until: int) -> None:
        """Start a batch, at or past the previous one, that ends at ``until`` at most."""
        moved = position > self.position
        self.position, self.until = position, until
        rows = self.rows
        if rows is None:
            return
        if passed := bisect_left(rows.offsets, position):
            self.reached = rows.timestamps[passed - 1]
        # The remaining rows have no timestamp: read on.
        untold = moved and rows.last_told < position and rows.end < until
        if rows.end <= position or untold:
            self.rows = None

    def end_at(self, timestamp: int) -> tuple[int, int | None]:
        """Return where it ends if nothing at or after this is read, and the next timestamp."""
        if self.rows is not None:
            at = bisect_left(self.rows.timestamps, timestamp)
            at = max(at, bisect_left(self.rows.offsets, self.position))
            if at < len(self.rows.offsets) and self.rows.offsets[at] < self.until:
                return self.rows.offsets[at], self.rows.timestamps[at]
        return self.readable_until, None

    @property
    def readable_until(self) -> int:
        """Up to where a batch may read at most."""
        return self.position if self.rows is None else min(self.rows.end, self.until)

    @property
    def top(self) -> int | None:
        """The latest timestamp of the rows that are still to be planned.

        None if none of these records has a timestamp; if there are none, the timestamp that the
        partition had reached before.
        """
        if self.rows is None or not self.rows.offsets or self.rows.offsets[-1] < self.position:
            return self.reached
        return self.rows.timestamps[-1] if self.rows.last_told >= self.position else None
