"""LeaderEpochs: the known leader epochs of a partition's records. Pure.

A commit carries the leader epoch of the last record before its offset, and the next owner asks the
leader where that epoch ended (KIP-320). An epoch that is too low sends the next owner back to
processed records. So an epoch that was not seen is unknown, instead of the last one seen.

Invariants:
 1. Epochs never fall as offsets rise. If a new epoch contradicts a known one, the log was truncated
    in between: the known epoch belongs to truncated records, and is forgotten.
 2. Two records read in sequence have none between them (only compaction or transaction markers), so
    the lower one's epoch holds up to the higher one. Offsets that a seek skipped are learned as
    unknown.
"""

from __future__ import annotations

from bisect import bisect_right
from operator import itemgetter

#: The epoch of a record whose batch has none; an OffsetCommit also sends it for "unknown".
UNKNOWN = -1

_offset = itemgetter(0)


class LeaderEpochs:
    """Maps ranges of offsets to leader epochs. Not thread-safe; the owner holds a lock."""

    def __init__(self) -> None:
        # (first offset, epoch), in order; neighbours have different epochs.
        self._known: list[tuple[int, int]] = []
        self._end = 0  # exclusive

    def of(self, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 if it is unknown."""
        return self._at(next_offset - 1) if next_offset <= self._end else UNKNOWN

    def learn(self, start: int, end: int, epoch: int) -> None:
        """Learn that the records in [start, end) have this leader epoch (-1: unknown)."""
        known = self._known
        if known and start >= self._end and known[-1][1] == epoch:
            self._end = end  # by far the most frequent case
            return
        before = [
            (at, UNKNOWN if 0 <= epoch < past else past)
            for at, past in known[: bisect_right(known, start - 1, key=_offset)]
        ]
        after: list[tuple[int, int]] = []
        if end < self._end:
            after = [(end, self._at(end)), *known[bisect_right(known, end, key=_offset) :]]
        if any(0 <= later < epoch for _, later in after):
            after, self._end = [], end
        joined: list[tuple[int, int]] = []
        for one in (*before, (start, epoch), *after):
            if not joined or joined[-1][1] != one[1]:
                joined.append(one)
        self._known, self._end = joined, max(self._end, end)

    def is_news(self, offset: int, epoch: int) -> bool:
        """Whether a record of this epoch proves known records from this offset on truncated."""
        if epoch == UNKNOWN or offset >= self._end:
            return False
        known = self._known[max(0, bisect_right(self._known, offset, key=_offset) - 1) :]
        return any(0 <= past < epoch for _, past in known)

    def truncate(self, offset: int) -> None:
        """Forget the records from this offset on: they were truncated."""
        del self._known[bisect_right(self._known, offset - 1, key=_offset) :]
        self._end = min(self._end, offset) if self._known else 0

    def forget_below(self, offset: int) -> None:
        """Forget what only lower next offsets need; the epoch before this one stays known."""
        while len(self._known) > 1 and self._known[1][0] < offset:
            del self._known[0]

    def _at(self, offset: int) -> int:
        at = bisect_right(self._known, offset, key=_offset) - 1
        return self._known[at][1] if at >= 0 else UNKNOWN
