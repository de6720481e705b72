"""Partition: one partition during one assignment, and Former for the assignments that ended.

PartitionCompletion: which handed out records of one partition are processed.

Asynchronous workers finish out of order, and a committed position must pass only complete records
(KIP-983, problem 4). Pending offsets are kept in an ``OffsetSet``: memory grows with the gaps
between them (out of order workers, compaction, transaction markers), not with the records. If a
backlog was set aside (KIP-333), ``SetAside`` has the part that is not handed out yet; the rest is
pending like other records.

Invariants:
 1. A pending offset was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or the offset where polls continue if that
    is lower: after a seek back, polls hand out complete records again.
 3. Offsets that were never handed out (a forward seek, compaction) hold nothing up. The next owner
    does not know of the seek, so skipped offsets stay unprocessed in commit metadata.
 4. A record that is handed out again after a seek is pending again.
 5. Offsets that are set aside also hold back the position to commit.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import PartitionsLostError
from ..offsets.commit_metadata import GroupCommit, Remaining, Told, is_ours
from ..offsets.leader_epochs import UNKNOWN, LeaderEpochs
from ..offsets.offset_set import (
    Gap,
    OffsetSet,
    Stretches,
    above,
    common,
    end_of,
    holding,
    joined,
    less,
    outside,
    runs,
    without,
)
from ..offsets.origin import Origin

log = logging.getLogger(__name__)

#: A seek to the end: beyond every record, because offsets are signed 64-bit integers.
LOG_END = 2**63 - 1


class SetAside:
    """The part of one partition that is set aside and not handed out yet (KIP-333).

    The live part is read as usual, from ``live_from`` on. A separate reader reads the gaps below
    it, lowest first.

    Invariant: unread offsets lie below the live part. They are unprocessed, so they hold back the
    position to commit whatever is reported of records beyond. They are removed only by their
    reader, by a seek or truncation to a lower offset, or when the application gives up unreadable
    records.

    The gaps are the offsets below the live position that the group has not processed; all will be
    handed out. ``live_from`` is None if nothing was ever set aside. With ``in_order``, records are
    handed out only after all lower ones, so a committed position means that everything below is
    processed, as in any consumer.
    """

    def __init__(
        self, gaps: Iterable[Gap] = (), live_from: int | None = None, in_order: bool = False
    ) -> None:
        #: The gaps not handed out yet, in order. Replaced, never mutated: it is read without a
        #: lock.
        self.unread: Sequence[Gap] = list(gaps)
        self.live_from = live_from
        self.in_order = in_order

    def __contains__(self, offset: int) -> bool:
        return holding(self.unread, offset) is not None

    def pass_to(self, end: int) -> list[Gap]:
        """Note that the reader has passed this end; return the unread ranges below it."""
        passed = without(self.unread, end)
        self.unread = above(self.unread, end)
        return passed

    def give_up(self, start: int, end: int) -> list[Gap]:
        """Stop reading [start, end); return the unread ranges in it."""
        given_up = list(common(self.unread, [Gap(start, end)]))
        self.unread = without(self.unread, start, end)
        return given_up

    def forget(self, offset: int) -> None:
        """Drop the unread offsets from this one on: truncated without having been handed out."""
        self.unread = without(self.unread, offset)

    def go_back(self, offset: int) -> None:
        """Give everything from this offset on to the live reader."""
        if self.live_from is not None:
            self.live_from = min(self.live_from, offset)
            self.forget(offset)

    def claimed_by(self, offset: int) -> tuple[Gap, ...]:
        """The ranges that a commit of this next offset marks as processed.

        A commit in the live part does not cover the gaps. A commit in a gap, or at the boundary,
        covers that gap and the gaps below. No commit covers offsets that were not handed out.
        """
        start = 0
        if self.live_from is not None and self.live_from < offset and not self.in_order:
            start = self.live_from
        return self.read_of(start, offset)

    def read_of(self, start: int, end: int) -> tuple[Gap, ...]:
        """The part of [start, end) that is not unread."""
        return tuple(outside(self.unread, start, end))


@dataclass(frozen=True, slots=True)
class Inherited:
    """The records that the previous owner had processed behind a slow one, by its last commit.

    Polls start at the committed offset and read these records again; they are left out. A record
    with a later leader epoch than the commit's is another record at the same offset: an unclean
    election truncated the log in between (KIP-320). Arrow batches do not have the epoch.

    ``offset`` is the committed one; nothing is known of records below it. ``remaining`` holds the
    unprocessed offsets from there on.
    """

    offset: int
    remaining: Remaining
    leader_epoch: int = -1  # of the highest record that was processed; -1 if unknown

    def as_seen(self, records: list[Any]) -> Inherited:
        """The same, without the records that these records' epochs prove truncated (KIP-320).

        Epochs grow with offsets. A record below the highest processed one, but of a later epoch,
        was written afterwards, and so were all records behind it.
        """
        if self.leader_epoch >= 0 and isinstance(records[0], ConsumerRecord):
            for record in records:
                if record.offset >= self.remaining.live:
                    break
                if record.leader_epoch > self.leader_epoch:
                    return replace(self, remaining=self.remaining.start_over(record.offset))
        return self

    def still_owed(self, records: list[Any]) -> list[Any]:
        """The records, or Arrow batches with the rows, that are not processed.

        Each batch yields one or none; never an empty one.
        """
        if isinstance(records[0], ConsumerRecord):
            if records[0].offset >= self.remaining.live:
                return records
            return [record for record in records if self._owes(record.offset)]
        owed = []
        for batch in records:
            offsets = batch.column("offset").to_pylist()
            rows = [row for row, offset in enumerate(offsets) if self._owes(offset)]
            if len(rows) == len(offsets):
                owed.append(batch)
            elif rows:
                owed.append(batch.take(rows))
        return owed

    def _owes(self, offset: int) -> bool:
        return offset < self.offset or offset in self.remaining


def inherit(
    partition: TopicPartition, committed: OffsetAndMetadata, bound_to: str
) -> Inherited | None:
    """The progress beyond a commit's offset, from its metadata; None if there is none."""
    remaining, told, leader_epoch = Remaining.decode(committed.offset, committed.metadata, bound_to)
    if told is Told.GAPS:
        log.info(
            "%s-%d: from offset %d on, %d of %d records may already be processed and are skipped",
            *partition,
            committed.offset,
            remaining.live - committed.offset - remaining.count(remaining.live),
            remaining.live - committed.offset,
        )
        return Inherited(committed.offset, remaining, leader_epoch)
    if told is not Told.NOTHING:
        warn_of(partition, committed, told)
    return None


