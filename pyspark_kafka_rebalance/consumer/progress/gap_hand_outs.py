"""GapHandOuts: hands out backlogs beside the live records (KIP-333)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import UnreadableRecordError
from ..commits.commit_by_hand import CommitByHand
from ..offsets.commit_metadata import Decoded, Remaining, Told
from ..offsets.found_records import offsets_of, within
from ..offsets.leader_epochs import UNKNOWN
from ..offsets.offset_set import Gap, less
from .part import Part, Shared
from .partition import LOG_END, carried_on, is_described, warn_of

log = logging.getLogger(__name__)


class GapHandOuts(Part):
    """Hands out the gaps of partitions beside their live records (KIP-333).

    A part of ``HandOuts``, under its lock. ``Completion`` knows the gaps and which of their records
    are processed; this class updates it for the gaps' reader and for commits.

    Invariants:
     1. A record of a gap is handed out only while it is unread. A record that the reader returns
        after it was lost, sought past, truncated or handed out is dropped.
     2. With "live", an explicit commit of a partition that catches up carries our metadata, which
        omit no unprocessed record. A commit below the group's offset, and any commit with
        "ordered", is sent as it is.
    """

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        # Partitions that may have unread gaps; checked and dropped when they are used.
        self._behind: set[TopicPartition] = set()
        self.known = False  # whether any backlog was ever set aside

    # -- the I/O loop, when the partition is assigned ---------------------------------------------

    def left(self, partition: TopicPartition, start: OffsetAndMetadata) -> Decoded:
        """The offsets that the group has not processed, according to this commit."""
        return Remaining.decode(start.offset, start.metadata, self.bound(partition))

    def set_aside(
        self,
        partition: TopicPartition,
        start: OffsetAndMetadata,
        remaining: Remaining,
        in_order: bool,
    ) -> None:
        """Start the partition at the live position; the gaps below are read in parallel."""
        told = self.left(partition, start)
        if told.told not in (Told.GAPS, Told.NOTHING):
            warn_of(partition, start, told.told)
        with self.lock:
            found = self._completion.partition(partition)
            epochs = found.epochs
            if start.offset > 0:
                epochs.learn(start.offset - 1, start.offset, start.leader_epoch)
            epochs.learn(start.offset, remaining.live, UNKNOWN)
            last = told.remaining.live - 1
            if told.leader_epoch >= 0 and start.offset <= last and last not in remaining:
                epochs.learn(last, last + 1, told.leader_epoch)
            found.completion.set_aside(remaining, in_order)
            found.bound = self.bound(partition)
            found.origin = carried_on(start, found.bound)
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
        with self.lock:
            self.carry_out()
            return sum(gap.end - gap.start for gap in self._completion.unread(partition))

    @property
    def any_unread(self) -> bool:
        """Whether any gap may be unread, even one that is not to be read now."""
        return bool(self._behind)

    def leader_epoch(self, partition: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 if it is unknown.

        Also -1 in a recreated topic, whose epochs start over: with an old epoch, its log would seem
        truncated at its present end, and the records up to there would be skipped.
        """
        with self.lock:
            before = self._completion.bound(partition)
            if before not in (None, self.bound(partition)):
                return UNKNOWN
            return self._completion.epoch_before(partition, next_offset)

    def next_offset(self, partition: TopicPartition) -> int | None:
        """The offset to read next of the partition's gaps; None if there is nothing to read."""
        unread = self._completion.unread(partition)
        return unread[0].start if unread else None

    def positions(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The positions to commit of the partitions that catch up; the caller holds the lock."""
        behind = [p for p in partitions if self._completion.catching_up(p) is not None]
        found = {p: self._completion.position(p) for p in behind}
        return {p: position for p, position in found.items() if position is not None}

    def claim(self, by_hand: CommitByHand, everything: bool) -> None:
        """Fit an explicit commit to the partitions that catch up; the caller holds the lock.

        Raises ValueError for the application's own metadata (invariant 2).
        """
        for partition, entry in list(by_hand.offsets.items()):
            found = self._completion.catching_up(partition)
            position = self._completion.position(partition)
            if found is None or position is None:
                continue
            if found.aside.in_order:
                reached = self.next_offset(partition) if everything else None
                if reached is not None:
                    epoch = self._completion.epoch_before(partition, reached)
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
                former = self._completion.partition(partition).former
                claims = former.claims(found.aside, entry.offset)
            claims = (*self._under_way.claims_of(partition), *claims)
            position = self._completion.position(partition, claims)
            assert position is not None
            epoch = self._completion.epoch_before(partition, position)
            by_hand.offsets[partition] = OffsetAndMetadata(position, "", epoch)
            by_hand.claims[partition] = claims

    # -- the thread that polls --------------------------------------------------------------------

    def to_read(
        self, readable: Collection[TopicPartition]
    ) -> dict[TopicPartition, tuple[Gap, ...]]:
        """The unread gaps of these partitions."""
        if not self._behind:
            return {}
        with self.lock:
            unread = {p: tuple(self._completion.unread(p)) for p in sorted(self._behind)}
            # A seek hides unread gaps, and may be undone.
            known = {p: found for p in unread if (found := self._completion.get(p)) is not None}
            self._behind = {p for p, found in known.items() if found.completion.aside.unread}
            for partition in known.keys() - self._behind:
                known[partition].unreadable_gap = None
        return {p: gaps for p, gaps in unread.items() if gaps and p in readable}

    def look_at(self, records: Mapping[TopicPartition, list[Any]]) -> dict[TopicPartition, Any]:
        """Filter the unread ones of these records (invariant 1); hand out none yet."""
        with self.lock:
            found = {p: within(each, self._completion.unread(p)) for p, each in records.items()}
        return {p: each for p, each in found.items() if each}

    def hand_out(
        self, records: Mapping[TopicPartition, list[Any]], passed: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, list[Any]]:
        """The gaps' reader returned these records, and has passed these offsets.

        Returns the records that are handed out once the poll has returned (invariant 1).
        """
        owed = {}
        with self.lock:
            for partition, end in passed.items():
                found = self._completion.get(partition)
                if found is None or not found.completion.catches_up or not found.unread():
                    continue
                unread, unreadable = found.unread(), found.unreadable_gap
                if unreadable is not None and end > unreadable.start:  # it could be read now
                    found.unreadable_gap = None
                kept = within(records.get(partition, []), unread)
                if kept:
                    owed[partition] = kept
                brought = list(offsets_of(kept)) if kept else []
                note = partial(self._returned, partition, brought, min(end, unread[-1].end))
                self._subscription.taken.note(partition, note)
        return owed

    def _returned(
        self, partition: TopicPartition, brought: list[tuple[Sequence[int], int]], end: int
    ) -> None:
        """The poll has returned these records; no others exist below this end."""
        found = self._completion.catching_up(partition)
        if found is None:
            return
        before = self._completion.position(partition)
        for offsets, epoch in brought:
            found.catch_up(offsets, offsets[-1] + 1, epoch)
        found.catch_up((), end)
        self._tell_if_moved(partition, before)

    def _tell_if_moved(self, partition: TopicPartition, before: int | None) -> None:
        """Commit progress over offsets that do not exist: no worker will report these."""
        after = self._completion.position(partition)
        if after is not None and before != after:
            self._commits.tell_gaps(self._completion.entries({partition: after}))

    def trim(self, partition: TopicPartition, begin: int, end: int) -> None:
        """The log holds only [begin, end): drop the unread offsets outside."""
        with self.lock:
            unread = list(self._completion.unread(partition))
        gone = less(unread, [Gap(begin, end)])
        if gone:
            log.warning(
                "group %s: cannot catch up on all of %s-%d from offset %d on: its log now holds "
                "[%d, %d); %s are gone and will not be delivered",
                self._group_id,
                *partition,
                unread[0].start,
                begin,
                end,
                ", ".join(f"[{start}, {after})" for start, after in gone[:10]),
            )
        with self.lock:
            found = self._completion.catching_up(partition)
            if found is not None:
                before = self._completion.position(partition)
                found.catch_up((), begin)
                found.aside.forget(end)
                self._tell_if_moved(partition, before)

    def out_of_range(self, offsets: Mapping[TopicPartition, int]) -> None:
        """A poll raises that these offsets are not in the log, and will again; like ``stopped``."""
        for partition in offsets:
            found = self._completion.get(partition)
            if found is not None and (unread := found.unread()):
                found.unreadable_gap = Gap(unread[0].start, LOG_END)

    def stopped(self, error: UnreadableRecordError) -> None:
        """A poll raises this for a gap, and will again until the application seeks past it."""
        found = self._completion.get(TopicPartition(error.topic, error.partition))
        if found is not None and error.next_offset is not None:
            found.unreadable_gap = Gap(error.offset, error.next_offset)

    def skip(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a seek to this offset only skips records that the gaps' reader could not read."""
        with self.lock:
            self.carry_out()
            found = self._completion.get(partition)
            unreadable = None if found is None else found.unreadable_gap
            if found is None or unreadable is None or not found.unread():
                return False
            gives_up = offset == unreadable.end
            if found.completion.catches_up and unreadable.end == LOG_END:
                # The start of the log is unknown.
                live_at = self._subscription.position(partition) or 0
                highest = max(found.completion.continues_at or 0, live_at)
                gives_up = unreadable.start < offset <= highest
            if gives_up and found.completion.catches_up:
                found.unreadable_gap = None
                found.completion.leave_out(unreadable.start, offset)
        return gives_up

    def begin_with_the_log(
        self, partitions: Collection[TopicPartition]
    ) -> frozenset[TopicPartition]:
        """Return and clear the partitions whose gaps a poll found out of range."""
        out_of_range = set()
        for partition in partitions:
            found = self._completion.get(partition)
            unreadable = None if found is None else found.unreadable_gap
            if found is not None and unreadable is not None and unreadable.end == LOG_END:
                found.unreadable_gap = None
                out_of_range.add(partition)
        return frozenset(out_of_range)
