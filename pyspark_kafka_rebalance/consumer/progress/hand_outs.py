"""HandOuts: what polls handed out and what of it may be committed, under one lock.

Any thread may report what is processed, while the polling thread hands out, gives up and loses
partitions, and the I/O loop accepts commits. One lock makes each of these one step: a commit either
counts before its partition stops being assigned, or it is refused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import PartitionsLostError, UnreadableRecordError
from ...transport.forks import RefusedLock
from ..commits.commit_by_hand import CommitByHand, EnteredCommit
from ..member_record import refuse_strangers
from ..membership.group_membership import GroupMembership
from ..membership.ownership import Ownership
from ..offsets.commit_metadata import Decoded, Remaining, Told, is_ours
from ..offsets.found_records import offsets_of, within
from ..offsets.leader_epochs import UNKNOWN
from ..offsets.offset_set import Gap, less
from ..offsets.origin import with_origin
from ..offsets.told_remaining import ToldRemaining, bound_to
from ..taken import Taken
from .completion import Completion
from .partition import LOG_END, inherit, is_described, warn_of

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class GapHandOuts:
    """Hands out what is set aside of partitions, besides the live records (KIP-333).

    A part of ``HandOuts``, under its lock. ``Completion`` knows which gaps there are and what of
    them is processed; this class applies to it what the gaps' reader and commits do.

    Invariants:
     1. A record of a gap is handed out only while it is unread. If the reader brings one that was
        lost, sought past, truncated or handed out meanwhile, it is dropped.
     2. With "live", an explicit commit of a partition that catches up carries our metadata, which
        leave out no record that is not processed. A commit below the group's own, and any commit
        with "ordered", is sent as it is.
    """

    def __init__(self, hand_outs: HandOuts) -> None:
        self._all = hand_outs
        self._completion = hand_outs._completion
        self._commits = hand_outs._membership.commits
        # Partitions whose gaps may be unread; those that are gone are dropped when looked at.
        self._behind: set[TopicPartition] = set()
        self._commits.catches_up = lambda: self.any_unread
        #: Whether anything was ever set aside.
        self.known = False
        # The records at which the gaps' reader stopped, and which the application may skip.
        self._unreadable: dict[TopicPartition, Gap] = {}

    # -- the I/O loop, when the partition is assigned ---------------------------------------------

    def left(self, partition: TopicPartition, start: OffsetAndMetadata) -> Decoded:
        """What the group has not processed, according to this commit."""
        return Remaining.decode(
            start.offset, start.metadata, self._all.truncations.bound(partition)
        )

    def set_aside(
        self,
        partition: TopicPartition,
        start: OffsetAndMetadata,
        remaining: Remaining,
        in_order: bool,
    ) -> None:
        """The partition begins at the live position; the gaps below are read in parallel."""
        told = self.left(partition, start)
        if told.told not in (Told.GAPS, Told.NOTHING):
            warn_of(partition, start, told.told)
        with self._all.lock:
            epochs = self._completion.epochs[partition]
            if start.offset > 0:
                epochs.learn(start.offset - 1, start.offset, start.leader_epoch)
            epochs.learn(start.offset, remaining.live, UNKNOWN)
            last = told.remaining.live - 1
            if told.leader_epoch >= 0 and start.offset <= last and last not in remaining:
                epochs.learn(last, last + 1, told.leader_epoch)
            self._completion.begun(partition).set_aside(remaining, in_order)
            self._all.truncations.bind(partition, self._all.truncations.bound(partition))
            self._commits.begin(partition, start.offset, is_described(start))
            self._behind.add(partition)
            self.known = True
        log.info(
            "%s-%d: polls start at offset %d; catching up on %d offsets from %d on, in %d gaps",
            *partition,
            remaining.live,
            remaining.count(remaining.live),
            remaining.committed(),
            len(remaining.gaps),
        )

    # -- any thread -------------------------------------------------------------------------------

    def lag(self, partition: TopicPartition) -> int:
        """How many offsets of the partition's gaps are not handed out."""
        with self._all.lock:
            self._all.carry_out()
            return sum(gap.end - gap.start for gap in self._completion.unread(partition))

    @property
    def any_unread(self) -> bool:
        """Whether any gap may be left to read, even one that is not to be read now."""
        return bool(self._behind)

    def leader_epoch(self, partition: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 if it is unknown.

        Also -1 in a topic that was created anew. Its epochs begin anew: with an epoch from before,
        its log would look truncated at its present end, and the records up to there would be left
        out.
        """
        truncations = self._all.truncations
        with self._all.lock:
            if truncations.bound_before(partition) not in (None, truncations.bound(partition)):
                return UNKNOWN
            return self._completion.epochs.before(partition, next_offset)

    def next_offset(self, partition: TopicPartition) -> int | None:
        """Where the partition's gaps are read next; None if there is nothing to read."""
        unread = self._completion.unread(partition)
        return unread[0].start if unread else None

    def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions to commit of the partitions that catch up; locked by the caller."""
        found = {p: self._completion.position(p) for p in partitions if self._catches_up(p)}
        return {p: position for p, position in found.items() if position is not None}

    def claim(self, by_hand: CommitByHand, everything: bool) -> None:
        """Fit a commit by hand to the partitions that catch up; locked by the caller.

        Raises ValueError for metadata of the application's own (invariant 2).
        """
        for partition, entry in list(by_hand.offsets.items()):
            found = self._completion.catching_up(partition)
            position = self._completion.position(partition)
            if found is None or position is None:
                continue
            if found.aside.in_order:
                reached = self.next_offset(partition) if everything else None
                if reached is not None:
                    epoch = self._completion.epochs.before(partition, reached)
                    by_hand.offsets[partition] = OffsetAndMetadata(reached, "", epoch)
                continue
            if entry.metadata:
                raise ValueError(
                    f"cannot commit metadata for {partition.topic}-{partition.partition} while it "
                    "catches up: the metadata hold the offsets that are not processed yet"
                )
            if entry.offset < position and not everything:
                continue
            if everything:
                claims = found.handed_out_so_far()
            else:
                claims = self._completion.before.claims(partition, found.aside, entry.offset)
            claims = (*self._all.by_hand.claims_of(partition), *claims)
            position = self._completion.position(partition, claims)
            assert position is not None
            epoch = self._completion.epochs.before(partition, position)
            by_hand.offsets[partition] = OffsetAndMetadata(position, "", epoch)
            by_hand.claims[partition] = claims

    def _catches_up(self, partition: TopicPartition) -> bool:
        return self._completion.catching_up(partition) is not None

    # -- the thread that polls --------------------------------------------------------------------

    def to_read(
        self, readable: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[Gap, ...]]:
        """The unread gaps of these partitions."""
        if not self._behind:
            return {}
        with self._all.lock:
            unread = {p: tuple(self._completion.unread(p)) for p in sorted(self._behind)}
            # A seek hides unread gaps, and may be taken back.
            known = {p: self._completion.of(p) for p in unread}
            self._behind = {p for p, found in known.items() if found and found.aside.unread}
            for partition in self._unreadable.keys() - self._behind:
                del self._unreadable[partition]
        return {p: gaps for p, gaps in unread.items() if gaps and p in readable}

    def look_at(self, records: Mapping[TopicPartition, list[Any]]) -> dict[TopicPartition, Any]:
        """The ones of the records that are unread (invariant 1); none is handed out yet."""
        with self._all.lock:
            found = {p: within(each, self._completion.unread(p)) for p, each in records.items()}
        return {p: each for p, each in found.items() if each}

    def hand_out(
        self, records: Mapping[TopicPartition, list[Any]], passed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[Any]]:
        """The reader of the gaps brought these records, and has passed these offsets.

        Returns the ones that are handed out once the poll has returned (invariant 1).
        """
        owed = {}
        with self._all.lock:
            for partition, end in passed.items():
                found = self._completion.catching_up(partition)
                unread = self._completion.unread(partition)
                if found is None or not unread:
                    continue
                unreadable = self._unreadable.get(partition)
                if unreadable is not None and end > unreadable.start:  # it could be read now
                    del self._unreadable[partition]
                kept = within(records.get(partition, []), unread)
                if kept:
                    owed[partition] = kept
                brought = list(offsets_of(kept)) if kept else []
                note = partial(self._returned, partition, brought, min(end, unread[-1].end))
                self._all.note(partition, note)
        return owed

    def _returned(
        self, partition: TopicPartition, brought: list[tuple[Sequence[int], int]], end: int
    ) -> None:
        """The poll has returned these records, and all others below this end do not exist."""
        found = self._completion.catching_up(partition)
        if found is None:
            return
        before = self._completion.position(partition)
        for offsets, epoch in brought:
            found.catch_up(offsets, offsets[-1] + 1, epoch)
        found.catch_up((), end)
        self._tell_if_moved(partition, before)

    def _tell_if_moved(self, partition: TopicPartition, before: int | None) -> None:
        """Commit progress over offsets that do not exist: nobody will report these as processed."""
        after = self._completion.position(partition)
        if after is not None and before != after:
            self._commits.tell_gaps(self._completion.epochs.entries({partition: after}))

    def trim(self, partition: TopicPartition, begin: int, end: int) -> None:
        """The log holds only [begin, end): what is unread outside of that is gone."""
        with self._all.lock:
            unread = list(self._completion.unread(partition))
        gone = less(unread, [Gap(begin, end)])
        if gone:
            log.warning(
                "group %s: cannot catch up on all of %s-%d from offset %d on: its log now holds "
                "[%d, %d); %s are gone and will not be delivered",
                self._all._group_id,
                *partition,
                unread[0].start,
                begin,
                end,
                ", ".join(f"[{start}, {after})" for start, after in gone[:10]),
            )
        with self._all.lock:
            found = self._completion.catching_up(partition)
            if found is not None:
                before = self._completion.position(partition)
                found.catch_up((), begin)
                found.aside.forget(end)
                self._tell_if_moved(partition, before)

    def out_of_range(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A poll raises that these are not in the log, and will again; like ``stopped``."""
        for partition in offsets:
            unread = self._completion.unread(partition)
            if unread:
                self._unreadable[partition] = Gap(unread[0].start, LOG_END)

    def stopped(self, error: UnreadableRecordError) -> None:
        """A poll raises this for a gap, and will again until the application seeks past it."""
        partition = TopicPartition(error.topic, error.partition)
        if error.next_offset is not None:
            self._unreadable[partition] = Gap(error.offset, error.next_offset)

    def skip(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a seek to this offset only gives up what the gaps' reader could not read."""
        unreadable = self._unreadable.get(partition)
        with self._all.lock:
            self._all.carry_out()
            unread = self._completion.unread(partition)
            if unreadable is None or not unread:
                return False
            found = self._completion.catching_up(partition)
            gives_up = offset == unreadable.end
            if found is not None and unreadable.end == LOG_END:  # nobody knows where the log begins
                live_at = self._all._subscription.position(partition) or 0
                gives_up = unreadable.start < offset <= max(found.continues_at or 0, live_at)
            if gives_up and found is not None:
                del self._unreadable[partition]
                found.leave_out(unreadable.start, offset)
        return gives_up

    def begin_with_the_log(
        self, partitions: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return and clear the partitions whose gaps a poll found out of range."""
        found = [p for p in partitions if p in self._unreadable]
        out_of_range = frozenset(p for p in found if self._unreadable[p].end == LOG_END)
        for partition in out_of_range:
            del self._unreadable[partition]
        return out_of_range


class Seeks:
    """What the application's seeks change about commits.

    A part of ``HandOuts``, under its lock; its ``Completion`` knows where polls go on. From a
    sought offset on, lower offsets may be committed. A seek past a record at which polls stopped is
    not a seek in this sense: it gives up that record, and nothing else.
    """

    def __init__(self, hand_outs: HandOuts) -> None:
        self.lock = hand_outs.lock
        self._subscription = hand_outs._subscription
        self._metadata = hand_outs._metadata
        self._starts = hand_outs._starts
        self._membership = hand_outs._membership
        self._commits = hand_outs._membership.commits
        self._completion = hand_outs._completion
        # Unreadable records at which polls stopped, by partition: [start, end).
        self._unreadable: dict[TopicPartition, Gap] = {}

    # -- the thread that polls --------------------------------------------------------------------

    def stopped(self, error: UnreadableRecordError) -> None:
        """Note an error that polls raise, again and again, until the application seeks past it."""
        if error.next_offset is not None:
            with self.lock:
                partition = TopicPartition(error.topic, error.partition)
                self._unreadable[partition] = Gap(error.offset, error.next_offset)

    def sought(self, partitions: Collection[TopicPartition], offset: int | None = None) -> None:
        """Note a seek of the application to this offset; None if the offset is not known.

        `LOG_END` is beyond every record.
        """
        with self.lock:
            self._subscription.taken.carry_out()
            self._subscription.taken.forget(partitions)
            for partition in partitions:
                unreadable = self._unreadable.pop(partition, None)
                if unreadable is not None and unreadable.end == offset:
                    self._completion.skip(partition, *unreadable)
                    return  # an offset is given for only one partition, whose polls go on
            if offset is None:  # its topic may have been recreated; the id tells
                self._metadata.refresh()
            for partition in partitions:
                self._sought(partition, offset)

    # -- locked -----------------------------------------------------------------------------------

    def read_to(self, partition: TopicPartition, after: int) -> None:
        """Note that polls brought records up to this next offset."""
        unreadable = self._unreadable.get(partition)
        if unreadable is not None and after > unreadable.start:  # it could be read now
            del self._unreadable[partition]

    def _sought(self, partition: TopicPartition, offset: int | None) -> None:
        before = self._completion.position(partition)
        if self._subscription.subscribed:
            self.note_start(partition, None if offset == LOG_END else offset)
            self._commits.seek(partition, offset)
        self._completion.seek([partition], offset)
        after = self._completion.position(partition)
        if before is None or after is None or after <= before:
            return
        found = self._completion.of(partition)
        if found is not None and found.singly:  # its position is committed as workers complete it
            # If it is lost by now, the next poll says so.
            with contextlib.suppress(PartitionsLostError):
                self._membership.commit(self._completion.epochs.entries({partition: after}))

    def led_to(self, partition: TopicPartition, position: int) -> None:
        """Resolve a seek to an end of the log: polls are at this position now."""
        if self._completion.sought.leads_to(partition, position):
            self._sought(partition, position)

    def note_start(self, partition: TopicPartition, sought: int | None = None) -> None:
        """Commit nothing in the background that is below the partition's start.

        Until something is handed out, the lowest offset to commit is the one that the group has
        committed, or the sought one if the seek came before anybody looked that up.
        """
        if not self.has_begun(partition):
            if (start := self._starts.of(partition)) is not None:
                self._commits.begin(partition, start.offset, is_described(start))
            elif sought is not None:
                self._commits.begin(partition, sought, described=False)

    def has_begun(self, partition: TopicPartition) -> bool:
        """Whether polls brought records since the assignment, or the application sought."""
        completion = self._completion
        return completion.of(partition) is not None or partition in completion.sought

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, which are not polled any more."""
        for partition in partitions:
            self._unreadable.pop(partition, None)

    def forget_all(self) -> None:
        """Forget all partitions."""
        self._unreadable.clear()


class Truncations:
    """Truncated logs and recreated topics.

    After either, the same offsets hold different records, so completion state, in-flight commits
    and the group's gaps for them are discarded; gaps in the group's metadata are bound to the
    topic's id. The signs are polls that continue from a lower offset, a record of another leader
    epoch, or the topic's id.

    Tracks which handed-out offsets were truncated. Hold ``HandOuts.lock``, except for ``bound``.
    """

    def __init__(self, hand_outs: HandOuts) -> None:
        self._group_id = hand_outs._group_id
        self._metadata = hand_outs._metadata
        self._completion = hand_outs._completion
        self._commits = hand_outs._membership.commits
        self._by_hand = hand_outs.by_hand
        # What the gaps of each partition are bound to, from its first records on.
        self._bounds: dict[TopicPartition, str] = {}

    def bound(self, partition: TopicPartition) -> str:
        """What a commit's metadata are bound to: elsewhere, the same offsets are other records.

        Topic metadata with an error, and so without an id, do not mean that it is another topic.
        """
        topic_id = self._metadata.topic_id(partition.topic)
        if topic_id is None and partition in self._bounds:
            return self._bounds[partition]
        return bound_to(topic_id, partition)

    def bound_before(self, partition: TopicPartition) -> str | None:
        """What the partition was bound to when its first records came; None before that."""
        return self._bounds.get(partition)

    def bind(self, partition: TopicPartition, bound: str) -> None:
        """Note that the partition's records are those of this topic from now on."""
        self._bounds[partition] = bound

    def is_bound(self, partition: TopicPartition, bound: str) -> bool:
        """Whether the partition's records are those of this topic; its first records always are."""
        if self._bounds.get(partition) in (None, bound_to(None, partition)):
            self._bounds[partition] = bound
        return self._bounds[partition] == bound

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are not owned any more."""
        for partition in partitions:
            self._bounds.pop(partition, None)

    def forget_all(self) -> None:
        """Forget all partitions."""
        self._bounds.clear()

    def goes_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset; if it is lower without a seek, the log was truncated."""
        if partition in self._completion.sought:
            self._commits.move_back(partition, offset)
        elif self._completion.truncated_at(partition, offset):
            log.warning(
                "group %s: %s-%d goes back to offset %d: its log was truncated or its topic was "
                "recreated; processed offsets from there on will not be committed",
                self._group_id,
                *partition,
                offset,
            )
            self.truncate(partition, offset)
            if not self._is_same_topic(partition):
                self._bounds.pop(partition, None)

    def _is_same_topic(self, partition: TopicPartition) -> bool:
        """Whether the gaps left after polls went back may be committed as those of this topic.

        If the topic was recreated and the metadata do not know it yet, nobody takes the gaps for
        the new topic's: they are bound to the old id. Without an id, nothing tells the two apart.
        """
        before = self._bounds.get(partition)
        return before not in (None, bound_to(None, partition)) and before == self.bound(partition)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self._commits.truncate(partition, offset)
        self._completion.truncate(partition, offset)
        self._by_hand.handed_out_again(partition, offset)

    def look_whether_anew(self, partition: TopicPartition, end: int) -> None:
        """Check for a recreated topic before a commit beyond what polls have reached.

        Such a commit may be about a topic that no longer exists, if polls have brought nothing
        since the new one is known.
        """
        found, before = self._completion.of(partition), self._bounds.get(partition)
        if found is None or found.continues_at is None or before is None:
            return
        reached = 0 if partition in self._completion.sought else found.continues_at
        if end <= reached:
            return
        bound = self.bound(partition)
        if bound != before:
            self.begin_anew(partition, reached, bound)

    def begin_anew(self, partition: TopicPartition, offset: int, bound: str) -> None:
        """The records from this offset on are those of a recreated topic.

        What was handed out there before belongs to another log, and so do the gaps and what a
        previous owner had finished. The same may be true of hand-outs below. They are kept anyway,
        because the metadata may report the new topic later than polls do.
        """
        if (found := self._completion.of(partition)) is not None:
            self.truncate(partition, offset)
            found.aside.forget(0)
        self._completion.disinherit(partition)
        self._bounds[partition] = bound  # last: a poll that is interrupted begins again


class EnteredCommits:
    """Commits by hand on their way, and which handed out records they complete.

    A part of ``HandOuts``, under its lock. What the broker has accepted counts as processed, except
    records that were handed out again since the commit was entered.
    """

    def __init__(self, hand_outs: HandOuts) -> None:
        self._all = hand_outs
        self._completion = hand_outs._completion
        self._membership = hand_outs._membership
        # Weak: who sends a commit, or waits for it, keeps it alive.
        self._under_way: WeakSet[EnteredCommit] = WeakSet()

    # -- any thread -------------------------------------------------------------------------------

    def enter(
        self, offsets: Mapping[TopicPartition, Any], retried: bool, everything: bool = False
    ) -> EnteredCommit:
        """Put a commit by hand in its place among the others.

        With ``everything``, the application named no offsets: the commit is of everything that was
        handed out. Raises PartitionsLostError, and ValueError if the commit cannot carry the
        application's metadata.
        """
        by_hand = EnteredCommit(offsets, retried, self._accepted)
        if not offsets:
            by_hand.future.success(None)
            return by_hand
        with self._all.lock:
            self._all.carry_out()
            self._all.refuse_overdue(by_hand.offsets)
            if self._all.gaps.known:
                self._all.gaps.claim(by_hand, everything)
            self._membership.commit_by_hand(by_hand)
            self._under_way.add(by_hand)
        return by_hand

    # -- locked -----------------------------------------------------------------------------------

    def claims_of(self, partition: TopicPartition) -> list[Gap]:
        """What the unanswered commits, which go before the next, claim of a partition."""
        return [
            claim
            for by_hand in self._under_way
            if not by_hand.future.is_done
            for claim in by_hand.claims_of(partition)
        ]

    def handed_out_again(self, partition: TopicPartition, offset: int) -> None:
        """Answers from now on no longer mark records from this offset on as processed."""
        for by_hand in self._under_way:
            by_hand.handed_out_again(partition, offset)

    def forget(self, partitions: Set[TopicPartition]) -> None:
        """These are not owned any more: drop what was claimed of them.

        When the answer to such a commit is late, they may already be assigned again, and what the
        commit named is handed out once more.
        """
        for by_hand in self._under_way:
            for partition in by_hand.claims.keys() & partitions:
                by_hand.claims[partition] = ()

    def forget_all(self) -> None:
        """Nothing is owned any more."""
        self.forget({p for by_hand in self._under_way for p in by_hand.claims})

    # -- the I/O loop -----------------------------------------------------------------------------

    def _accepted(self, by_hand: EnteredCommit) -> None:
        """On the I/O loop: the broker has accepted the commit, or some of its partitions."""
        processed = by_hand.processed()
        with self._all.lock:
            self._all.carry_out()
            claimed = by_hand.claimed()
            below = {p: offset for p, offset in processed.items() if p not in claimed}
            for p, offset in below.items():  # the group stands there, whoever committed it
                self._completion.before.hear(p, [Gap(0, offset)])
            reached = self._completion.complete_below(below)
            for p, claims in claimed.items():
                if (found := self._completion.of(p)) is not None:
                    found.pending.discard_all(claims)
                if (position := self._completion.position(p)) is not None:
                    reached[p] = position
            # Beyond the committed offset, or beyond its part that was not handed out again since.
            beyond = {
                p: offset
                for p, offset in reached.items()
                if offset > processed[p] and p not in by_hand.moved_back
            }
            if beyond:
                # If lost since, there is nothing to commit, and the next poll reports it.
                with contextlib.suppress(PartitionsLostError):
                    self._membership.commit(self._completion.epochs.entries(beyond))


class HandOuts:
    """The records that polls returned, until they are processed or their partition is gone.

    Parameters
    ----------
    io : GroupCoordinator
        The seam to kafka-python.
    membership : GroupMembership
        Commits what is processed.
    ownership : Ownership
        What may be committed.
    not_returned : callable
        Called if a poll is interrupted, or raises.

    Attributes
    ----------
    lock : threading.Lock
        Held while a commit is added, and while Ownership changes. Never held over I/O or a
        listener.
    by_hand : EnteredCommits
        The commits by hand on their way.
    seeks : Seeks
        The application's seeks.
    truncations : Truncations
        Detects truncated logs and recreated topics.
    gaps : GapHandOuts
        What is read besides the live records (KIP-333).
    describe : callable or None
        Says who commits; see ``CommittingConsumer.describe_commits``.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        membership: GroupMembership,
        ownership: Ownership,
        not_returned: Callable[[], None],
    ) -> None:
        self.lock: threading.Lock | RefusedLock = threading.Lock()
        self._not_returned = not_returned
        self._group_id = io.group_id
        self._subscription = io.subscription
        self._metadata = io.metadata
        self._starts = io.starts
        self._membership = membership
        self._ownership = ownership
        self._completion = Completion()
        membership.commits.metadata_of = self._describe_commit
        self.describe: Callable[[TopicPartition, int, int, str], str] | None = None
        self._told = ToldRemaining()  # by commit_remaining
        self.by_hand = EnteredCommits(self)
        self.seeks = Seeks(self)
        self.truncations = Truncations(self)
        self.gaps = GapHandOuts(self)

    def refuse_all(self) -> None:
        """In a forked child: the hand-outs are the parent's, and so is whoever holds the lock."""
        self.lock = self.seeks.lock = RefusedLock()

    # -- any thread -------------------------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything below these next offsets is processed: commit it in the background.

        Raises PartitionsLostError, and then nothing of the call counts.
        """
        with self.lock:
            self.carry_out()
            try:
                self._refuse_lost(offsets)
            except PartitionsLostError:
                self._hear_of_lost(offsets)
                raise
            # While nothing is handed out, a commit may be where the group stands, and not lower.
            starts = {p: start.offset for p in offsets if (start := self._starts.of(p))}
            for partition, offset in offsets.items():
                self.truncations.look_whether_anew(partition, offset)
            positions = {p: self._subscription.position(p) for p in offsets}
            self._completion.refuse_truncated(
                {p: offset for p, offset in offsets.items() if offset != starts.get(p)}, positions
            )
            for partition, offset in offsets.items():
                self.seeks.note_start(partition)
                if offset == positions[partition]:
                    self.seeks.led_to(partition, offset)
            before = self.gaps.positions(offsets) if self.gaps.known else {}
            reached = self._completion.complete_below(offsets)
            self._membership.commit(self._completion.epochs.entries(reached))
            same = {p: at for p, at in before.items() if reached.get(p) == at}
            if same:  # but not the progress beyond
                self._membership.commits.tell_gaps(self._completion.epochs.entries(same))

    def processed(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """The records at these offsets are processed: commit as far as all are.

        Raises PartitionsLostError, and ValueError for what was not handed out.
        """
        with self.lock:
            self.carry_out()
            self._refuse_lost({partition: max(offsets, default=0)})
            self.truncations.look_whether_anew(partition, max(offsets, default=-1) + 1)
            position = self._completion.complete(partition, offsets)
            if position is not None:
                self._membership.commit(self._completion.epochs.entries({partition: position}))
            elif (position := self._completion.position(partition)) is not None:
                self._membership.commits.tell_gaps(
                    self._completion.epochs.entries({partition: position})
                )

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """Commit what is left to process of partitions from which polls hand out nothing.

        Raises PartitionsLostError, and then nothing of the call counts.
        """
        with self.lock:
            self.carry_out()
            self._refuse_lost({p: left.committed() for p, left in remaining.items()})
            further, beyond = self._told.news(remaining)
            self._membership.commit(self._completion.epochs.entries(further))
            self._told.tell(
                {p: (remaining[p], self.truncations.bound(p)) for p in (*further, *beyond)}
            )
            if beyond:
                self._membership.commits.tell_gaps(self._completion.epochs.entries(beyond))
                self._membership.commits.hurry()

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """What :meth:`commit_remaining` was given last, if the broker has accepted it."""
        with self.lock:
            told, commits = self._told.of(partition), self._membership.commits
            if told is None or commits.outstanding(partition):
                return None
            return told if commits.acknowledged(partition) == told.committed() else None

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions that the broker lacks, whose commit was given up since the last call.

        :meth:`commit_remaining` may be given the same for them again.
        """
        with self.lock:
            unknown = self._membership.commits.take_unknown()
            self._told.forget(unknown)
        return unknown

    def unprocessed(self) -> frozenset[TopicPartition]:
        """The partitions with records that were handed out and are not processed."""
        with self.lock:
            self.carry_out()
            return self._completion.pending()

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the commits that wait, and forget what was handed out."""
        with self.lock:
            self._subscription.taken.forget(partitions)
            self._membership.commits.drop(partitions)
            self._completion.forget(partitions)
            self._told.forget(partitions)
            self.by_hand.forget(frozenset(partitions))
            for partition in partitions:
                self._starts.take(partition)  # the group is to move back from there

    # -- the thread that polls --------------------------------------------------------------------

    def hand_out(
        self, records: Mapping[TopicPartition, list[Any]]
    ) -> dict[TopicPartition, list[Any]]:
        """A poll returns these records, or Arrow batches of them; returns what to hand out.

        That leaves out what the previous owner had processed behind a slow record.
        """
        if (ahead := self._subscription.ahead).reading:  # handed out when a merge returns them
            with self.lock:
                for partition in ahead.gaps.keys() & records.keys():
                    self.truncations.goes_on(partition, next(offsets_of(records[partition]))[0][0])
                ahead.note(records, self._completion.epochs.before)
            return dict(records)
        owed = {}
        with self.lock:
            for partition, found in records.items():
                if kept := self._hand_out(partition, found):
                    owed[partition] = kept
        return owed

    def _hand_out(self, partition: TopicPartition, found: list[Any]) -> list[Any]:
        """Hand out one partition's records, once the poll has returned; locked.

        What the records say of the log is applied at once: it holds whether they are returned or
        not, and the next poll can say it again.
        """
        completion, truncations = self._completion, self.truncations
        bound = truncations.bound(partition)
        brought = list(offsets_of(found))
        first, after = brought[0][0][0], brought[-1][0][-1] + 1
        if not self._subscription.taken.has_noted(partition):
            if (start := self._starts.of(partition)) is not None:
                self._begin(partition, start, first, bound)
            elif completion.of(partition) is None:
                self._membership.commits.begin(partition, first, described=False)
        self.seeks.read_to(partition, after)
        same = truncations.is_bound(partition, bound)
        if partition in completion.sought:
            self.by_hand.handed_out_again(partition, first)
        truncations.goes_on(partition, first)
        if not same:
            truncations.begin_anew(partition, first, bound)
        if (inherited := completion.inherited(partition, first)) is not None:
            epochs = completion.epochs[partition]
            for offsets, epoch in brought:
                epochs.learn(offsets[0], offsets[-1] + 1, epoch)
            inherited = inherited.as_seen(found)
            completion.inherit(partition, inherited)
            found = inherited.still_owed(found)
            brought = list(offsets_of(found)) if found else []
        for offsets, epoch in brought:
            anew = completion.written_anew_from(partition, offsets[0], epoch)
            if anew is not None:
                truncations.truncate(partition, anew)

        def returned() -> None:
            self._starts.take(partition)
            for offsets, epoch in brought:
                completion.hand_out(partition, offsets, epoch)
            if inherited is not None:
                completion.begun(partition).go_on(after)

        self.note(partition, returned)
        return found

    def note(self, partition: TopicPartition, returned: Callable[[], None]) -> None:
        """Carry this out once the poll under way has returned; locked."""
        self._subscription.taken.note(partition, returned)

    def begin_poll(self) -> Taken:
        """A poll begins; returns what it takes, of which nothing is handed out until it returns."""
        if not self._subscription.taken.returned:
            self.take_back()  # taking it back was interrupted, too
        with self.lock:
            self.carry_out()
        taken = self._subscription.taken = Taken()
        return taken

    def take_back(self) -> None:
        """The poll under way is interrupted, and returns nothing."""
        self._not_returned()
        with self.lock:
            self._subscription.take_back()

    def carry_out(self) -> None:
        """What the last poll has returned is handed out; locked by the caller.

        Before anything else is done with what was handed out.
        """
        self._subscription.taken.carry_out()

    def look_for_truncations(self, handed_out: Collection[TopicPartition]) -> None:
        """Notice positions that went back to where there is no record yet."""
        with self.lock:
            for partition in self._completion.partitions() - set(handed_out):
                position = self._subscription.position(partition)
                # After a seek, lower offsets may be committed from the seek on, and once more from
                # the next hand-out on; not with each poll in between.
                if position is not None and partition not in self._completion.sought:
                    self.truncations.goes_on(partition, position)
            for partition in self._completion.sought.keys() - set(handed_out):
                if (position := self._subscription.position(partition)) is not None:
                    self.seeks.led_to(partition, position)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """The revokes of these are completed; their last commits may be on their way.

        Progress behind a slow record goes with those commits. Locked by the caller.
        """
        self._membership.commits.hurry()
        partitions = frozenset(partitions)
        self._subscription.taken.forget(partitions)
        self._completion.leave(partitions)
        self.seeks.forget(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are lost, or released; locked by the caller."""
        partitions = frozenset(partitions)
        self._subscription.taken.forget(partitions)
        self._membership.commits.forget_gaps(partitions)
        self._completion.forget(partitions)
        self._told.forget(partitions)
        self.by_hand.forget(partitions)
        self.seeks.forget(partitions)
        self.truncations.forget(partitions)

    def forget_all(self) -> None:
        """Nothing is assigned any more; locked by the caller."""
        self._subscription.taken = Taken(returned=True)
        self.seeks.forget_all()
        self.truncations.forget_all()
        self._told.forget_all()
        self.by_hand.forget_all()
        self._completion.forget_all()

    def end(self, give_up: bool = False) -> bool:
        """Refuse commits from now on, unless some are outstanding; returns whether it does.

        With ``give_up`` it does so in any case.
        """
        with self.lock:
            if self._membership.commits.any_outstanding() and not give_up:
                return False
            self._ownership.give_up(self._ownership.owned)
            self._subscription.taken = Taken(returned=True)
            self._completion.forget_all()
            return True

    # -- the I/O loop -----------------------------------------------------------------------------

    def _describe_commit(
        self, partition: TopicPartition, offset: int, limit: int, by_hand: CommitByHand | None
    ) -> str:
        """The metadata of a commit of this offset: who made it, and the progress beyond it."""
        if self.describe is None:
            return self._gaps_behind(partition, offset, limit, by_hand)
        with self.lock:
            bound = self.truncations.bound(partition)
        origin = self.describe(partition, offset, limit, bound)
        left = limit - len(origin) - 1
        return with_origin(origin, self._gaps_behind(partition, offset, left, by_hand))

    def _gaps_behind(
        self, partition: TopicPartition, offset: int, limit: int, by_hand: CommitByHand | None
    ) -> str:
        """The metadata of a commit of this offset: the progress beyond it.

        A commit by hand may move the group back below processed records: then these come again.
        """
        claims = () if by_hand is None else by_hand.claims.get(partition, ())
        with self.lock:
            self.carry_out()
            told = self._told.metadata(partition, offset, limit, self.truncations.bound(partition))
            if told is not None and not by_hand:
                return told
            if not self.seeks.has_begun(partition):
                start = self._starts.of(partition)
                if start is not None and start.offset == offset and is_ours(start.metadata):
                    return str(start.metadata)  # as the previous owner wrote them
            found = self._completion.still_committed(partition)
            if by_hand and not claims and found is not None and found.is_complete(offset):
                return ""
            remaining, leader_epoch = self._completion.remaining(partition, offset, claims)
            bound = self.truncations.bound_before(partition)
        if not remaining.gaps:  # as in most commits, and one may hold 10,000 partitions
            return ""
        if bound != self.truncations.bound(partition):
            return ""  # they are of the old topic, which was created anew since
        return remaining.encode(limit, bound, leader_epoch)

    # -- locked -----------------------------------------------------------------------------------

    def _begin(
        self, partition: TopicPartition, start: OffsetAndMetadata, first: int, bound: str
    ) -> None:
        """The first records since the assignment have come; the partition starts at this commit."""
        if start.offset > 0:
            epochs = self._completion.epochs[partition]
            epochs.learn(start.offset - 1, start.offset, start.leader_epoch)
        if told := inherit(partition, start, bound):
            self._completion.inherit(partition, told)
        if partition not in self._completion.sought:
            self._membership.commits.begin(partition, start.offset, is_described(start))
        elif first > start.offset:
            self._completion.epochs[partition].learn(start.offset, first, UNKNOWN)
        if first < start.offset:  # sought, or found to be truncated
            self._membership.commits.move_back(partition, first)

    def _refuse_lost(self, offsets: Mapping[TopicPartition, int]) -> None:
        # With partitions assigned by hand there is no membership to commit for.
        committable = self._ownership.assignment if self._subscription.subscribed else frozenset()
        refuse_strangers(offsets, committable)
        self.refuse_overdue(offsets)
        self._membership.record.refuse_lost(offsets)

    def _hear_of_lost(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A commit is refused: its workers need not be heard again about what is lost."""
        for partition, offset in offsets.items():
            try:
                self._refuse_lost({partition: offset})
            except PartitionsLostError:
                is_over = self._completion.of(partition) is None
                self._completion.before.refused(partition, offset, is_over)

    def refuse_overdue(self, offsets: Mapping[TopicPartition, Any]) -> None:
        """Refuse partitions past their deadline: they are lost, even before a poll says so."""
        now = time.monotonic()
        in_time = frozenset(p for p in offsets if not self._ownership.is_overdue(p, now))
        refuse_strangers(offsets, in_time)