def carried_on(committed: OffsetAndMetadata, bound_to: str) -> Origin | None:
    """What a consumer that goes on from this commit says of the queries that had the partition."""
    return GroupCommit.decode(committed.offset, committed.metadata, bound_to).carried_on()


def is_described(committed: OffsetAndMetadata) -> bool:
    """Whether this commit carries the application's own metadata."""
    return bool(committed.metadata) and not is_ours(committed.metadata)


def warn_of(partition: TopicPartition, committed: OffsetAndMetadata, told: Told) -> None:
    """Log why a commit's metadata are ignored."""
    log.warning(
        "%s-%d: records from offset %d on may come again: the commit's metadata %s",
        *partition,
        committed.offset,
        told.value,
    )


class Former:
    """How far one partition was handed out under ended assignments and from truncated logs.

    Made with the partition's first assignment and kept; guarded by the lock of ``HandOuts``.

    A worker may still process a record of an ended assignment or a truncated log. Its late report
    must not count for records that were handed out later.

    Invariant: a report counts for the assignment that handed the record out. Live records that were
    in processing next to a gap when their assignment ended (KIP-333) may lie in a gap now. The
    first report of a next offset among them completes only those records, not the offsets below.
    Each worker gets this once: a repeated report, or one after a refusal, counts as any other.
    """

    __slots__ = ("_live", "_over", "_refused", "leaving", "partition")

    def __init__(self, partition: TopicPartition) -> None:
        self.partition = partition
        #: The assignment whose revoke is completed, until its last commits are answered.
        self.leaving: Partition | None = None
        # The highest next offset handed out; -1 if there was none.
        self._over = -1
        # Live records whose workers have not reported yet; in order and disjoint.
        self._live: list[Gap] = []
        # The highest next offset that was refused after the loss, until the assignment is over.
        self._refused = 0

    def note(self, next_offset: int | None, live: Gap | None = None) -> None:
        """Note an ended assignment or a truncation, with hand-outs up to here (exclusive), if any.

        ``live`` are its live records in processing next to a gap.
        """
        if next_offset is not None:
            self._over = max(next_offset, self._over)
        refused, self._refused = self._refused, 0
        if live is not None and refused < live.end:
            live = Gap(max(live.start, refused), live.end)
            self._live = sorted([*without(self._live, *live), live])

    def refused(self, offset: int, is_over: bool = True) -> None:
        """Note that a worker's next offset is refused: it has reported.

        Without ``is_over``, the partition is lost but its assignment not over yet.
        """
        live = holding(self._live, offset - 1)
        if live is not None:
            self.hear([Gap(live.start, offset)])
        elif not is_over:
            self._refused = max(offset, self._refused)

    def hear(self, records: Sequence[Gap]) -> None:
        """Workers have reported the records in these ranges, which are in order."""
        if self._live:
            self._live = less(self._live, records)

    def claims(self, aside: SetAside, offset: int) -> tuple[Gap, ...]:
        """The records that a commit of this next offset completes; its worker has reported."""
        live = holding(self._live, offset - 1)
        claims = aside.claimed_by(offset) if live is None else aside.read_of(live.start, offset)
        self.hear(claims)
        return claims

    def is_awaited(self, offset: int) -> bool:
        """Whether a worker of those live records, yet to report, may name this next offset."""
        return bool(self._live) and holding(self._live, offset - 1) is not None

    def refuse(self, offset: int, handed_out: int) -> None:
        """Raise PartitionsLostError if this next offset is of a truncated or lost record.

        Committing it beyond the later hand-outs would hide every record that is written there.

        ``offset`` is the one to commit. Polls have since reached ``handed_out``, 0 if they read
        nothing below ``offset``; both are exclusive.
        """
        if handed_out < offset <= self._over:
            self.refused(offset)
            raise PartitionsLostError(
                f"nothing committed: {self.partition.topic}-{self.partition.partition} at {offset} "
                f"is past {handed_out}, the offset that polls have reached since it was assigned "
                "again, or since its log was truncated or read again"
            )

    def why_not(self, offset: int) -> Exception:
        """The error to raise for an offset that was not handed out in this assignment.

        PartitionsLostError if it was handed out before, ValueError if never.
        """
        name = f"{self.partition.topic}-{self.partition.partition}"
        if offset < self._over:
            return PartitionsLostError(
                f"nothing committed: {name} was lost or revoked after offset {offset} was handed "
                "out, and assigned again, or its log was truncated"
            )
        return ValueError(f"{name}: offset {offset} was not handed out")


