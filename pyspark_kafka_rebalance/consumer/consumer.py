"""DeferredRevokeConsumer: a Kafka consumer whose revokes are requested now and completed later.

KIP-983: partitions that stay are read at full speed through the whole rebalance, and partitions to
be revoked are processed and committed first, outside any callback::

    consumer = DeferredRevokeConsumer("orders", group_id="g", bootstrap_servers=...)
    while True:
        result = consumer.poll_with_rebalance(timeout_ms=100)
        start_processing(result.records)
        consumer.commit_processed(offsets_of_what_is_processed())
        consumer.delay_revoke(p for p in result.to_be_revoked if still_processing(p))
        abort_processing(result.lost)

Three parts do the work: ``Polls`` reads and takes part in the rebalance, ``GroupMembership`` keeps
the member in the group, and ``HandOuts`` tracks the offsets to commit. Queries about topics and
offsets go straight to the seam to kafka-python.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import KafkaConsumer
from kafka.errors import IllegalStateError, KafkaTimeoutError
from kafka.future import Future
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition

from ..errors import OptionError, PartitionsLostError
from ..transport.forks import leave_to_parent, refuse
from ..transport.secured_clients import net_client
from .catch_up import CatchUpOptions
from .cluster_queries import group_commits, leader_gone
from .configuration import checked_config
from .fetch_metadata import EndOffsets, FetchMetadata
from .gaps_beside_live import CatchingUp
from .kafka_python.backlogs import LogBacklogs
from .kafka_python.coordinator import GroupCoordinator, replace_coordinator
from .kafka_python.next_records import next_timestamps
from .kafka_python.polling import (
    end_iteration,
    is_closed,
    iterate_with,
    leave_polling_to_parent,
    resume_what_was_begun,
    tell_before_taking,
    watch_fetches,
)
from .kafka_python.records import ReadableRecords, name_what_is_unreadable
from .membership.group_membership import GroupMembership, chosen_protocol, membership_in
from .membership.member_parts import MemberCallbacks
from .membership.ownership import Ownership
from .observer import Observed
from .offsets.checked_arguments import (
    checked_commit,
    checked_offset,
    checked_offsets,
    checked_partition,
    checked_partitions,
)
from .offsets.commit_metadata import GroupCommit, Remaining
from .offsets.found_records import RecordTime
from .poll_result import PollResult as PollResult
from .polls import ListenerCalls, Polls, Rebalancing
from .progress.hand_outs import HandOuts
from .progress.partition import LOG_END
from .reading import Reading
from .taken import returns_what_it_takes

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka.consumer.fetcher import ConsumerRecord
    from kafka.structs import ConsumerGroupMetadata
    from typing_extensions import Self, Unpack

    from ..settings.typed_settings import (
        GroupProtocolName,
        KafkaConsumerSettings,
        ParallelRebalance,
    )

log = logging.getLogger(__name__)


#: Rows of one poll_arrow: about 10 MB of 100-byte records, and a few milliseconds of decoding.
_ARROW_POLL_RECORDS = 100_000


class DeferredRevokeConsumer(KafkaConsumer):  # type: ignore[misc]
    """kafka-python's ``KafkaConsumer`` with KIP-983's deferred revoke.

    All of ``KafkaConsumer`` works as before (``seek``, ``pause``, ``position``, security settings,
    iteration, rebalance listeners, which run on the polling thread and may commit).

    Parameters
    ----------
    *topics : str
        Topics to subscribe to; or call ``subscribe`` (also by pattern).
    group_id : str
        Required.
    group_protocol : {"classic", "consumer", "auto"}
        The classic protocol with cooperative rebalancing (KIP-429, the default), the consumer group
        protocol (KIP-848: Apache Kafka 4.0 or later), or the latter where the brokers offer it.
        ``docs/consumer.md`` compares them.
    group_remote_assignor : str, optional
        Consumer protocol: the server-side assignor, such as ``"uniform"`` or ``"range"``; by
        default the broker's.
    defer_revoke : bool, default True
        False completes a revoke in the poll that learned of it, as consumers did before.
    revoke_timeout_ms : int, optional
        How long a revoke may be deferred; then only the partitions that are not drained are lost.
        Default and upper bound: ``max_poll_interval_ms``, after which other clients would leave the
        group altogether.
    parallel_rebalance : {None, "live", "ordered"}
        KIP-333: if a partition is assigned with a backlog, polls start at the end of its log, and
        the backlog is read in parallel. "live" hands out both at once, separately
        (``PollResult.catch_up``). "ordered" hands out the backlog first, which is the KIP's rule.
        None, the default: polls start at the committed offset, and live records follow the backlog.
    enable_parallel_rebalance : bool, default False
        The KIP's own name: True is ``parallel_rebalance="ordered"``.
    catch_up_threshold : int, default 10,000
        More offsets than this behind the end are a backlog.
    catch_up_threshold_ms : int, optional
        Instead: a backlog is one whose next record is older than this.
    **config
        kafka-python's settings. ``heartbeat_interval_ms`` is 1000 by default, because a hand-over
        takes about one interval. ``enable_auto_commit`` is refused: it cannot know which records
        are processed.

    Raises
    ------
    OptionError
        An option is missing or not allowed; raised before any network is touched.
    AuthenticationError
        A broker and this client do not accept each other; from the constructor or a poll.
    AuthorizationError, MembershipError
        From a poll: a permission is missing; the coordinator refuses this member for good.
    """

    def __init__(
        self,
        *topics: str,
        group_protocol: GroupProtocolName = "classic",
        group_remote_assignor: str | None = None,
        defer_revoke: bool = True,
        revoke_timeout_ms: int | None = None,
        parallel_rebalance: ParallelRebalance | None = None,
        enable_parallel_rebalance: bool = False,
        catch_up_threshold: int | None = None,
        catch_up_threshold_ms: int | None = None,
        **config: Unpack[KafkaConsumerSettings],
    ) -> None:
        catch_up = CatchUpOptions.checked(
            parallel_rebalance, enable_parallel_rebalance, catch_up_threshold, catch_up_threshold_ms
        )
        settings = checked_config(
            dict(config), group_protocol, group_remote_assignor, revoke_timeout_ms
        )
        settings.setdefault("kafka_client", net_client)
        super().__init__(*topics, **settings)
        try:
            protocol = chosen_protocol(self, group_protocol)
        except Exception:
            super().close(autocommit=False, timeout_ms=0)
            raise
        revoke_timeout_ms = revoke_timeout_ms or int(self.config["max_poll_interval_ms"])
        self._ownership = Ownership(revoke_timeout_ms / 1000, defer_revoke)
        self._observed = Observed()
        self._io = io = replace_coordinator(
            self,
            lambda io: self._member_of(io, protocol, group_remote_assignor),
            lambda io: (
                None
                if catch_up is None
                else LogBacklogs(self, io, catch_up, lambda: self._hand_outs.gaps)
            ),
        )
        if topics:
            io.metadata.refresh_now()
        else:
            io.metadata.forget_backoff()
        self._isolation = IsolationLevel.build_from(self.config["isolation_level"])
        ends = EndOffsets(read_committed=self._isolation is IsolationLevel.READ_COMMITTED)
        self._hand_outs = HandOuts(io, self._membership, self._ownership, self._not_returned)
        self._catching_up = (
            None
            if catch_up is None
            else CatchingUp(catch_up, self, io, self._ownership, self._hand_outs.gaps, settings)
        )
        self._listener = ListenerCalls(io.loop, io.subscription, self._group_id)
        self._reading = Reading(
            self, super().poll, io.subscription, self._hand_outs, ends, self._catching_up
        )
        rebalancing = Rebalancing(
            io,
            self._membership,
            self._ownership,
            self._hand_outs,
            ends,
            self._listener,
            revoke_timeout_ms,
            self._observed,
        )
        self._polls = Polls(self._reading, rebalancing, self._ownership, self._observed)
        watch_fetches(self, self._answered)
        resume_what_was_begun(self)
        tell_before_taking(self, io.subscription.taking)
        iterate_with(self, self._iterated, io.subscription.taking)
        name_what_is_unreadable(self)
        leave_to_parent(self, DeferredRevokeConsumer._leave_to_parent)

    if TYPE_CHECKING:  # KafkaConsumer has these, but untyped or not exactly

        def __enter__(self) -> Self: ...

        def __exit__(self, *exception: object) -> None: ...

        def __iter__(self) -> Self: ...

    # -- KIP-983 ----------------------------------------------------------------------------------

    @returns_what_it_takes
    def poll(
        self, timeout_ms: float = 0, max_records: int | None = None, update_offsets: bool = True
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Fetch records, as ``KafkaConsumer.poll`` does, and take part in the rebalance.

        Returns early, maybe with no records, when a revoke is requested or a partition is lost;
        check ``get_to_be_revoked_partitions`` and ``get_lost_partitions`` after each poll.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        self._io.subscription.end_reading_ahead()
        return self._polls.poll_records(ReadableRecords, timeout_ms, max_records, update_offsets)

    @returns_what_it_takes
    def poll_with_rebalance(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> PollResult:
        """Poll for records and news of the rebalance, in one result (KIP-983, variant 1)."""
        self._io.subscription.end_reading_ahead()
        return self._polls.poll(ReadableRecords, timeout_ms, max_records)

    @returns_what_it_takes
    def poll_arrow(
        self,
        timeout_ms: float = 0,
        max_records: int = _ARROW_POLL_RECORDS,
        include_headers: bool = False,
    ) -> PollResult[pa.RecordBatch]:
        """Poll as ``poll_with_rebalance`` does, and get Arrow record batches.

        It makes no object per record, so it is many times as fast. It can alternate with other
        polls.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int
            The limit for all rows together, instead of ``max_poll_records``.
        include_headers : bool
            Whether to add a column ``headers``.

        Returns
        -------
        PollResult
            ``records`` holds, by partition, a list of ``pyarrow.RecordBatch`` in offset order with
            the columns of ``pyspark_kafka_rebalance.fetch.columns.record_schema``.

        Raises
        ------
        OptionError
            A deserializer is configured: the columns hold bytes.
        CorruptRecordError
            A record batch is damaged.
        """
        form = self._arrow_form(include_headers)
        self._io.subscription.end_reading_ahead()
        return self._polls.poll(form, timeout_ms, max_records)

    @returns_what_it_takes
    def poll_membership(self) -> PollResult:
        """A poll without records: takes part in the rebalance, never waits and never fetches.

        For applications that read records by other means, such as executors with offset ranges.
        """
        return self._polls.poll_membership()

    @returns_what_it_takes
    def __next__(self) -> ConsumerRecord:
        """The library's next record; skips records that were lost or sought past."""
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

    def refuse_iteration_of_two(self) -> None:
        """Raise OptionError if live and gap records have no common order."""
        if self._catching_up is not None and not self._catching_up.in_order:
            raise OptionError(
                "parallel_rebalance",
                "live",
                "None or 'ordered' to iterate, because an iteration has one order; or call poll",
            )

    def wakeup(self) -> None:
        """End the running poll early, or else the next one; any thread may call this.

        As in Java, but the poll does not raise: it returns the records so far, maybe none.
        """
        self._io.subscription.ahead.woken.set()
        self._polls.woken.set()

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Delay the revoke of these partitions to the poll after the next.

        Returns
        -------
        bool
            False if one of them is no longer owned (lost); the others are delayed.
        """
        asked = frozenset(checked_partitions("delay_revoke", partitions))
        with self._hand_outs.lock:
            self._ownership.delay(asked)
        return asked <= self.assigned and not self._membership.record.lost_of(asked)

    # -- the member as of its last poll; on any thread, even during a poll ------------------------

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned now, including those to be revoked.

        A partition leaves the assignment when its revoke is completed or it is lost, even while an
        unanswered last commit still delays its release to the group.

        Returns
        -------
        set of TopicPartition
            A snapshot that belongs to the caller, as in ``KafkaConsumer``.
        """
        return set(self.assigned)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """As ``assignment``, but immutable."""
        return (
            self._ownership.assignment
            if self._io.subscription.subscribed
            else self._io.subscription.owned()
        )

    def get_to_be_revoked_partitions(self) -> frozenset[TopicPartition]:
        """The partitions whose revoke the next poll completes, unless it is delayed."""
        return self._ownership.to_be_revoked

    def get_lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions that were lost during the last poll."""
        return self._ownership.lost

    def current_lag(self, partition: TopicPartition) -> int | None:
        """The number of offsets between the position and the end, as of the last poll.

        Never asks a broker. The end is the high watermark, or the last stable offset under
        ``read_committed``. Java's ``Consumer#currentLag`` (KIP-695).

        Returns
        -------
        int or None
            None while the position or the end is unknown: no fetch has been answered yet.

        Raises
        ------
        IllegalStateError
            The partition is not assigned; ``position`` and ``highwater`` raise it, too.
        """
        partition = checked_partition("current_lag", partition)
        if partition not in self.assigned:
            raise IllegalStateError(f"{partition} is not assigned")
        standing = self._standing_of(partition)
        return None if standing is None else standing.lag

    @property
    def is_subscribed(self) -> bool:
        """Whether the group assigns partitions, rather than ``assign``."""
        return self._io.subscription.subscribed

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return self._ownership.generation

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership that owns the returned records, for ``send_offsets_to_transaction``.

        Call it for each transaction, right before the offsets are sent: partitions that stay are
        owned in the newest generation, and the coordinator refuses older ones.

        After a loss it is the lost membership, and the coordinator refuses the transaction until
        the next assignment is in force; or, if only some partitions were lost, until a poll has
        reported them. Outside a group (manual assignment) the generation is -1, and the coordinator
        refuses nothing.
        """
        found: ConsumerGroupMetadata = super().group_metadata()
        return found

    @property
    def is_stable(self) -> bool:
        """Whether this member has joined and its assignment is in force."""
        return self._membership.is_stable()

    @property
    def heard_at(self) -> float:
        """The send time of the last accepted heartbeat, monotonic seconds; -inf without one."""
        return self._membership.parts.schedule.heard_at

    @property
    def member_id(self) -> str:
        """This member's id at the coordinator; empty before the first join."""
        return self._membership.record.member.member_id

    @property
    def session_timeout_ms(self) -> int:
        """The member is out after this long without a heartbeat; the broker's value, once known."""
        return self._membership.lease.session_timeout_ms

    def may_hand_out(self) -> bool:
        """Whether the membership is certain now: the lease holds, and no loss is unapplied."""
        return self._membership.lease.holds() and not self._membership.loss_waits()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._membership.commits.acknowledged(checked_partition("acknowledged", partition))

    def highwater(self, partition: TopicPartition) -> int | None:
        """``KafkaConsumer.highwater``: the end of the log, as of the last fetch."""
        highwater: int | None = super().highwater(checked_partition("highwater", partition))
        return highwater

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the assigned topic; None in the classic protocol, which assigns by name."""
        return self._membership.protocol.topic_id_of(partition)

    # -- processed records, and commits of both kinds in one order (``offset_commits.py``) --------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background.

        Commits are aggregated, sent in order and one at a time, also during joins. A completed
        revoke is released to the group only once the broker has acknowledged them; ``close`` drains
        them. Any thread may call this, and also ``assignment``, ``acknowledged``, ``current_lag``
        and the lists.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The next offset to read (last processed + 1).

        Raises
        ------
        PartitionsLostError
            This member does not own one of the partitions (with a manual assignment, use
            ``commit``), or the offset is of a record truncated in the meantime. Nothing of this
            call is committed.
        """
        self._hand_outs.commit_processed(checked_offsets("commit_processed", offsets))

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records of a partition at these offsets are processed, in any order.

        Commits, as ``commit_processed`` does, the lowest handed out offset that is not processed,
        or the one after the last. For asynchronous workers: any thread may call it, even again for
        the same record.

        Parameters
        ----------
        partition : TopicPartition
            The records' partition.
        *offsets : int
            The records' own offsets (not the next ones).

        Raises
        ------
        PartitionsLostError
            The partition is no longer owned, or is owned again but these records were handed out
            before that. The present owner delivers them too.
        ValueError
            No poll has handed out one of them. With either error, nothing of this call counts.
        """
        partition = checked_partition("processed", partition)
        self._hand_outs.processed(
            partition, [checked_offset("processed", partition, offset) for offset in offsets]
        )

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As ``commit_processed``, but with all unprocessed offsets of each partition.

        For applications that read records by other means than polls. The group's offset is the
        lowest unprocessed one. The rest is in the commit's metadata, committed again if only they
        change.

        Raises
        ------
        PartitionsLostError
            As ``commit_processed``.
        """
        checked_partitions("commit_remaining", remaining)
        self._hand_outs.commit_remaining(remaining)

    def describe_commits(self, describe: Callable[[TopicPartition, int, int, str], str]) -> None:
        """Let each commit name its author, as the first part of its metadata.

        Parameters
        ----------
        describe : callable
            Takes a partition, the offset to commit, the most bytes and the metadata's binding;
            called on the I/O thread. See ``Origin.encode``.
        """
        self._hand_outs.describe = describe

    def describe_remaining(
        self, remaining: Mapping[TopicPartition, Remaining]
    ) -> dict[TopicPartition, str]:
        """The metadata for a transaction that commits what remains of these partitions.

        They are the same as of :meth:`commit_remaining`; the offset to commit with them is
        ``committed()``.
        """
        return self._hand_outs.describe_remaining(remaining)

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """The last report to ``commit_remaining``, if the broker has accepted it; else None."""
        return self._hand_outs.acknowledged_remaining(partition)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that were handed out and are not ``processed``."""
        return self._hand_outs.unprocessed()

    def commit(self, offsets: Any = None, timeout_ms: float | None = None) -> None:
        """``KafkaConsumer.commit``: records below accepted offsets count as processed.

        It shares one order with this consumer's other commits: an earlier background commit is not
        sent after it, and a later one only if it is higher. A lower offset than before moves the
        group back, as in Kafka's own consumers.

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
        """As ``commit`` of a member; ``everything``: the offsets cover all handed out records."""
        by_hand = self._hand_outs.by_hand.enter(offsets, retried=True, everything=everything)
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        try:
            self._io.loop.run(self._io.loop.wait_for, by_hand.future, timeout_ms)
        except KafkaTimeoutError:
            self._membership.commits.give_up(by_hand)
            raise

    def commit_async(self, offsets: Any = None, callback: Any = None) -> Future:
        """``KafkaConsumer.commit_async``: records below accepted offsets count as processed.

        It shares one order with all other commits, as ``commit`` does. It is sent once: only the
        future and the callback get a failure. The records then stay ``unprocessed``, so that their
        revoke can be delayed until another commit.
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

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the waiting commits, and let a lower offset be committed next.

        For the one case in which a committed position must move back: the records were deleted.
        Forgets the hand-outs; seek to the offset where polls shall continue.
        """
        self._hand_outs.forget_commits(checked_partitions("forget_commits", partitions))

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Partitions that the broker lacks, whose commit was given up since the last call."""
        return self._hand_outs.take_unknown()

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

    # -- positions --------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """``KafkaConsumer.seek``; a lower offset than before may be committed from here on."""
        self.seek_or_skip(partition, offset)

    def seek_or_skip(
        self, partition: TopicPartition, offset: int
    ) -> tuple[TopicPartition] | tuple[()]:
        """Seek; returns the partition, or none if the gaps' reader only skips the unreadable."""
        partition = checked_partition("seek", partition)
        offset = checked_offset("seek", partition, offset)
        if self._catching_up is not None and self._catching_up.skip(partition, offset):
            return ()  # polls continue where they are
        super().seek(partition, offset)
        self._io.subscription.ahead.forget([partition])
        self._hand_outs.seeks.sought([partition], offset)
        return (partition,)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_beginning``; lower offsets may be committed from there on."""
        self.seek_to_beginning_or_skip(*partitions)

    def seek_to_beginning_or_skip(self, *partitions: TopicPartition) -> Collection[TopicPartition]:
        """Seek; returns the partitions, except where only the gaps' reader skips to the log."""
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
        """``KafkaConsumer.pause``; a merge by timestamps continues without them."""
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
        """The number of offsets of the set-aside backlog that are not handed out yet (KIP-333).

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

    def returned_positions(self) -> dict[TopicPartition, Any]:
        """The application's position in each assigned partition, which ``commit()`` commits."""
        return self._positions() if self.is_subscribed else self._consumed()

    # -- subscribing and leaving ------------------------------------------------------------------

    def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """``KafkaConsumer.subscribe``; a change makes the member join at once."""
        super().subscribe(topics, pattern, listener)
        self._membership.on_metadata_update()  # for fewer topics kafka-python requests no metadata

    def unsubscribe(self) -> None:
        """Commit the processed records, then leave the group and give up every partition.

        Waits for the commits for at most the session timeout; uncommitted records are delivered
        again.
        """
        if self._grouped():
            try:
                if not self.drain(self.config["session_timeout_ms"]):
                    log.warning("group %s: unsubscribed with commits outstanding", self._group_id)
            except Exception:
                log.exception("group %s: unsubscribed without a full drain", self._group_id)
        super().unsubscribe()
        self._membership.commits.forget_all()  # of other threads, added while this one left
        with self._hand_outs.lock:
            self._hand_outs.forget_all()
            self._ownership.forget_all()
        self._polls.forget_all()
        ahead = self._io.subscription.ahead
        ahead.forget(ahead.buffered())

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group at once, and join again with the next poll, which reports the loss.

        The same happens after ``max_poll_interval_ms`` without a poll. A static member sends
        nothing more: it leaves the group when its session ends.
        """
        self._membership.leave_until_polled(reason)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Commit the processed records, leave the group, close the connections.

        Once the commits are drained, ``processed`` and ``commit_processed`` are refused. In a
        forked child of the process that made the consumer this does nothing.

        Parameters
        ----------
        autocommit : bool
            A parameter of ``KafkaConsumer.close``; there is no auto-commit here.
        timeout_ms : float, optional
            The limit for all steps together; default ``request_timeout_ms``.
        """
        if is_closed(self):
            return
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        deadline = time.monotonic() + timeout_ms / 1000
        if self._grouped():
            try:
                self._listener.revoked(self.assigned)  # it may commit
                self._listener.raise_failure()
            except Exception:
                log.exception("group %s: the rebalance listener failed", self._group_id)
            try:
                while not self._hand_outs.end():
                    if not self.drain(max(0.0, (deadline - time.monotonic()) * 1000)):
                        log.warning("group %s: closed with commits outstanding", self._group_id)
                        break
            except Exception:
                log.exception("group %s: closing without a full drain", self._group_id)
            self._hand_outs.end(give_up=True)
        if self._catching_up is not None:
            self._catching_up.close()
        if (observer := self._observed.by) is not None:
            observer.closed()
        left_ms = max(100.0, (deadline - time.monotonic()) * 1000)
        super().close(autocommit=False, timeout_ms=left_ms)

    # -- queries to the brokers -------------------------------------------------------------------

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """Fetch the names of all topics within ``timeout_ms``, else raise KafkaTimeoutError."""
        return self._io.metadata.existing_topics(timeout_ms)

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Request metadata and return the topics that this client may not describe."""
        return self._io.metadata.hidden_topics(topics, timeout_ms)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The given partitions that are in the present metadata."""
        counts = self._io.metadata.partition_counts({p.topic for p in partitions})
        return frozenset(p for p in partitions if p.partition < counts[p.topic])

    def topic_ids(self, topics: Collection[str]) -> dict[str, UUID]:
        """Topic ids in the present metadata; without topics that are missing or have no id."""
        found = {topic: self._io.metadata.topic_id(topic) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def topic_ids_now(self, topics: Collection[str], timeout_ms: float) -> dict[str, UUID]:
        """As ``topic_ids``, but requests them (KafkaTimeoutError); keeps the metadata as is."""
        return self._io.metadata.topic_ids_now(topics, timeout_ms)

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, as its metadata say; None before they do."""
        return self._io.metadata.cluster_id

    def metadata_renewed_ms(self) -> float:
        """A number that changes whenever new metadata arrive."""
        return self._io.metadata.renewed_ms

    def leaderships(self) -> dict[TopicPartition, tuple[UUID | None, int | None]]:
        """Each partition's topic id and leader epoch in the present metadata.

        If either changes, the log may be another one.
        """
        return self._io.metadata.leaderships()

    def request_metadata(self) -> None:
        """Request new metadata, without waiting for them."""
        self._io.metadata.refresh()

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, over the lane; without the partitions that have none.

        Raises KafkaTimeoutError, or the broker's error.
        """
        asked = checked_partitions("committed_offsets", partitions)
        committed = self._io.fetch_committed_offsets(asked, timeout_ms)
        return {partition: found.offset for partition, found in committed.items()}

    def committed_remaining(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, Remaining]:
        """As ``committed_offsets``, with the progress beyond them in the commits' metadata."""
        found = self.group_commits(partitions, timeout_ms)
        return {partition: commit.remaining for partition, commit in found.items()}

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        """As ``committed_remaining``, with the queries that have committed.

        ``in_order`` leaves out the progress beyond the offsets.
        """
        return group_commits(self._io, partitions, timeout_ms, in_order)

    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> Any:
        """``KafkaConsumer.committed``: the group's next offset, or None; asks the broker."""
        return super().committed(checked_partition("committed", partition), metadata, timeout_ms)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """``KafkaConsumer.offsets_for_times``; does not change the given timestamps."""
        asked = checked_offsets("offsets_for_times", timestamps, "timestamp")
        return dict(super().offsets_for_times(asked, timeout_ms))

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a partition without a leader."""
        with leader_gone():
            asked = checked_partitions("beginning_offsets", partitions)
            return dict(super().beginning_offsets(asked, timeout_ms))

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a partition without a leader."""
        with leader_gone():
            asked = checked_partitions("end_offsets", partitions)
            return dict(super().end_offsets(asked, timeout_ms))

    def beginning_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``beginning_offsets``, but asks once; without partitions that get no answer."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets``, but asks once; without partitions that get no answer."""
        return self._io.log_offsets.ask(partitions, OffsetSpec.LATEST, self._isolation, timeout_ms)

    def end_offsets_soon(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Ask as ``end_offsets_now``; returns at once a callable that waits for the answer."""
        return self._io.log_offsets.begin_ask(
            partitions, OffsetSpec.LATEST, self._isolation, timeout_ms
        )

    def high_watermarks_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets_now``, but includes open transactions under any isolation level."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def first_records_now(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """The first readable record of each log from its timestamp on; None if there is none.

        Asks once; without partitions that get no answer.
        """
        return self._io.log_offsets.first_at(timestamps, self._isolation, timeout_ms)

    def first_records_soon(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, RecordTime | None]]:
        """Ask as ``first_records_now``; returns at once a callable that waits for the answer."""
        return self._io.log_offsets.begin_first_at(timestamps, self._isolation, timeout_ms)

    def latest_records_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """As ``first_records_now``, but the record with the highest timestamp.

        Raises IncompatibleBrokerVersion if brokers are older than 3.0.
        """
        return self._io.log_offsets.latest(partitions, self._isolation, timeout_ms)

    def next_timestamps_now(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        timeout_ms: float,
    ) -> dict[TopicPartition, int | None]:
        """The timestamps of the next readable records; see `next_timestamps`."""
        found: dict[TopicPartition, int | None] = self._io.loop.run(
            next_timestamps, self, positions, ends, timeout_ms
        )
        return found

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that the metadata knows."""
        return self._io.metadata.leaders(partitions)

    def partitions_with_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """The partitions with a leader in the metadata; a query of others would wait for one."""
        return list(self._io.metadata.leaders(partitions))

    # -- inside -----------------------------------------------------------------------------------

    def _member_of(
        self, io: GroupCoordinator, protocol: str, group_remote_assignor: str | None
    ) -> GroupMembership:
        callbacks = MemberCallbacks(
            revoking=lambda: self._ownership.gated,
            committable=lambda: self.assigned,
            metadata_of=lambda *commit: self._hand_outs.describe_commit(*commit),
            catches_up=lambda: self._hand_outs.gaps.any_unread,
        )
        self._membership = membership_in(
            protocol, group_remote_assignor, io, self.config, callbacks, self._observed
        )
        return self._membership

    def _standing_of(self, partition: TopicPartition) -> FetchMetadata | None:
        """The metadata behind ``current_lag``; None, too, if the partition is not assigned."""
        return self._reading.standing_of(partition)

    def _assigned_ones(
        self, call: str, partitions: Iterable[TopicPartition]
    ) -> list[TopicPartition]:
        """Check that all these partitions are assigned; otherwise kafka-python fails halfway."""
        asked, owned = checked_partitions(call, partitions), self._io.subscription.owned()
        for partition in asked:
            if partition not in owned:
                raise IllegalStateError(f"{call}: {partition} is not assigned")
        return asked

    def _positions(self) -> dict[TopicPartition, Any]:
        """The positions of an explicit commit without offsets; without completed revokes."""
        consumed = self._consumed()
        return {p: consumed[p] for p in self.assigned & consumed.keys()}

    def _consumed(self) -> dict[TopicPartition, Any]:
        return self._io.subscription.consumed()

    def _not_returned(self) -> None:
        end_iteration(self)
        self._polls.not_returned()

    def _iterated(self, timeout_ms: float) -> dict[TopicPartition, list[ConsumerRecord]]:
        """The records that the library's iterator returns one by one."""
        self._io.subscription.end_reading_ahead()
        return self._polls.poll_records(ReadableRecords, timeout_ms, None, False)

    def _arrow_form(self, include_headers: bool) -> Callable[..., Any]:
        for option in ("key_deserializer", "value_deserializer"):
            if self.config[option] is not None:
                raise OptionError(
                    option, self.config[option], "no value with poll_arrow, which returns bytes"
                )
        from .arrow_records import ArrowForm

        return ArrowForm(include_headers, self._observed)

    def _answered(self, node_id: Any, asked: Collection[TopicPartition], response: Any) -> None:
        self._reading.answered(node_id, asked, response)
        if (observer := self._observed.by) is not None:
            observer.fetched(response)

    def _leave_to_parent(self) -> None:
        """In a forked child: refuse to poll and to commit, and close without leaving the group."""
        leave_polling_to_parent(self)
        calls: tuple[tuple[object, tuple[str, ...]], ...] = (
            (self, ("drain", "refuse_iteration_of_two")),  # __next__ calls the latter first
            (self._polls, ("poll", "poll_records", "poll_membership")),
        )
        for owner, names in calls:
            for name in names:
                setattr(owner, name, refuse)
        self._hand_outs.refuse_all()

    @property
    def _group_id(self) -> str:
        return str(self.config["group_id"])

    def _grouped(self) -> bool:
        return self._io.subscription.subscribed
