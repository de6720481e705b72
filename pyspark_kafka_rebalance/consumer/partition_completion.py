"""PartitionCompletion: which handed out records of one partition are processed.

Asynchronous workers finish out of order; a committed position may only pass what is complete
(KIP-983, problem 4). Offsets are kept as ranges: memory grows with the gaps between what is
pending (out of order workers, compaction, transaction markers), not with the records.

Invariants:
 1. What is pending was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or where polls go on if that is lower:
    after a seek back they hand out again what was complete.
 3. What was never handed out (a forward seek, compaction) holds nothing up. Who takes over has not
    sought: what a seek left out is still to be processed there.
 4. Handed out again after a seek, a record is pending again.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence

from .gaps import Gap, runs, without
from .inherited import Inherited
from .leader_epochs import UNKNOWN, LeaderEpochs
from .remaining import Remaining


class PartitionCompletion:
    """The handed out records of one partition, from the first after its assignment.

    Parameters
    ----------
    epochs : LeaderEpochs, optional
        What is known of the partition's before its first hand-out.
    """

    def __init__(self, epochs: LeaderEpochs | None = None) -> None:
        # Disjoint and not touching, in order: first offset, and the offset after the last.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lowest: int | None = None
        self._next: int | None = None
        self._continues_at: int | None = None  # where polls go on
        self._epochs = LeaderEpochs() if epochs is None else epochs
        self._singly = False  # whether records were completed one by one
        self._left_out: list[Gap] = []  # by forward seeks, above the position to commit
        #: Whether the position to commit is lower than it was, and nobody was told.
        self.moved_back = False
        #: What the owner before had completed out of order; those records are not handed out.
        self.inherited: Inherited | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after the highest that was handed out; None before the first."""
        return self._next

    @property
    def continues_at(self) -> int | None:
        """Where polls go on unless the application seeks; None before the first."""
        return self._continues_at

    def reached(self, offset: int) -> bool:
        """Whether the offset lies between the lowest and the highest that were handed out.

        Those between that do not exist are not remembered, and count as handed out, as does what a
        forward seek left out.
        """
        return (
            self._lowest is not None
            and self._next is not None
            and (self._lowest <= offset < self._next)
        )

    @property
    def position(self) -> int | None:
        """The offset to commit, exclusive (invariant 2); None before the first hand-out."""
        if self._next is None or self._continues_at is None:
            return None
        after = self._continues_at
        if self.inherited is not None:
            after = self.inherited.remaining.next_from(after)
        return min(self._starts[0], after) if self._starts else after

    @property
    def any_pending(self) -> bool:
        """Whether something that was handed out is not complete."""
        return bool(self._starts)

    def is_complete(self, offset: int) -> bool:
        """Whether the record at this offset, which polls have passed, is processed."""
        if self._continues_at is None or offset >= self._continues_at:
            return False
        if self.inherited is not None and offset not in self.inherited.remaining:
            return True
        at = bisect_right(self._starts, offset) - 1
        pending = at >= 0 and offset < self._ends[at]
        return not pending and not any(start <= offset < end for start, end in self._left_out)

    def remaining(self, offset: int) -> tuple[Remaining, int]:
        """What is left to process when this offset is committed, and the highest leader epoch.

        Everything from where polls go on, and what is pending below. Without gaps while nobody
        completes records one by one: what is left out of a log is nothing to tell of.
        """
        inherited = self.inherited
        if self._continues_at is None or not (self._singly or inherited):
            return Remaining(offset), -1
        pending = [*zip(self._starts, self._ends, strict=True), *self._left_out]
        remaining = Remaining.of(pending, max(offset, self._continues_at))
        complete_to = _last_complete(pending, self._continues_at)
        epoch = self._epochs.of(complete_to)
        if inherited is not None:
            remaining = remaining.merge(inherited.remaining)
            if self._lowest is not None and complete_to <= self._lowest:
                epoch = inherited.leader_epoch  # none of ours is complete
            known = epoch >= 0 and inherited.leader_epoch >= 0
            epoch = max(epoch, inherited.leader_epoch) if known else -1
        remaining = remaining.trim(offset)
        if offset not in remaining:  # committed lower than it might be; the rest is on its way
            between = remaining.between(offset, remaining.live)
            in_order = not between or between == (Gap(between[0].start, remaining.live),)
            if in_order:
                return Remaining(offset), -1
            remaining = Remaining.of([(offset, offset + 1), *between], remaining.live)
        return remaining, epoch

    def hand_out(self, offsets: Sequence[int], leader_epoch: int = -1) -> None:
        """These offsets, ascending, are in processing now; also again, after a seek back."""
        if not offsets:
            return
        before = self.position
        self._epochs.learn(offsets[0], offsets[-1] + 1, leader_epoch)
        for start, end in runs(offsets):
            self._add(start, end)
        after = offsets[-1] + 1
        self._lowest = offsets[0] if self._lowest is None else min(self._lowest, offsets[0])
        self._next = after if self._next is None else max(self._next, after)
        self._continues_at = after
        if before is not None:
            position = self.position or 0
            self.moved_back = self.moved_back or position < before
            self._epochs.forget_below(min(before, position))

    def seek(self, offset: int) -> None:
        """The application said that polls go on from this offset."""
        after, position = self._continues_at, self.position or 0
        if after is not None and offset > after:
            self._left_out = [gap for gap in self._left_out if gap.end > position]
            self._left_out.append(Gap(after, offset))
            self._epochs.learn(after, offset, UNKNOWN)  # there may be records

    def skip(self, offset: int) -> None:
        """Polls go on from this offset, which is behind a record that cannot be read."""
        self.seek(offset)
        self.go_on(offset)

    def go_on(self, offset: int) -> None:
        """Polls have come to here, and what they passed is not handed out."""
        self._continues_at = offset

    def truncate(self, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self.inherited = None
        at = bisect_right(self._starts, offset - 1)
        del self._starts[at:], self._ends[at:]
        if self._ends and self._ends[-1] > offset:
            self._ends[-1] = offset
        self._epochs.truncate(offset)
        self._left_out = without(self._left_out, offset)
        if self._next is not None:
            self._next = min(self._next, offset)
        if self._lowest is not None:
            self._lowest = min(self._lowest, offset)
        self._continues_at = offset

    def complete(self, offset: int) -> None:
        """The record at this offset is processed; again is fine."""
        self._singly = True
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

    def complete_below(self, offset: int) -> bool:
        """Everything below this next offset is processed.

        Returns
        -------
        bool
            Whether workers complete records one by one, and may have completed more.
        """
        at = bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset
        return self._singly or self.inherited is not None

    def _add(self, start: int, end: int) -> None:
        """Add a range, merged with what it touches."""
        if self._left_out:
            self._left_out = without(self._left_out, start, end)
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


def _last_complete(pending: Iterable[tuple[int, int]], end: int) -> int:
    """The offset after the last one below this end that is in none of these ranges.

    What was skipped behind it is of an unknown leader epoch, which says nothing of it.
    """
    for start, after in sorted(pending, reverse=True):
        if after < end:
            break
        end = min(end, start)
    return end