class PartitionCompletion:
    """Tracks which handed out records of one assigned partition are processed."""

    def __init__(self, epochs: LeaderEpochs | None = None) -> None:
        self.pending = OffsetSet()  # offsets that were handed out and are not complete
        self._stretches = Stretches()
        self.aside = SetAside()  # the backlog that waits for a reader of its own
        #: The offset after the highest that was handed out; None before the first.
        self.next_offset: int | None = None
        #: Where polls continue unless the application seeks; None before the first.
        self.continues_at: int | None = None
        self._lowest: int | None = None
        self._epochs = LeaderEpochs() if epochs is None else epochs
        self.singly = False  # whether records were completed one by one
        self._left_out: list[Gap] = []  # by forward seeks, above the position to commit
        self._sought_to: int | None = None  # by the application, with nothing handed out since then
        #: Whether the position to commit has moved back and that is not reported yet.
        self.moved_back = False
        #: The records that the previous owner completed out of order; they are not handed out.
        self.inherited: Inherited | None = None

    @property
    def begun(self) -> bool:
        """Whether polls returned records or a backlog was set aside."""
        return self.continues_at is not None

    def reached(self, offset: int) -> bool:
        """Whether the offset was handed out under the current assignment."""
        inherited = self.inherited
        if inherited is not None and inherited.offset <= offset not in inherited.remaining:
            return False
        return offset in self._stretches

    def reached_below(self, offset: int, position: int | None) -> int:
        """The end of the polled stretch that starts below this next offset; 0 without one.

        ``position`` is the current one of polls, if it is known and not the result of a seek.
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
        """The offset to commit if polls continue at ``sought``, with nothing handed out there yet.

        Offsets that polls have read are complete unless they are pending, even beyond the last
        position of polls: after a seek back and forward again, they are not read again.
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
        """The unprocessed offsets if this offset is committed, and the highest leader epoch.

        Unprocessed are all offsets from where polls continue, and the pending ones below. There are
        gaps only if records are completed one by one, inherited or caught up: holes in a log are
        not reported.
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
        if offset not in remaining:  # lower than possible; the commit of the rest is in flight
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
            self.moved_back = True  # from any offset of the group
        if after is not None and offset > (start := self._stretches.end_from(after)):
            self._left_out = [gap for gap in self._left_out if gap.end > position]
            self._left_out.append(Gap(start, offset))
            self._epochs.learn(start, offset, UNKNOWN)  # there may be records

    def skip(self, offset: int) -> None:
        """Let polls continue at this offset, which follows an unreadable record."""
        self.seek(offset)
        self.continues_at, self._sought_to = offset, None

    def disinherit(self) -> None:
        """Remove the records that the previous owner completed from the polled stretches."""
        if self.inherited is not None:
            remaining = self.inherited.remaining
            below, beyond = Gap(0, self.inherited.offset), Gap(remaining.live, sys.maxsize)
            owed = joined([below, *remaining.gaps, beyond])
            self._stretches.keep(owed)
            self.inherited = None

    def go_on(self, offset: int) -> None:
        """Note that polls have reached this offset, and hand out nothing that they passed."""
        inherited_from = offset if self.inherited is None else self.inherited.offset
        start = inherited_from if self.continues_at is None else self.continues_at
        if start < offset:
            self._stretches.add(start, offset)
        self.continues_at = offset

    def truncate(self, offset: int) -> None:
        """Forget the records from this offset on: they were truncated."""
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

        Returns whether workers complete records one by one, and may have completed more.
        """
        self.pending.discard_below(offset)
        return self.singly or self.inherited is not None

    # -- the backlog set aside (KIP-333)
    # --------------------------------------------------------------

    def set_aside(self, remaining: Remaining, in_order: bool) -> None:
        """Before any hand-out: let polls start at the live position, next to the gaps' reader."""
        self.aside = SetAside(remaining.gaps, remaining.live, in_order)
        self.continues_at = remaining.live

    @property
    def catches_up(self) -> bool:
        """Whether any offset below the live part is unprocessed."""
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

        The offsets are ascending, and each was unread. Offsets that the reader passed without a
        record do not exist.
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
        """Give up the unread offsets in [start, end); the next owner may read them."""
        self._left_out += self.aside.give_up(start, end)

    def end_order(self) -> None:
        """Give an ordered backlog back to the live reader, because the application sought.

        In order there is only one position. As with any seek, unread offsets are left out unless
        polls reach them after all.
        """
        aside = self.aside
        if aside.in_order and aside.unread and aside.live_from is not None:
            self.continues_at = aside.unread[0].start
            self.leave_out(0, aside.live_from)

    def handed_out_so_far(self) -> tuple[Gap, ...]:
        """All offsets that were handed out, and the offsets between them."""
        return self.aside.read_of(0, self.next_offset or 0)

    def with_processed(self, claims: Iterable[Gap]) -> PartitionCompletion:
        """A copy in which all handed out records in these ranges are processed."""
        other = copy(self)
        other.pending = self.pending.copy()
        other.pending.discard_all(claims)
        return other

    def _begin(self, start: int, end: int) -> None:
        """Add these offsets to the pending ones."""
        if self._left_out:
            self._left_out = without(self._left_out, start, end)
        self.pending.add(start, end)


