"""CommittingConsumer: how an application reports the records that it has processed.

Background commits and commits by hand share one path and one order (``offset_commits.py``). What
polls handed out is in ``hand_outs.py``. After a seek, lower offsets may be committed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.errors import IllegalStateError, KafkaTimeoutError
from kafka.future import Future
from kafka.structs import TopicPartition

from ..errors import OptionError, PartitionsLostError
from .catching_up import CatchingUp
from .member_status import MemberStatus
from .offsets.checked_arguments import (
    checked_commit,
    checked_offset,
    checked_offsets,
    checked_partition,
    checked_partitions,
)
from .offsets.commit_metadata import Remaining
from .progress.hand_outs import HandOuts
from .progress.sought import LOG_END
from .taken import returns_what_it_takes

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord


class CommittingConsumer(MemberStatus):
    """A KafkaConsumer whose commits go on during joins, and end when ownership ends."""

    _hand_outs: HandOuts
    _catching_up: CatchingUp | None = None

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background.

        Commits are aggregated, in order and one at a time, and go on during joins. The group learns
        of a completed revoke only once the broker has acknowledged them; ``close`` drains them. Any
        thread may call this, and also ``assignment``, ``acknowledged``, ``current_lag`` and the
        lists.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The next offset to read (last processed + 1).

        Raises
        ------
        PartitionsLostError
            This group member does not own one of the partitions (if assigned by hand, use
            ``commit``), or its log was truncated since and the offset is that of a record that is
            gone. Nothing of this call is committed.
        """
        self._hand_outs.commit_processed(checked_offsets("commit_processed", offsets))

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records of a partition at these offsets are processed, in any order.

        Commits, as ``commit_processed`` does, as far as everything that polls handed out is
        processed: the lowest offset that is not, or the one after the last. For asynchronous
        workers: any thread may call it, also again for the same record.

        Parameters
        ----------
        partition : TopicPartition
            Where the records come from.
        *offsets : int
            The records' own offsets (not the next ones).

        Raises
        ------
        PartitionsLostError
            The partition is not owned any more, or is owned anew and these records were handed out
            before that; a worker cannot know. The present owner delivers them too.
        ValueError
            No poll has handed out one of them. As with the other error, nothing of this call
            counts.
        """
        partition = checked_partition("processed", partition)
        self._hand_outs.processed(
            partition, [checked_offset("processed", partition, offset) for offset in offsets]
        )

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As ``commit_processed``, but says all that is left to process of each partition.

        For applications that read records by other means than polls. The group's offset is the
        lowest one that is left. The rest travels as the commit's metadata, and is committed again
        if only that has changed.

        Raises
        ------
        PartitionsLostError
            As ``commit_processed``.
        """
        checked_partitions("commit_remaining", remaining)
        self._hand_outs.commit_remaining(remaining)

    def describe_commits(self, describe: Callable[[TopicPartition, int, int, str], str]) -> None:
        """Let each commit say who made it, as the first part of its metadata.

        Parameters
        ----------
        describe : callable
            From a partition, the offset to commit, the most bytes, and what metadata are bound to;
            called on the I/O thread. See ``Origin.encode``.
        """
        self._hand_outs.describe = describe

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """What ``commit_remaining`` was given last, if the broker has accepted it; else None."""
        return self._hand_outs.acknowledged_remaining(partition)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that polls handed out and nobody has ``processed``."""
        return self._hand_outs.unprocessed()

    def commit(self, offsets: Any = None, timeout_ms: float | None = None) -> None:
        """``KafkaConsumer.commit``: what the broker accepts counts as processed.

        It shares one order with all other commits of this consumer: a background commit from before
        it is not sent after it, and one from after it only if it is higher. A lower offset than
        before moves the group back, as in Kafka's own consumers.

        Raises
        ------
        PartitionsLostError
            One of the partitions is not owned, or is lost, even if no poll has reported that yet.
            Nothing of this call is committed.
        KafkaTimeoutError
            No final answer within ``timeout_ms`` (default ``request_timeout_ms``).
        KafkaError
            The broker refuses the commit.
        """
        everything = offsets is None
        if not everything:
            offsets = checked_commit("commit", offsets)
        if not self._io.subscription.subscribed:
            super().commit(self._consumed() if everything else offsets, timeout_ms)
            return
        self.commit_entries(self._positions() if everything else offsets, timeout_ms, everything)

    def commit_entries(
        self, offsets: Mapping[TopicPartition, Any], timeout_ms: float | None, everything: bool
    ) -> None:
        """As ``commit`` of a member; ``everything``: these are all records that were handed out."""
        by_hand = self._hand_outs.by_hand.enter(offsets, retried=True, everything=everything)
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        try:
            self._io.loop.run(self._io.loop.wait_for, by_hand.future, timeout_ms)
        except KafkaTimeoutError:
            self._membership.commits.give_up(by_hand)
            raise

    def commit_async(self, offsets: Any = None, callback: Any = None) -> Future:
        """``KafkaConsumer.commit_async``: what the broker accepts counts as processed.

        It shares one order with all other commits, as ``commit`` does. It is sent once: a failure
        only reaches the future and the callback. The records then stay ``unprocessed``, so that
        their revoke can be delayed until another commit.
        """
        everything = offsets is None
        if not everything:
            offsets = checked_commit("commit_async", offsets)
        if not self._io.subscription.subscribed:
            offsets = self._consumed() if everything else offsets
            return super().commit_async(offsets, callback)
        if everything:
            offsets = self._positions()
        try:
            future = self._hand_outs.by_hand.enter(
                offsets, retried=False, everything=everything
            ).future
        except PartitionsLostError as error:
            future = Future().failure(error)
        return self._io.tell_in_polls(future, offsets, callback)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """``KafkaConsumer.seek``; a lower offset than before may be committed from here on."""
        self.seek_or_skip(partition, offset)

    def seek_or_skip(
        self, partition: TopicPartition, offset: int
    ) -> tuple[TopicPartition] | tuple[()]:
        """Seek; returns what was sought: nothing if the gaps' reader only skips the unreadable."""
        partition = checked_partition("seek", partition)
        offset = checked_offset("seek", partition, offset)
        if self._catching_up is not None and self._catching_up.skip(partition, offset):
            return ()  # polls go on where they are
        super().seek(partition, offset)
        self._io.subscription.ahead.forget([partition])
        self._hand_outs.seeks.sought([partition], offset)
        return (partition,)

    def refuse_iteration_of_two(self) -> None:
        """Raise OptionError if live records and those of the gaps have no common order."""
        if self._catching_up is not None and not self._catching_up.in_order:
            raise OptionError(
                "parallel_rebalance",
                "live",
                "None or 'ordered' to iterate, because an iteration has one order; or call poll",
            )

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_beginning``; lower offsets may be committed from there on."""
        self.seek_to_beginning_or_skip(*partitions)

    def seek_to_beginning_or_skip(self, *partitions: TopicPartition) -> Collection[TopicPartition]:
        """Seek; returns what was sought, not where the gaps' reader skips what the log lacks."""
        partitions = tuple(checked_partitions("seek_to_beginning", partitions))
        asked = partitions or self._io.subscription.owned()
        if self._catching_up is not None:
            skipped = self._catching_up.skip_to_beginning(asked)
            asked = partitions = tuple(p for p in asked if p not in skipped)
            if skipped and not partitions:
                return ()
        super().seek_to_beginning(*partitions)
        self._io.subscription.ahead.forget(asked)
        self._hand_outs.seeks.sought(asked)
        return asked

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_end``."""
        partitions = tuple(checked_partitions("seek_to_end", partitions))
        super().seek_to_end(*partitions)
        sought = partitions or self._io.subscription.owned()
        self._io.subscription.ahead.forget(sought)
        self._hand_outs.seeks.sought(sought, LOG_END)

    def pause(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.pause``; a merge by timestamps goes on without them."""
        super().pause(*self._assigned_ones("pause", partitions))
        self._io.subscription.ahead.dirty = True

    def resume(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.resume``."""
        super().resume(*self._assigned_ones("resume", partitions))
        self._io.subscription.ahead.dirty = True

    def assign(self, partitions: Collection[TopicPartition]) -> None:
        """``KafkaConsumer.assign``."""
        partitions = checked_partitions("assign", partitions)
        super().assign(partitions)
        if partitions:
            self._membership.record.assigned_by_hand()
        with self._hand_outs.lock:
            self._io.subscription.taken.forget(self._io.subscription.taken.positions.keys())
        ahead = self._io.subscription.ahead
        ahead.forget(ahead.buffered() - set(partitions))

    def catch_up_lag(self, partition: TopicPartition) -> int:
        """How many offsets of the set-aside backlog are still to be handed out (KIP-333).

        0 once the partition has caught up. Like ``current_lag``, which is the lag of the live
        records, it asks no broker, counts offsets, and raises IllegalStateError if the partition is
        not assigned.
        """
        partition = checked_partition("catch_up_lag", partition)
        if partition not in self.assigned:
            raise IllegalStateError(f"{partition} is not assigned")
        return self._hand_outs.gaps.lag(partition)

    def position(self, partition: TopicPartition, timeout_ms: float | None = None) -> int | None:
        """``KafkaConsumer.position``; with "ordered" that of the backlog, while there is one.

        With "live" it is always the live one.
        """
        partition = checked_partition("position", partition)
        position: int | None = super().position(partition, timeout_ms)
        if position is not None:
            position = self._io.subscription.position(partition)
        with self._hand_outs.lock:
            self._hand_outs.carry_out()
        if self._catching_up is not None and self._catching_up.in_order:
            below = self._hand_outs.gaps.next_offset(partition)
            return position if below is None else below
        return position

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the commits that wait, and let a lower offset be committed next.

        For the one case in which a committed position must move back: the records are gone. What
        was handed out is forgotten; seek to where polls are to go on.
        """
        self._hand_outs.forget_commits(checked_partitions("forget_commits", partitions))

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions that the broker lacks, whose commit was given up since the last call."""
        return self._hand_outs.take_unknown()

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the assigned topic; None in the classic protocol, which assigns by name."""
        return self._membership.parts.lane.topic_id_of(partition)

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are answered; False if ``timeout_ms`` runs out first.

        Commits of a lost partition are not waited for: a poll reports the loss.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while self._membership.commits.any_outstanding():
            self._membership.commits.hurry()
            if time.monotonic() >= deadline:
                return False
            self._membership.raise_if_failed()
            time.sleep(0.002)
        return True

    @returns_what_it_takes
    def __next__(self) -> ConsumerRecord:
        """The next record of the library's iterator, which may drop records that a poll brought."""
        catching_up = self._catching_up
        self.refuse_iteration_of_two()
        while True:
            record = super().__next__()
            if not self._io.subscription.subscribed:
                return record
            partition = TopicPartition(record.topic, record.partition)
            if catching_up is not None:
                handed_out = catching_up.iterated(partition, record)
                if handed_out:
                    return record
                if handed_out is not None:
                    continue  # lost, or sought past
            if self._hand_outs.hand_out({partition: [record]}):
                return record

    def _assigned_ones(
        self, call: str, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """The partitions, all of which are assigned; else kafka-python fails halfway."""
        asked, owned = checked_partitions(call, partitions), self._io.subscription.owned()
        for partition in asked:
            if partition not in owned:
                raise IllegalStateError(f"{call}: {partition} is not assigned")
        return asked

    def returned_positions(self) -> dict[TopicPartition, Any]:
        """Where the application is in each assigned partition: what ``commit()`` commits."""
        return self._positions() if self.is_subscribed else self._consumed()

    def _positions(self) -> dict[TopicPartition, Any]:
        """What a commit by hand without offsets commits; without completed revokes."""
        consumed = self._consumed()
        return {p: consumed[p] for p in self.assigned & consumed.keys()}

    def _consumed(self) -> dict[TopicPartition, Any]:
        return self._io.subscription.consumed()
