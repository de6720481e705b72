"""HandOuts: what polls handed out and what of it may be committed, under one lock.

Any thread may report what is processed, while the polling thread hands out, gives up and loses
partitions, and the I/O loop accepts commits. One lock makes each of these one step: a commit either
counts before its partition stops being assigned, or it is refused.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import PartitionsLostError, UnreadableRecordError
from ...transport.forks import RefusedLock
from ..commits.commit_by_hand import CommitByHand, EnteredCommit
from ..member_record import not_owned, refuse_strangers
from ..membership.group_membership import GroupMembership
from ..membership.ownership import Ownership
from ..offsets.commit_metadata import Remaining, is_ours
from ..offsets.found_records import offsets_of
from ..offsets.leader_epochs import UNKNOWN
from ..offsets.offset_set import Gap
from ..offsets.origin import Origin, with_origin
from ..offsets.told_remaining import ToldRemaining, bound_to
from ..taken import Taken
from .gap_hand_outs import GapHandOuts
from .part import Part, Shared
from .partition import LOG_END, Partition, carried_on, inherit, is_described

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class Seeks(Part):
    """What the application's seeks change about commits.

    A part of ``HandOuts``, under its lock; its ``Completion`` knows where polls go on. From a
    sought offset on, lower offsets may be committed. A seek past a record at which polls stopped is
    not a seek in this sense: it gives up that record, and nothing else.
    """

    # -- the thread that polls --------------------------------------------------------------------

    def stopped(self, error: UnreadableRecordError) -> None:
        """Note an error that polls raise, again and again, until the application seeks past it."""
        if error.next_offset is not None:
            with self.lock:
                partition = TopicPartition(error.topic, error.partition)
                found = self._completion.partition(partition)
                found.unreadable = Gap(error.offset, error.next_offset)

    def sought(self, partitions: Collection[TopicPartition], offset: int | None = None) -> None:
        """Note a seek of the application to this offset; None if the offset is not known.

        `LOG_END` is beyond every record.
        """
        with self.lock:
            self.carry_out()
            self._subscription.taken.forget(partitions)
            for partition in partitions:
                found = self._completion.partition(partition)
                unreadable, found.unreadable = found.unreadable, None
                if unreadable is not None and unreadable.end == offset:
                    found.skip(*unreadable)
                    return  # an offset is given for only one partition, whose polls go on
            if offset is None:  # its topic may have been recreated; the id tells
                self._metadata.refresh()
            for partition in partitions:
                self._sought(partition, offset)

    # -- locked -----------------------------------------------------------------------------------

    def _sought(self, partition: TopicPartition, offset: int | None) -> None:
        found = self._completion.partition(partition)
        before = found.position()
        if self._subscription.subscribed:
            self.note_start(partition, None if offset == LOG_END else offset)
            self._commits.seek(partition, offset)
        found.seek(offset)
        after = found.position()
        if before is None or after is None or after <= before:
            return
        if found.completion.singly:  # its position is committed as workers complete it
            # If it is lost by now, the next poll says so.
            with contextlib.suppress(PartitionsLostError):
                self._membership.commit(self._completion.entries({partition: after}))

    def led_to(self, partition: TopicPartition, position: int) -> None:
        """Resolve a seek to an end of the log: polls are at this position now."""
        found = self._completion.get(partition)
        if found is not None and found.leads_to(position):
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
        found = self._completion.get(partition)
        return found is not None and (found.completion.begun or found.is_sought)


class Truncations(Part):
    """Truncated logs and recreated topics.

    After either, the same offsets hold different records, so completion state, in-flight commits
    and the group's gaps for them are discarded; gaps in the group's metadata are bound to the
    topic's id. The signs are polls that continue from a lower offset, a record of another leader
    epoch, or the topic's id.

    Tracks which handed-out offsets were truncated. Hold ``HandOuts.lock``, except for ``bound``.
    """

    def is_bound(self, partition: TopicPartition, bound: str) -> bool:
        """Whether the partition's records are those of this topic; its first records always are."""
        found = self._completion.partition(partition)
        if found.bound in (None, bound_to(None, partition)):
            found.bound = bound
        return found.bound == bound

    def goes_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls go on from this offset; if it is lower without a seek, the log was truncated."""
        found = self._completion.get(partition)
        if found is None:
            return
        if found.is_sought:
            self._commits.move_back(partition, offset)
        elif found.truncated_at(offset):
            log.warning(
                "group %s: %s-%d goes back to offset %d: its log was truncated or its topic was "
                "recreated; processed offsets from there on will not be committed",
                self._group_id,
                *partition,
                offset,
            )
            self.truncate(partition, offset)
            if not self._is_same_topic(partition):
                found.bound = None

    def _is_same_topic(self, partition: TopicPartition) -> bool:
        """Whether the gaps left after polls went back may be committed as those of this topic.

        If the topic was recreated and the metadata do not know it yet, nobody takes the gaps for
        the new topic's: they are bound to the old id. Without an id, nothing tells the two apart.
        """
        before = self._completion.bound(partition)
        return before not in (None, bound_to(None, partition)) and before == self.bound(partition)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self._commits.truncate(partition, offset)
        self._completion.partition(partition).truncate(offset)
        self._under_way.handed_out_again(partition, offset)

    def look_whether_anew(self, partition: TopicPartition, end: int) -> None:
        """Check for a recreated topic before a commit beyond what polls have reached.

        Such a commit may be about a topic that no longer exists, if polls have brought nothing
        since the new one is known.
        """
        found = self._completion.get(partition)
        if found is None or found.completion.continues_at is None or found.bound is None:
            return
        reached = 0 if found.is_sought else found.completion.continues_at
        if end <= reached:
            return
        bound = self.bound(partition)
        if bound != found.bound:
            self.begin_anew(partition, reached, bound)

    def begin_anew(self, partition: TopicPartition, offset: int, bound: str) -> None:
        """The records from this offset on are those of a recreated topic.

        What was handed out there before belongs to another log, and so do the gaps and what a
        previous owner had finished. The same may be true of hand-outs below. They are kept anyway,
        because the metadata may report the new topic later than polls do.
        """
        found = self._completion.partition(partition)
        if found.completion.begun:
            self.truncate(partition, offset)
            found.completion.aside.forget(0)
        found.completion.disinherit()
        found.bound = bound  # last: a poll that is interrupted begins again


class EnteredCommits(Part):
    """Commits by hand on their way, and which handed out records they complete.

    A part of ``HandOuts``, under its lock. What the broker has accepted counts as processed, except
    records that were handed out again since the commit was entered.
    """

    def __init__(self, shared: Shared, gaps: GapHandOuts) -> None:
        super().__init__(shared)
        self._gaps = gaps

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
        self._membership.lose_if_expired()
        with self.lock:
            self.carry_out()
            refuse_overdue(self._ownership, by_hand.offsets)
            if self._gaps.known:
                self._gaps.claim(by_hand, everything)
            self._membership.commit_by_hand(by_hand)
            self._under_way.add(by_hand)
        return by_hand

    # -- the I/O loop -----------------------------------------------------------------------------

    def _accepted(self, by_hand: EnteredCommit) -> None:
        """On the I/O loop: the broker has accepted the commit, or some of its partitions."""
        processed = by_hand.processed()
        with self.lock:
            self.carry_out()
            claimed = by_hand.claimed()
            below = {p: offset for p, offset in processed.items() if p not in claimed}
            self._completion.heard(below)
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
                    self._membership.commit(self._completion.entries(beyond))


class HandOuts(Part):
    """The records that polls returned, until they are processed or their partition is gone.

    ``not_returned`` is called if a poll is interrupted, or raises.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        membership: GroupMembership,
        ownership: Ownership,
        not_returned: Callable[[], None],
    ) -> None:
        shared = Shared(io, membership, ownership)
        super().__init__(shared)
        self._not_returned = not_returned
        #: Says who commits; see ``DeferredRevokeConsumer.describe_commits``.
        self.describe: Callable[[TopicPartition, int, int, str], str] | None = None
        # By commit_remaining; a query's partitions hand out nothing, so they have no Partition.
        self._told = ToldRemaining()
        self.seeks = Seeks(shared)
        self.truncations = Truncations(shared)
        self.gaps = GapHandOuts(shared)
        self.by_hand = EnteredCommits(shared, self.gaps)

    def refuse_all(self) -> None:
        """In a forked child: the hand-outs are the parent's, and so is whoever holds the lock."""
        self._shared.lock = RefusedLock()

    # -- any thread -------------------------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything below these next offsets is processed: commit it in the background.

        Raises PartitionsLostError, and then nothing of the call counts.
        """
        self._membership.lose_if_expired()
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
            self._membership.commit(self._completion.entries(reached))
            same = {p: at for p, at in before.items() if reached.get(p) == at}
            if same:  # but not the progress beyond
                self._commits.tell_gaps(self._completion.entries(same))

    def processed(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """The records at these offsets are processed: commit as far as all are.

        Raises PartitionsLostError, and ValueError for what was not handed out.
        """
        self._membership.lose_if_expired()
        with self.lock:
            self.carry_out()
            last = max(offsets, default=-1)
            self._refuse_lost({partition: max(last, 0)})
            self.truncations.look_whether_anew(partition, last + 1)
            position = self._completion.complete(partition, offsets)
            if position is not None:
                self._membership.commit(self._completion.entries({partition: position}))
            elif (position := self._completion.position(partition)) is not None:
                self._commits.tell_gaps(self._completion.entries({partition: position}))

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """Commit what is left to process of partitions from which polls hand out nothing.

        Raises PartitionsLostError, and then nothing of the call counts.
        """
        self._membership.lose_if_expired()
        with self.lock:
            self.carry_out()
            self._refuse_lost({p: left.committed() for p, left in remaining.items()})
            further, beyond = self._told.news(remaining)
            self._membership.commit(self._completion.entries(further))
            self._told.tell({p: (remaining[p], self.bound(p)) for p in (*further, *beyond)})
            if beyond:
                self._commits.tell_gaps(self._completion.entries(beyond))
                self._commits.hurry()

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """What :meth:`commit_remaining` was given last, if the broker has accepted it."""
        with self.lock:
            told, commits = self._told.of(partition), self._commits
            if told is None or commits.outstanding(partition):
                return None
            return told if commits.acknowledged(partition) == told.committed() else None

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions that the broker lacks, whose commit was given up since the last call.

        :meth:`commit_remaining` may be given the same for them again.
        """
        with self.lock:
            unknown = self._commits.take_unknown()
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
            self._commits.drop(partitions)
            self._completion.start_over(partitions)
            self._told.forget(partitions)
            self._under_way.forget(frozenset(partitions))
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
                ahead.note(records, self._completion.epoch_before)
            return dict(records)
        owed = {}
        with self.lock:
            for partition, found in records.items():
                if kept := self._hand_out(partition, found):
                    owed[partition] = kept
        return owed

    def _hand_out(self, partition: TopicPartition, records: list[Any]) -> list[Any]:
        """Hand out one partition's records, once the poll has returned; locked.

        What the records say of the log is applied at once: it holds whether they are returned or
        not, and the next poll can say it again.
        """
        truncations = self.truncations
        bound = self.bound(partition)
        brought = list(offsets_of(records))
        first, after = brought[0][0][0], brought[-1][0][-1] + 1
        found = self._completion.partition(partition)
        if not self._subscription.taken.has_noted(partition):
            if (start := self._starts.of(partition)) is not None:
                self._begin(found, start, first, bound)
            elif not found.completion.begun:
                self._commits.begin(partition, first, described=False)
        if (unreadable := found.unreadable) is not None and after > unreadable.start:
            found.unreadable = None  # it could be read now
        same = truncations.is_bound(partition, bound)
        if found.is_sought:
            self._under_way.handed_out_again(partition, first)
        truncations.goes_on(partition, first)
        if not same:
            truncations.begin_anew(partition, first, bound)
        if (inherited := found.inherited_at(first)) is not None:
            for offsets, epoch in brought:
                found.epochs.learn(offsets[0], offsets[-1] + 1, epoch)
            inherited = inherited.as_seen(records)
            found.completion.inherited = inherited
            records = inherited.still_owed(records)
            brought = list(offsets_of(records)) if records else []
        for offsets, epoch in brought:
            anew = found.written_anew_from(offsets[0], epoch)
            if anew is not None:
                truncations.truncate(partition, anew)

        def returned() -> None:
            self._starts.take(partition)
            for offsets, epoch in brought:
                found.hand_out(offsets, epoch)
            if inherited is not None:
                found.completion.go_on(after)

        self._subscription.taken.note(partition, returned)
        return records

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

    def look_for_truncations(self, handed_out: Collection[TopicPartition]) -> None:
        """Notice positions that went back to where there is no record yet."""
        with self.lock:
            position_of = self._subscription.position
            for partition, found in self._completion.items():
                if handed_out and partition in handed_out:
                    continue
                sought = found.is_sought
                if not sought and found.completion.continues_at is None:
                    continue
                position = position_of(partition)
                if position is None:
                    continue
                # After a seek, lower offsets may be committed from the seek on, and once more from
                # the next hand-out on; not with each poll in between.
                if sought:
                    self.seeks.led_to(partition, position)
                elif found.truncated_at(position):
                    self.truncations.goes_on(partition, position)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """The revokes of these are completed; their last commits may be on their way.

        Progress behind a slow record goes with those commits. Locked by the caller.
        """
        self._commits.hurry()
        partitions = frozenset(partitions)
        self._subscription.taken.forget(partitions)
        self._completion.leave(partitions)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are lost, or released; locked by the caller."""
        partitions = frozenset(partitions)
        self._subscription.taken.forget(partitions)
        self._commits.forget_gaps(partitions)
        self._completion.forget(partitions)
        self._told.forget(partitions)
        self._under_way.forget(partitions)

    def forget_all(self) -> None:
        """Nothing is assigned any more; locked by the caller."""
        self._subscription.taken = Taken(returned=True)
        self._told = ToldRemaining()
        self._under_way.forget_all()
        self._completion.forget_all()

    def end(self, give_up: bool = False) -> bool:
        """Refuse commits from now on, unless some are outstanding; returns whether it does.

        With ``give_up`` it does so in any case.
        """
        with self.lock:
            if self._commits.any_outstanding() and not give_up:
                return False
            self._ownership.give_up(self._ownership.owned)
            self._subscription.taken = Taken(returned=True)
            self._completion.start_all_over()
            return True

    # -- the I/O loop -----------------------------------------------------------------------------

    def describe_commit(
        self, partition: TopicPartition, offset: int, limit: int, by_hand: CommitByHand | None
    ) -> str:
        """The metadata of a commit of this offset: who made it, and the progress beyond it."""
        with self.lock:
            bound = self.bound(partition)
            carried = None if self.describe else self._carried_on(partition, bound)
        if self.describe is not None:
            origin = self.describe(partition, offset, limit, bound)
        elif carried is not None:
            origin = carried.encode(offset, limit // 2, bound)
        else:
            return self._gaps_behind(partition, offset, limit, by_hand)
        left = limit - len(origin) - 1
        return with_origin(origin, self._gaps_behind(partition, offset, left, by_hand))

    def describe_remaining(
        self, remaining: Mapping[TopicPartition, Remaining]
    ) -> dict[TopicPartition, str]:
        """As :meth:`describe_commit`, for a commit of these that somebody else sends."""
        limit = self._commits.metadata_bytes
        with self.lock:
            bounds = {p: self.bound(p) for p in remaining}
        described = {}
        for p, left in remaining.items():
            offset = left.committed()
            origin = "" if self.describe is None else self.describe(p, offset, limit, bounds[p])
            behind = left.encode(limit - len(origin) - 1, bounds[p])
            described[p] = with_origin(origin, behind)
        return described

    def _gaps_behind(
        self, partition: TopicPartition, offset: int, limit: int, by_hand: CommitByHand | None
    ) -> str:
        """The metadata of a commit of this offset: the progress beyond it.

        A commit by hand may move the group back below processed records: then these come again.
        """
        claims = () if by_hand is None else by_hand.claims.get(partition, ())
        with self.lock:
            self.carry_out()
            told = self._told.metadata(partition, offset, limit, self.bound(partition))
            if told is not None and not by_hand:
                return told
            if not self.seeks.has_begun(partition):
                start = self._starts.of(partition)
                if start is not None and start.offset == offset and is_ours(start.metadata):
                    return str(start.metadata)  # as the previous owner wrote them
            found = self._completion.still_committed(partition)
            if found is None:
                return ""
            if by_hand and not claims and found.completion.is_complete(offset):
                return ""
            remaining, leader_epoch = self._completion.remaining(partition, offset, claims)
            bound = found.bound
        if not remaining.gaps:  # as in most commits, and one may hold 10,000 partitions
            return ""
        if bound != self.bound(partition):
            return ""  # they are of the old topic, which was created anew since
        return remaining.encode(limit, bound, leader_epoch)

    # -- locked -----------------------------------------------------------------------------------

    def _begin(self, found: Partition, start: OffsetAndMetadata, first: int, bound: str) -> None:
        """The first records since the assignment have come; the partition starts at this commit."""
        partition = found.former.partition
        if start.offset > 0:
            found.epochs.learn(start.offset - 1, start.offset, start.leader_epoch)
        found.origin = carried_on(start, bound)
        if told := inherit(partition, start, bound):
            found.completion.inherited = told
        if not found.is_sought:
            self._commits.begin(partition, start.offset, is_described(start))
        elif first > start.offset:
            found.epochs.learn(start.offset, first, UNKNOWN)
        if first < start.offset:  # sought, or found to be truncated
            self._commits.move_back(partition, first)

    def _carried_on(self, partition: TopicPartition, bound: str) -> Origin | None:
        """What its commits say of the queries that had the partition before."""
        found = self._completion.still_committed(partition)
        if found is not None:
            return found.origin if found.bound == bound else None
        start = self._starts.of(partition)
        return None if start is None else carried_on(start, bound)

    def _refuse_lost(self, offsets: Mapping[TopicPartition, int]) -> None:
        ownership, named = self._ownership, offsets.keys()
        # With partitions assigned by hand there is no membership to commit for.
        if not self._subscription.subscribed:
            refuse_strangers(offsets, frozenset())
        # Called for every record: the assignment would be a copy of all owned partitions.
        elif not (named <= ownership.owned and named.isdisjoint(ownership.releasing)):
            refuse_strangers(offsets, ownership.assignment)
        refuse_overdue(self._ownership, offsets)
        self._membership.record.refuse_lost(offsets)

    def _hear_of_lost(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A commit is refused: its workers need not be heard again about what is lost."""
        for partition, offset in offsets.items():
            try:
                self._refuse_lost({partition: offset})
            except PartitionsLostError:
                self._completion.refused(partition, offset)


def refuse_overdue(ownership: Ownership, offsets: Mapping[TopicPartition, Any]) -> None:
    """Refuse partitions past their deadline: they are lost, even before a poll says so."""
    if not ownership.has_deadlines:  # called for every record, and reading a clock takes time
        return
    now = time.monotonic()
    overdue = [p for p in offsets if ownership.is_overdue(p, now)]
    if overdue:
        raise not_owned({p: offsets[p] for p in overdue})
