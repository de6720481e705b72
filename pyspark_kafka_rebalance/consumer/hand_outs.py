"""HandOuts: what polls handed out and what of it may be committed, under one lock.

Any thread says what is processed, while the polling thread hands out, gives up and loses
partitions, and the I/O loop accepts commits. One lock makes each of these one step: a commit is
counted before its partition stops being assigned, or it is refused.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..errors import PartitionsLostError, UnreadableRecordError
from .commit_by_hand import EnteredCommit
from .completion import Completion
from .gaps import Gap
from .group_membership import GroupMembership
from .inherited import inherit
from .leader_epochs import UNKNOWN
from .member_record import refuse_strangers
from .ownership import Ownership
from .remaining import is_ours

if TYPE_CHECKING:
    from .kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: A seek to the end goes beyond every record; offsets are signed and of 64 bits.
LOG_END = 2**63 - 1


class HandOuts:
    """The records that polls returned, until they are processed or their partition is gone.

    Attributes
    ----------
    lock : threading.Lock
        Held while a commit is added, and while Ownership changes. Never held over I/O or a
        listener.
    """

    def __init__(
        self, io: GroupCoordinator, membership: GroupMembership, ownership: Ownership
    ) -> None:
        self.lock = threading.Lock()
        self._group_id = io.group_id
        self._subscription = io.subscription
        self._metadata = io.metadata
        self._starts = io.starts
        self._membership = membership
        self._ownership = ownership
        self._completion = Completion()
        membership.commits.metadata_of = self._gaps_behind
        # What the gaps of each are bound to, from its first records on.
        self._bounds: dict[TopicPartition, str] = {}
        # Records at which polls stopped, by partition: what cannot be read, [start, end).
        self._unreadable: dict[TopicPartition, Gap] = {}
        # Those on their way; whoever sends one, or waits for it, keeps it.
        self._entered: WeakSet[EnteredCommit] = WeakSet()

    # -- any thread -------------------------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Everything below these next offsets is processed: commit it in the background.

        Raises PartitionsLostError, and then nothing of the call counts.
        """
        with self.lock:
            self._refuse_lost(offsets)
            # As long as nothing is handed out, it may be where the group is, and no less.
            starts = {p: start.offset for p in offsets if (start := self._starts.of(p))}
            self._completion.refuse_truncated(
                {p: offset for p, offset in offsets.items() if offset != starts.get(p)}
            )
            begun = self._completion.has_begun
            news = {p: at for p, at in offsets.items() if begun(p) or at >= starts.get(p, at)}
            self._membership.commit(self._entries(self._completion.complete_below(news)))

    def processed(self, partition: TopicPartition, offsets: Collection[int]) -> None:
        """The records at these offsets are processed: commit how far all of them are.

        Raises PartitionsLostError, and ValueError for what was not handed out.
        """
        with self.lock:
            self._refuse_lost({partition: max(offsets, default=0)})
            position = self._completion.complete(partition, offsets)
            if position is not None:
                self._membership.commit(self._entries({partition: position}))
            elif (position := self._completion.position(partition)) is not None:
                self._membership.commits.tell_gaps(self._entries({partition: position}))

    def unprocessed(self) -> frozenset[TopicPartition]:
        """The partitions with records that were handed out and are not processed."""
        with self.lock:
            return self._completion.pending()

    def enter(self, offsets: Mapping[TopicPartition, Any], retried: bool) -> EnteredCommit:
        """Put a commit by hand in its place among the others.

        Raises PartitionsLostError.
        """
        by_hand = EnteredCommit(offsets, retried, self._accepted)
        if not offsets:
            by_hand.future.success(None)
            return by_hand
        with self.lock:
            self._refuse_overdue(by_hand.offsets)
            self._membership.commit_by_hand(by_hand)
            self._entered.add(by_hand)
        return by_hand

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of what waits; what was handed out does not count any more."""
        with self.lock:
            self._membership.commits.drop(partitions)
            self._completion.forget(partitions)
            for partition in partitions:
                self._starts.take(partition)  # the group is to go back from there

    # -- the thread that polls --------------------------------------------------------------------

    def hand_out(
        self, records: Mapping[TopicPartition, list[Any]]
    ) -> dict[TopicPartition, list[Any]]:
        """A poll returns these records, or Arrow batches of them; to hand out, what is left.

        Without what the owner before had processed behind a slow record.
        """
        owed = {}
        with self.lock:
            for partition, found in records.items():
                bound = self._bound(partition)
                brought = list(_offsets(found))
                first, after = brought[0][0][0], brought[-1][0][-1] + 1
                if (start := self._starts.take(partition)) is not None:
                    self._begin(partition, start, first, bound)
                unreadable = self._unreadable.get(partition)
                if unreadable is not None and after > unreadable.start:  # it could be read now
                    del self._unreadable[partition]
                same = self._bounds.setdefault(partition, bound) == bound
                if self._completion.was_sought(partition):
                    self._handed_out_again(partition, first)
                    if not same:
                        self._begin_anew(partition, first, bound)
                self._goes_on(partition, first)
                if not same:
                    self._completion.disinherit(partition)
                if (inherited := self._completion.inherited(partition, first)) is not None:
                    for offsets, epoch in brought:
                        self._completion.learn_epoch(partition, offsets[0], offsets[-1] + 1, epoch)
                    inherited = inherited.as_seen(found)
                    self._completion.inherit(partition, inherited)
                    found = inherited.still_owed(found)
                    brought = list(_offsets(found)) if found else []
                for offsets, epoch in brought:
                    self._completion.hand_out(partition, offsets, epoch)
                if inherited is not None:
                    self._completion.go_on(partition, after)
                if found:
                    owed[partition] = found
        return owed

    def look_for_truncations(self, handed_out: Collection[TopicPartition]) -> None:
        """Positions that went back where there is no record yet."""
        with self.lock:
            for partition in self._completion.partitions() - set(handed_out):
                position = self._subscription.position(partition)
                # Where the application sought, lower offsets may be committed from the seek on, and
                # once more from the next hand-out on; not with each poll in between.
                if position is not None and not self._completion.was_sought(partition):
                    self._goes_on(partition, position)

    def stopped(self, error: UnreadableRecordError) -> None:
        """A poll raises this, and will again until the application seeks past it."""
        if error.next_offset is not None:
            with self.lock:
                partition = TopicPartition(error.topic, error.partition)
                self._unreadable[partition] = Gap(error.offset, error.next_offset)

    def sought(self, partitions: Collection[TopicPartition], offset: int | None = None) -> None:
        """The application said where polls go on; at which offset, as far as that is known.

        `LOG_END` is beyond every record.
        """
        with self.lock:
            for partition in partitions:
                unreadable = self._unreadable.pop(partition, None)
                if unreadable is not None and unreadable.end == offset:
                    self._completion.skip(partition, *unreadable)
                    return  # an offset is given for one partition alone, whose polls go on
            self._completion.sought(partitions, offset)
            if offset is not None and self._subscription.subscribed:
                for partition in partitions:
                    self._membership.commits.move_back(partition, offset)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """The revokes of these are completed; their last commits may be on their way.

        What was processed behind a slow record goes with them. Locked by the caller.
        """
        self._membership.commits.hurry()
        partitions = frozenset(partitions)
        self._completion.leave(partitions)
        for partition in partitions:
            self._unreadable.pop(partition, None)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """These are lost, or released; locked by the caller."""
        partitions = frozenset(partitions)
        self._membership.commits.forget_gaps(partitions)
        self._completion.forget(partitions)
        for partition in partitions:
            self._unreadable.pop(partition, None)
            self._bounds.pop(partition, None)

    def forget_all(self) -> None:
        """Nothing is assigned any more; locked by the caller."""
        self._unreadable.clear()
        self._bounds.clear()
        self._completion.forget_all()

    def end(self, give_up: bool = False) -> bool:
        """Refuse commits from here on, once none is outstanding; whether they are refused now."""
        with self.lock:
            if self._membership.commits.any_outstanding() and not give_up:
                return False
            self._ownership.give_up(self._ownership.owned)
            self._completion.forget_all()
            return True

    # -- the I/O loop -----------------------------------------------------------------------------

    def _gaps_behind(
        self, partition: TopicPartition, offset: int, limit: int, by_hand: bool
    ) -> str:
        """The metadata of a commit of this offset: what is processed beyond.

        By hand the group may be moved back below what is processed: then that is to come again.
        """
        with self.lock:
            if not self._completion.has_begun(partition):
                start = self._starts.of(partition)
                if start is not None and start.offset == offset and is_ours(start.metadata):
                    return str(start.metadata)  # as the owner before has told
            if by_hand and self._completion.is_complete(partition, offset):
                return ""
            remaining, leader_epoch = self._completion.remaining(partition, offset)
            bound = self._bounds.get(partition)
        if not remaining.gaps:  # of most commits, and 10,000 partitions may come in one
            return ""
        if bound != self._bound(partition):
            return ""  # they are those of a topic that was created anew since
        return remaining.encode(limit, bound, leader_epoch)

    # -- locked -----------------------------------------------------------------------------------

    def _begin(
        self, partition: TopicPartition, start: OffsetAndMetadata, first: int, bound: str
    ) -> None:
        """The first records since the partition was assigned, which begin with this commit."""
        if start.offset > 0:
            self._completion.learn_epoch(
                partition, start.offset - 1, start.offset, start.leader_epoch
            )
        if told := inherit(partition, start, bound):
            self._completion.inherit(partition, told)
        if self._completion.was_sought(partition) and first > start.offset:
            self._completion.learn_epoch(partition, start.offset, first, UNKNOWN)
        described = bool(start.metadata) and not is_ours(start.metadata)
        self._membership.commits.begin(partition, start.offset, described)
        if first < start.offset:  # sought, or found to be truncated
            self._membership.commits.move_back(partition, first)

    def _bound(self, partition: TopicPartition) -> str:
        """What a commit's metadata are bound to: the same offsets elsewhere are other records."""
        return (
            f"{self._metadata.topic_id(partition.topic) or partition.topic}-{partition.partition}"
        )

    def _refuse_lost(self, offsets: Mapping[TopicPartition, int]) -> None:
        # Assigned by hand there is no membership that commits.
        committable = self._ownership.assignment if self._subscription.subscribed else frozenset()
        refuse_strangers(offsets, committable)
        self._refuse_overdue(offsets)
        self._membership.record.refuse_lost(offsets)

    def _refuse_overdue(self, offsets: Mapping[TopicPartition, Any]) -> None:
        """Past its deadline a partition is lost, even if no poll has said so yet."""
        now = time.monotonic()
        in_time = frozenset(p for p in offsets if not self._ownership.is_overdue(p, now))
        refuse_strangers(offsets, in_time)

    def _goes_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls of the partition go on from this offset, which may be a lower one."""
        if self._completion.was_sought(partition):
            self._membership.commits.move_back(partition, offset)
        elif self._completion.truncated_at(partition, offset):
            log.warning(
                "group %s: %s-%d goes back to offset %d: its log was truncated or its topic "
                "created anew; what was processed from there on is not committed any more",
                self._group_id,
                *partition,
                offset,
            )
            self._membership.commits.truncate(partition, offset)
            self._completion.truncate(partition, offset)
            self._bounds.pop(partition, None)
            self._handed_out_again(partition, offset)

    def _begin_anew(self, partition: TopicPartition, offset: int, bound: str) -> None:
        """After a seek the records from this offset on are those of a topic created anew.

        What was handed out there before is another log's. Below, the same may hold; it is kept all
        the same, since the metadata may tell of the new topic later than polls.
        """
        self._bounds[partition] = bound
        if partition in self._completion.partitions():
            self._membership.commits.truncate(partition, offset)
            self._completion.truncate(partition, offset)

    def _handed_out_again(self, partition: TopicPartition, offset: int) -> None:
        """What is answered from now on does not say that the records from here on are processed."""
        for by_hand in self._entered:
            by_hand.handed_out_again(partition, offset)

    def _accepted(self, by_hand: EnteredCommit) -> None:
        """On the I/O loop, when the broker has accepted it, or some of its partitions."""
        processed = by_hand.processed()
        with self.lock:
            reached = self._completion.complete_below(processed)
            # Beyond what was committed, or what that counts for where it is handed out again since.
            beyond = {
                p: offset
                for p, offset in reached.items()
                if offset > processed[p] and p not in by_hand.moved_back
            }
            if beyond:
                # Lost since: then there is nothing to commit, and the next poll says so.
                with contextlib.suppress(PartitionsLostError):
                    self._membership.commit(self._entries(beyond))

    def _entries(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, Any]:
        """These next offsets with the leader epochs of the last records before them (KIP-320)."""
        epoch = self._completion.leader_epoch
        return {p: OffsetAndMetadata(offset, "", epoch(p, offset)) for p, offset in offsets.items()}


def _offsets(found: Sequence[Any]) -> Iterator[tuple[Sequence[int], int]]:
    """The offsets of records, or of each Arrow batch, and their leader epoch (-1: unknown).

    A range where none is missing between; for each leader epoch apart.
    """
    if isinstance(found[0], ConsumerRecord):
        if found[0].leader_epoch != found[-1].leader_epoch:
            for _, same in groupby(found, key=lambda record: record.leader_epoch):
                yield from _offsets(list(same))
            return
        whole = range(found[0].offset, found[-1].offset + 1)
        offsets = whole if len(whole) == len(found) else [record.offset for record in found]
        yield offsets, found[0].leader_epoch
        return
    for batch in found:
        offsets = batch.column("offset")
        whole = range(offsets[0].as_py(), offsets[-1].as_py() + 1)
        yield whole if len(whole) == batch.num_rows else offsets.to_pylist(), -1
