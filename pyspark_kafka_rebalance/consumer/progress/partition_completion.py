"""PartitionCompletion: which handed out records of one partition are processed.

Asynchronous workers finish out of order, and a committed position must pass only what is complete
(KIP-983, problem 4). Pending offsets are kept in an ``OffsetSet``: memory grows with the gaps
between them (out of order workers, compaction, transaction markers), not with the records. If a
backlog was set aside (KIP-333), its part that is not handed out yet is in ``SetAside``; what was
handed out of it is pending like anything else.

Invariants:
 1. A pending offset was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or the offset where polls go on if that is
    lower: after a seek back, polls hand out again what was complete.
 3. What was never handed out (a forward seek, compaction) holds nothing up. The next owner has not
    sought: there, what a seek left out is still to be processed.
 4. A record that is handed out again after a seek is pending again.
 5. What is set aside also holds back the position to commit.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from copy import copy

from ..offsets.commit_metadata import Remaining
from ..offsets.gaps import Gap, end_of, joined, runs, without
from ..offsets.leader_epochs import UNKNOWN, LeaderEpochs
from ..offsets.offset_set import OffsetSet
from ..offsets.stretches import Stretches
from .inherited import Inherited
from .set_aside import SetAside


class PartitionCompletion:
    """The handed out records of one partition, from the first after its assignment.

    Parameters
    ----------
    epochs : LeaderEpochs, optional
        The partition's leader epochs that are known before its first hand-out.
    """

    def __init__(self, epochs: LeaderEpochs | None = None) -> None:
        #: Offsets that were handed out and are not complete.
        self.pending = OffsetSet()
        self._stretches = Stretches()
        #: The backlog that waits for a reader of its own.
        self.aside = SetAside()
        #: The offset after the highest that was handed out; None before the first.
        self.next_offset: int | None = None
        #: Where polls go on unless the application seeks; None before the first.
        self.continues_at: int | None = None
        self._lowest: int | None = None
        self._epochs = LeaderEpochs() if epochs is None else epochs
        #: Whether records were completed one by one.
        self.singly = False
        self._left_out: list[Gap] = []  # by forward seeks, above the position to commit
        self._sought_to: int | None = None  # by the application; nothing was handed out since
        #: Whether the position to commit is lower than it was, and nobody was told yet.
        self.moved_back = False
        #: What the previous owner had completed out of order; those records are not handed out.
        self.inherited: Inherited | None = None

    def reached(self, offset: int) -> bool:
        """Whether the offset was handed out under the current assignment."""
        inherited = self.inherited
        if inherited is not None and inherited.offset <= offset not in inherited.remaining:
            return False
        return offset in self._stretches

    def reached_below(self, offset: int, position: int | None) -> int:
        """How far polls read in the stretch that starts below this next offset; 0 without one.

        ``position`` is where polls are now, if that is known and they were not sought there.
        """
        return self._stretches.end_below(offset, self.continues_at or 0, position)

    @property
    def position(self) -> int | None:
        """The offset to commit, exclusive (invariants 2, 5); None before the first hand-out."""
        if self.continues_at is None or (self.next_offset is None and self.aside.live_from is None):
            return None
        after = self.continues_at
        if self.inherited is not None:
            after = self.inherited.remaining.next_from(after)
        if self.aside.unread:
            after = min(after, self.aside.unread[0].start)
        first = self.pending.first
        return after if first is None or after < first else first

    def position_from(self, sought: int) -> int:
        """The offset to commit if polls go on from ``sought``, with nothing handed out there yet.

        Offsets that polls read before are complete unless they are pending, also those beyond the
        last position of polls: after a seek back and forward again, they do not come again.
        """
        after = sought
        if self.continues_at is not None and sought > self.continues_at:
            after = min(sought, self._stretches.end_from(self.continues_at))
        if self.aside.unread:
            after = min(after, self.aside.unread[0].start)
        first = self.pending.first
        return after if first is None or after < first else first

    def is_complete(self, offset: int) -> bool:
        """Whether the record at this offset, which polls have passed, is processed."""
        if self.continues_at is None or offset >= self.continues_at:
            return False
        if self.inherited is not None and offset not in self.inherited.remaining:
            return True
        left_out = any(start <= offset < end for start, end in self._left_out)
        return offset not in self.pending and not left_out and offset not in self.aside

    def remaining(self, offset: int) -> tuple[Remaining, int]:
        """What is left to process if this offset is committed, and the highest leader epoch.

        That is everything from where polls go on, and the pending offsets below. There are no gaps
        unless records are completed one by one, inherited or caught up: holes in a log are not
        reported.
        """
        inherited = self.inherited
        if self.continues_at is None or not (self.singly or inherited or self.catches_up):
            return Remaining(offset), -1
        pending = [*self.pending, *self._left_out, *self.aside.unread]
        remaining = Remaining.of(pending, max(offset, self.continues_at))
        complete_to = _last_complete(pending, self.continues_at)
        epoch = self._epochs.of(complete_to)
        if inherited is not None:
            remaining = remaining.merge(inherited.remaining)
            if self._lowest is not None and complete_to <= self._lowest:
                epoch = inherited.leader_epoch  # no record of ours is complete
            known = epoch >= 0 and inherited.leader_epoch >= 0
            epoch = max(epoch, inherited.leader_epoch) if known else -1
        remaining = remaining.trim(offset)
        if offset not in remaining:  # lower than possible; the rest is on its way
            between = remaining.between(offset, remaining.live)
            in_order = not between or between == (Gap(between[0].start, remaining.live),)
            if in_order:
                return Remaining(offset), -1
            remaining = Remaining.of([(offset, offset + 1), *between], remaining.live)
        return remaining, epoch

    def hand_out(self, offsets: Sequence[int], leader_epoch: int = -1) -> None:
        """Note that these offsets, ascending, are in processing; after a seek back, again."""
        if not offsets:
            return
        before = self.position
        after = offsets[-1] + 1
        # Without a seek, offsets that polls passed without a record do not exist.
        came_from = offsets[0] if self._sought_to is not None else self.continues_at
        came_from = offsets[0] if came_from is None else min(came_from, offsets[0])
        if came_from < offsets[0] and self.inherited is None:
            self._epochs.learn(came_from, offsets[0], self._epochs.of(came_from))
        self._epochs.learn(offsets[0], after, leader_epoch)
        if before is not None and offsets[0] < before:
            self.moved_back = True
        for start, end in runs(offsets):
            self._begin(start, end)
        self._stretches.add(came_from, after)
        self._sought_to = None
        self._lowest = offsets[0] if self._lowest is None else min(self._lowest, offsets[0])
        self.next_offset = after if self.next_offset is None else max(self.next_offset, after)
        self.continues_at = after
        if before is not None:
            self._epochs.forget_below(min(before, self.position or 0))

    def seek(self, offset: int) -> None:
        """Note that the application sought to this offset."""
        after, position = self.continues_at, self.position or 0
        self._sought_to = offset
        self.aside.go_back(offset)
        if after is None:
            self.moved_back = True  # from wherever the group stands
        if after is not None and offset > (start := self._stretches.end_from(after)):
            self._left_out = [gap for gap in self._left_out if gap.end > position]
            self._left_out.append(Gap(start, offset))
            self._epochs.learn(start, offset, UNKNOWN)  # there may be records

    def skip(self, offset: int) -> None:
        """Let polls go on from this offset, which follows a record that cannot be read."""
        self.seek(offset)
        self.continues_at, self._sought_to = offset, None

    def disinherit(self) -> None:
        """Remove what the previous owner had completed from what polls have read."""
        if self.inherited is not None:
            remaining = self.inherited.remaining
            below, beyond = Gap(0, self.inherited.offset), Gap(remaining.live, sys.maxsize)
            owed = joined([below, *remaining.gaps, beyond])
            self._stretches.keep(owed)
            self.inherited = None

    def go_on(self, offset: int) -> None:
        """Note that polls have come to here, and that what they passed is not handed out."""
        inherited_from = offset if self.inherited is None else self.inherited.offset
        start = inherited_from if self.continues_at is None else self.continues_at
        if start < offset:
            self._stretches.add(start, offset)
        self.continues_at = offset

    def truncate(self, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self.disinherit()
        self.pending.discard_from(offset)
        self._stretches.discard_from(offset)
        self.aside.go_back(offset)
        self._epochs.truncate(offset)
        self._left_out = without(self._left_out, offset)
        if self.next_offset is not None:
            self.next_offset = min(self.next_offset, offset)
        if self._lowest is not None:
            self._lowest = min(self._lowest, offset)
        self.continues_at = offset

    def complete(self, offset: int) -> None:
        """Note that the record at this offset is processed; idempotent."""
        self.singly = True
        self.pending.discard(offset)

    def complete_below(self, offset: int) -> bool:
        """Note that everything below this next offset is processed.

        Returns
        -------
        bool
            Whether workers complete records one by one, and may have completed more.
        """
        self.pending.discard_below(offset)
        return self.singly or self.inherited is not None

    # -- what is set aside (KIP-333) --------------------------------------------------------------

    def set_aside(self, remaining: Remaining, in_order: bool) -> None:
        """Before any hand-out: let polls go on at the live position, next to the gaps' reader."""
        self.aside = SetAside(remaining.gaps, remaining.live, in_order)
        self.continues_at = remaining.live

    @property
    def catches_up(self) -> bool:
        """Whether something below the live part is not processed."""
        live_from = self.aside.live_from
        if live_from is None:  # by far the most frequent case
            return False
        first = self.pending.first
        return bool(self.aside.unread) or (first is not None and first < live_from)

    def live_in_processing(self) -> Gap | None:
        """From the first pending live record to the last; None if no gap is read in parallel."""
        live_from = self.aside.live_from
        if live_from is None or self.aside.in_order or not self.catches_up:
            return None
        live = without(self.pending, 0, live_from)
        return Gap(live[0].start, live[-1].end) if live else None

    def catch_up(self, offsets: Sequence[int], end: int, leader_epoch: int = -1) -> None:
        """Note that the gaps' reader has passed this end, and handed out these offsets below it.

        The offsets are ascending, and each was unread. Offsets that the reader passed without
        finding a record do not exist.
        """
        if offsets:
            self._epochs.learn(offsets[0], offsets[-1] + 1, leader_epoch)
            for start, after in runs(offsets):
                self._begin(start, after)
            self._lowest = offsets[0] if self._lowest is None else min(self._lowest, offsets[0])
            self.next_offset = max(offsets[-1] + 1, self.next_offset or 0)
        for gap in self.aside.pass_to(end):
            self._stretches.add(*gap)
        self._epochs.forget_below(self.position or 0)

    def leave_out(self, start: int, end: int) -> None:
        """The application gave up what is unread in [start, end); the next owner may read it."""
        self._left_out += self.aside.give_up(start, end)

    def end_order(self) -> None:
        """Give an ordered backlog back to the live reader, because the application sought.

        In order there is only one position. As with any seek, unread offsets are left out unless
        polls come to them after all.
        """
        aside = self.aside
        if aside.in_order and aside.unread and aside.live_from is not None:
            self.continues_at = aside.unread[0].start
            self.leave_out(0, aside.live_from)

    def handed_out_so_far(self) -> tuple[Gap, ...]:
        """All offsets that were handed out, and those in between."""
        return self.aside.read_of(0, self.next_offset or 0)

    def with_processed(self, claims: Iterable[Gap]) -> PartitionCompletion:
        """A copy in which everything in these ranges that was handed out is processed."""
        other = copy(self)
        other.pending = self.pending.copy()
        other.pending.discard_all(claims)
        return other

    def _begin(self, start: int, end: int) -> None:
        """Add these offsets to those in processing."""
        if self._left_out:
            self._left_out = without(self._left_out, start, end)
        self.pending.add(start, end)


def _last_complete(pending: Iterable[Gap], end: int) -> int:
    """The offset after the last one below this end that is in none of these ranges.

    Offsets that were skipped after it have an unknown leader epoch, which says nothing about it.
    """
    for start, after in sorted(pending, key=end_of, reverse=True):
        if after < end:
            break
        end = min(end, start)
    return end