class Partition:
    """One partition during one assignment, made when something is first known of it.

    Guarded by the lock of ``HandOuts``. The polling thread writes hand-outs, any thread
    completions. Dropped when the assignment ends: ``former`` judges late reports.
    """

    __slots__ = (
        "bound",
        "completion",
        "epochs",
        "former",
        "is_sought",
        "origin",
        "sought_to",
        "unreadable",
        "unreadable_gap",
    )

    def __init__(self, former: Former) -> None:
        self.former = former  # the partition's assignments before this one
        #: The leader epochs of the records, whether they are handed out or not.
        self.epochs = LeaderEpochs()
        #: The records that were handed out or set aside, and which of them are processed.
        self.completion = PartitionCompletion(self.epochs)
        self.is_sought = False  # whether the application sought, with nothing handed out since then
        #: Where polls continue after that seek. None is the start of the log, wherever that is, and
        #: LOG_END its end, until a poll has found it.
        self.sought_to: int | None = None
        #: The binding of the gaps in commit metadata, from the first records on (``bound_to``).
        #: Before, that of a completed revoke whose last commits are unanswered, if any.
        self.bound: str | None = None if former.leaving is None else former.leaving.bound
        self.origin: Origin | None = None  #: of its commits, if queries had the partition before
        #: The record at which polls stopped, and which the application may skip.
        self.unreadable: Gap | None = None
        #: The same for the gaps' reader (KIP-333); up to LOG_END if it was out of range.
        self.unreadable_gap: Gap | None = None

    # -- the assignment ends ----------------------------------------------------------------------

    def end(self) -> None:
        """End the assignment, or forget its hand-outs."""
        self.former.leaving = None
        if self.completion.begun:
            self.former.note(self.completion.next_offset, self.completion.live_in_processing())

    def leave(self) -> None:
        """As :meth:`end`, but the last commits are unanswered."""
        self.end()
        self.former.leaving = self

    def emptied(self) -> Partition:
        """The same assignment with its topic and ``unreadable``, but nothing handed out."""
        other = Partition(self.former)
        other.bound, other.unreadable = self.bound, self.unreadable
        other.origin = self.origin
        return other

    # -- hand-outs --------------------------------------------------------------------------------

    def hand_out(self, offsets: Sequence[int], leader_epoch: int = -1) -> None:
        """A poll returned the records at these offsets, ascending, all of one leader epoch."""
        if self.is_sought:
            if offsets:
                self.completion.seek(offsets[0])
            self.is_sought, self.sought_to = False, None
        self.completion.hand_out(offsets, leader_epoch)

    def inherited_at(self, offset: int) -> Inherited | None:
        """The records to leave out of those that a poll returned from this offset on.

        None once the application has sought, or if the log was truncated.
        """
        found = self.completion.inherited
        if found is not None and (
            offset < found.offset or self.is_sought or self.truncated_at(offset)
        ):
            self.completion.disinherit()
            return None
        return found

    def truncated_at(self, offset: int) -> bool:
        """Whether polls that continue here prove a truncation (``Completion``, invariant 2)."""
        continues_at = self.completion.continues_at
        return continues_at is not None and offset < continues_at and not self.is_sought

    def written_anew_from(self, offset: int, leader_epoch: int) -> int | None:
        """The offset from which this epoch proves handed out records truncated; or None.

        After a seek back, polls read on from below the truncation. Offsets skipped by a later seek
        forward may be from either epoch; assume the new one.
        """
        if not self.completion.begun or not self.epochs.is_news(offset, leader_epoch):
            return None
        return min(offset, self.completion.continues_at or 0)

    def truncate(self, offset: int) -> None:
        """Forget the records from this offset on: others may have replaced them."""
        self.former.note(self.completion.next_offset)
        self.completion.truncate(offset)

    # -- seeks ------------------------------------------------------------------------------------

    def seek(self, offset: int | None = None) -> None:
        """The application sought: polls continue at this offset.

        None is the start of the log, and LOG_END its end; this is called again when a poll has
        found it.
        """
        self.sought_to, self.is_sought = offset, True
        self.completion.disinherit()
        self.completion.end_order()

    def skip(self, start: int, end: int) -> None:
        """The application gave up the records in [start, end), where polls stopped.

        Records behind them that the previous owner completed are left out as before. The next owner
        may be able to read the ones given up.
        """
        if self.is_sought:
            return
        if self.completion.begun:
            self.completion.skip(end)
        else:
            self.epochs.learn(start, end, UNKNOWN)

    def leads_to(self, position: int) -> bool:
        """Whether this position of polls is the result of a seek to an offset that was unknown."""
        return self.is_sought and (self.sought_to is None or self.sought_to > position)

    def is_below(self, position: int) -> bool:
        """Whether polls continue below this position after a seek, with nothing handed out yet."""
        return self.is_sought and (self.sought_to is None or self.sought_to < position)

    # -- completion -------------------------------------------------------------------------------

    def position(self, claims: Sequence[Gap] = ()) -> int | None:
        """The offset to commit, exclusive; None before the first hand-out.

        After a seek back it is where polls continue, or None while that is unknown; after a seek
        forward, the end of the contiguous hand-outs before it. Handed out records in ``claims``
        count as processed.
        """
        found = self.completion.with_processed(claims) if claims else self.completion
        position = found.position
        if position is None or not self.is_sought:
            return position
        if self.sought_to is None:
            return None
        return position if self.sought_to == LOG_END else found.position_from(self.sought_to)

    def remaining(self, offset: int, claims: Sequence[Gap] = ()) -> tuple[Remaining, int]:
        """The unprocessed offsets if this offset is committed, and the highest leader epoch.

        After a seek, all offsets from where polls continue are unprocessed.
        """
        found = self.completion.with_processed(claims) if claims else self.completion
        remaining, leader_epoch = found.remaining(offset)
        if self.is_sought:
            remaining = remaining.start_over(max(offset, self.sought_to or 0))
        return remaining, leader_epoch

    def unread(self) -> Sequence[Gap]:
        """The gaps that are set aside and not handed out yet, in order.

        After a seek, only those below the sought offset. The live reader takes over the rest with
        its first records; until then the application may undo the seek.
        """
        unread = self.completion.aside.unread
        return without(unread, self.sought_to or 0) if self.is_sought else unread

    def complete(self, offsets: Sequence[int]) -> int | None:
        """The records at these offsets are processed; see ``Completion.complete``."""
        found = self.completion
        for offset in offsets:
            if not found.reached(offset):
                raise self.former.why_not(offset)
        before = self.position()
        for offset in offsets:
            found.complete(offset)
        after = self.position()
        if after is None:
            found.moved_back = True
            return None
        if after == before:
            if not found.moved_back or self.is_below(found.position or 0):
                return None
            continues_at = found.continues_at or 0
            if not any(offset < continues_at for offset in offsets):
                return None
        found.moved_back = False
        return after

    def complete_below(self, offset: int) -> int | None:
        """Everything below this next offset is processed; returns the offset to commit, if any."""
        found, former = self.completion, self.former
        if found.begun and (found.catches_up or former.is_awaited(offset)):
            found.pending.discard_all(former.claims(found.aside, offset))
            return self.position()
        # Without workers, commit no more than was asked for, even over offsets without records.
        if found.begun and found.complete_below(offset):
            return max(offset, self.position() or 0)
        return offset

    def refuse_truncated(self, offset: int, position: int | None) -> None:
        """Raise PartitionsLostError if this next offset is of a truncated or lost record.

        See ``Completion.refuse_truncated``; ``position`` is that of polls.
        """
        found, sought = self.completion, self.is_sought
        stands = offset == position and not found.aside.unread
        if not stands and not (sought and offset == self.sought_to):
            reached = found.reached_below(offset, None if sought else position)
            self.former.refuse(offset, reached)


def _last_complete(pending: Iterable[Gap], end: int) -> int:
    """The offset after the last one below this end that is outside these ranges.

    Offsets skipped after it have an unknown leader epoch, which must not hide its own.
    """
    for start, after in sorted(pending, key=end_of, reverse=True):
        if after < end:
            break
        end = min(end, start)
    return end
