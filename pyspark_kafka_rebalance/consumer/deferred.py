"""DeferredRevokeConsumer: a Kafka consumer whose revokes are requested now and completed later.

KIP-983: partitions that stay flow at full speed through a whole rebalance, and what is to be
revoked is processed and committed first, outside any callback::

    consumer = DeferredRevokeConsumer("orders", group_id="g", bootstrap_servers=...)
    while True:
        result = consumer.poll_with_rebalance(timeout_ms=100)
        start_processing(result.records)
        consumer.commit_processed(offsets_of_what_is_processed())
        consumer.delay_revoke(p for p in result.to_be_revoked if still_processing(p))
        abort_processing(result.lost)

What is owned, to be revoked and lost is decided in ``ownership.py`` and executed by
``rebalancing.py``; what may be committed is known to ``hand_outs.py``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.errors import IllegalStateError, KafkaTimeoutError
from kafka.future import Future
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..errors import OptionError, PartitionsLostError, UnreadableRecordError
from ..secured_clients import net_client
from ._kafka_python import (
    end_offsets_now,
    fetch_step,
    hand_out_as,
    replace_coordinator,
    watch_fetches,
)
from ._kafka_python_records import ReadableRecords, name_what_is_unreadable
from .configuration import checked_config
from .fetch_metadata import EndOffsets, FetchMetadata
from .hand_outs import HandOuts
from .ownership import Ownership
from .poll_result import PollResult as PollResult
from .protocol_choice import chosen_protocol, membership_in
from .rebalance_listener import ListenerCalls
from .rebalancing import Rebalancing

log = logging.getLogger(__name__)

#: A poll_arrow: some ten megabytes of records of a hundred bytes, a few milliseconds of decoding.
_ARROW_POLL_RECORDS = 100_000

#: How long poll waits for records at a stretch before it looks for rebalance events again.
_SLICE_MS = 50


class DeferredRevokeConsumer(KafkaConsumer):  # type: ignore[misc]
    """kafka-python's ``KafkaConsumer`` with KIP-983's deferred revoke.

    Everything of ``KafkaConsumer`` works as before (``seek``, ``pause``, ``position``, security
    settings, iteration, rebalance listeners, which run on the polling thread and may commit).

    Parameters
    ----------
    *topics : str
        Topics to subscribe to; or call ``subscribe`` (also by pattern).
    group_id : str
        Required.
    group_protocol : {"classic", "consumer", "auto"}
        The classic protocol with cooperative rebalancing (KIP-429, the default), the consumer
        group protocol (KIP-848: Apache Kafka 4.0 or later), or the latter where the brokers
        offer it. ``docs/consumer.md`` compares them.
    group_remote_assignor : str, optional
        Consumer protocol: the server-side assignor, such as ``"uniform"`` or ``"range"``; by
        default the broker's.
    defer_revoke : bool, default True
        False completes a revoke in the poll that learned of it, as consumers did before.
    revoke_timeout_ms : int, optional
        How long a revoke may be deferred; then the partitions that are not drained, and only
        those, are lost. Default and upper bound: ``max_poll_interval_ms``, after which other
        clients would leave the group altogether.
    **config
        kafka-python's settings. ``heartbeat_interval_ms`` is 1000 by default, because a hand-over
        takes about one interval. ``enable_auto_commit`` is refused: it cannot know what is
        processed.

    Raises
    ------
    OptionError
        An option that is missing or not allowed; before any network is touched.
    AuthenticationError
        A broker and this client do not accept each other; from the constructor or a poll.
    AuthorizationError, MembershipError
        From a poll: a permission is missing; the coordinator refuses this member for good.
    """

    def __init__(
        self,
        *topics: str,
        group_protocol: str = "classic",
        group_remote_assignor: str | None = None,
        defer_revoke: bool = True,
        revoke_timeout_ms: int | None = None,
        **config: Any,
    ) -> None:
        config = checked_config(config, group_protocol, group_remote_assignor, revoke_timeout_ms)
        config.setdefault("kafka_client", net_client)
        super().__init__(*topics, **config)
        try:
            protocol = chosen_protocol(self, group_protocol)
        except Exception:
            super().close(autocommit=False, timeout_ms=0)
            raise
        revoke_timeout_ms = revoke_timeout_ms or int(self.config["max_poll_interval_ms"])
        self._ownership = Ownership(revoke_timeout_ms / 1000, defer_revoke)
        self._woken = threading.Event()
        self._untold = False  # while a poll runs, and after it if it raised
        io = replace_coordinator(self)
        self._io = io
        self._membership = membership_in(
            protocol,
            group_remote_assignor,
            io,
            self.config,
            revoking=lambda: self._ownership.gated,
            committable=self.assignment,
        )
        io.membership = self._membership
        if topics:
            io.refresh_metadata_now()
        else:
            io.forget_backoff()
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        self._ends = EndOffsets(read_committed=isolation is IsolationLevel.READ_COMMITTED)
        self._hand_outs = HandOuts(io, self._membership, self._ownership)
        self._listener = ListenerCalls(io)
        self._rebalancing = Rebalancing(
            io,
            self._membership,
            self._ownership,
            self._hand_outs,
            self._ends,
            self._listener,
            revoke_timeout_ms,
        )
        watch_fetches(self, self._ends.answered)
        name_what_is_unreadable(self)

    # -- KIP-983 ----------------------------------------------------------------------------------

    def poll(
        self,
        timeout_ms: float = 0,
        max_records: int | None = None,
        update_offsets: bool = True,
    ) -> dict[TopicPartition, list[Any]]:
        """Fetch records, as ``KafkaConsumer.poll`` does, and take part in the rebalance.

        Returns early, maybe with no records, when a revoke is requested or a partition is lost;
        ask ``get_to_be_revoked_partitions`` and ``get_lost_partitions`` after each poll.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        hand_out_as(self, ReadableRecords)
        if self._closed or timeout_ms < 0 or not self._grouped():
            return self._poll_by_hand(timeout_ms, max_records, update_offsets)
        if max_records is None:
            max_records = self.config["max_poll_records"]
        return self._poll(timeout_ms, max_records, update_offsets).records

    def poll_with_rebalance(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> PollResult:
        """Poll and say in one answer what the rebalance wants (KIP-983, variant 1)."""
        return self._poll_as(ReadableRecords, timeout_ms, max_records)

    def poll_arrow(
        self,
        timeout_ms: float = 0,
        max_records: int = _ARROW_POLL_RECORDS,
        include_headers: bool = False,
    ) -> PollResult:
        """Poll as ``poll_with_rebalance`` does, and get Arrow record batches.

        No object is made for a record, which makes it many times as fast. May take turns with the
        other polls.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int
            At most so many rows in all, whatever ``max_poll_records`` is.
        include_headers : bool
            Whether there is a column ``headers``.

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
        for option in ("key_deserializer", "value_deserializer"):
            if self.config[option] is not None:
                raise OptionError(
                    option, self.config[option], "nothing for poll_arrow, which hands out bytes"
                )
        from .arrow_records import arrow_form  # not at the top: who polls records needs no Arrow

        return self._poll_as(arrow_form(include_headers), timeout_ms, max_records)

    def poll_membership(self) -> PollResult:
        """A poll without records: takes part in the rebalance, never waits and never fetches.

        For users whose records come another way, such as executors that read offset ranges.
        """
        if (untold := self._take_untold()) is not None:
            return untold
        self._io.poll()
        self._rebalancing.begin_turn()
        self._untold = True
        self._rebalancing.apply_events()
        self._listener.raise_failure()
        self._untold = False
        return self._result({}, {})

    def wakeup(self) -> None:
        """End the poll under way early, or else the next one; from any thread.

        As Java's, but the poll does not raise: it returns what it has, maybe no records.
        """
        self._woken.set()

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Delay the revoke of these partitions to the poll after the next.

        Returns
        -------
        bool
            False when one of them is no longer owned (lost); the others are delayed all the same.
        """
        asked = frozenset(partitions)
        with self._hand_outs.lock:
            self._ownership.delay(asked)
        return asked <= self.assignment() and not self._membership.any_lost(asked)

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group at once, and join again with the next poll, which tells of the loss.

        As after ``max_poll_interval_ms`` without a poll. A static member sends nothing more, and
        the group gives it up when its session ends.
        """
        self._membership.leave_until_polled(reason)

    def close(self, autocommit: bool = True, timeout_ms: float | None = None) -> None:
        """Drain what is processed, leave the group, close the connections.

        From the end of the draining on, ``processed`` and ``commit_processed`` are refused.

        Parameters
        ----------
        autocommit : bool
            Of ``KafkaConsumer.close``; there is no auto-commit here.
        timeout_ms : float, optional
            For everything together; default ``request_timeout_ms``.
        """
        if self._closed:
            return
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        deadline = time.monotonic() + timeout_ms / 1000
        if self._grouped():
            try:
                self._listener.revoked(self.assignment())  # it may commit
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
        left_ms = max(100.0, (deadline - time.monotonic()) * 1000)
        super().close(autocommit=False, timeout_ms=left_ms)

    def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """``KafkaConsumer.subscribe``; what changes is joined with at once."""
        super().subscribe(topics, pattern, listener)
        self._membership.on_metadata_update()  # of fewer topics kafka-python asks for no metadata

    def unsubscribe(self) -> None:
        """Leave the group and give up every partition, once what is processed is committed.

        Waits for the commits for the session timeout at most; what is left then comes again.
        """
        if self._grouped():
            try:
                if not self.drain(self.config["session_timeout_ms"]):
                    log.warning("group %s: unsubscribed with commits outstanding", self._group_id)
            except Exception:
                log.exception("group %s: unsubscribed without a full drain", self._group_id)
        super().unsubscribe()
        self._membership.commits.forget_all()  # what another thread added while this one left
        with self._hand_outs.lock:
            self._hand_outs.forget_all()
            self._ownership.forget_all()
        self._untold = False
        self._ends.collect(())

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background.

        Commits are aggregated, in order and one at a time, and go on during joins. A revoke is
        only completed towards the group when the broker has acknowledged them; ``close`` drains.
        May be called on another thread than the one that polls, as may ``assignment``,
        ``acknowledged``, ``current_lag`` and the lists.

        Parameters
        ----------
        offsets : dict of TopicPartition to int
            The next offset to read (last processed + 1).

        Raises
        ------
        PartitionsLostError
            One of the partitions is not owned by this member of the group (assigned by hand:
            ``commit``), or its log was truncated since and the offset is that of a record that is
            gone; nothing of this call is committed.
        """
        self._hand_outs.commit_processed(offsets)

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records of a partition at these offsets are processed, in whatever order.

        Commits, as ``commit_processed`` does, how far everything is that polls handed out: the
        lowest offset that is not processed, or the one after the last. For asynchronous workers;
        any thread may call it. Again for the same record is fine.

        Parameters
        ----------
        partition : TopicPartition
            Where the records come from.
        *offsets : int
            The records' own offsets (not the next ones).

        Raises
        ------
        PartitionsLostError
            The partition is not owned any more, or it is again and these records were handed out
            before; a worker cannot know. Whoever owns it now delivers them too.
        ValueError
            No poll has handed out one of them. As with the other error, nothing of this call
            counts.
        """
        self._hand_outs.processed(partition, offsets)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that polls handed out and nobody has ``processed``."""
        return self._hand_outs.unprocessed()

    def commit(self, offsets: Any = None, timeout_ms: float | None = None) -> None:
        """``KafkaConsumer.commit``: what the broker accepts counts as processed.

        In one order with all other commits of this consumer: what was to be committed in the
        background before is not sent after it, and what is said to be processed later only if it
        is higher. A lower offset than before moves the group back, as in Kafka's own consumers.

        Raises
        ------
        PartitionsLostError
            One of the partitions is lost, even if no poll has said so yet, or not owned; nothing of
            this call is committed.
        KafkaTimeoutError
            No final answer within ``timeout_ms`` (default ``request_timeout_ms``).
        KafkaError
            What the broker refuses.
        """
        if not self._io.subscribed:
            super().commit(offsets, timeout_ms)
            return
        offsets = self._positions() if offsets is None else offsets
        by_hand = self._hand_outs.enter(offsets, retried=True)
        if timeout_ms is None:
            timeout_ms = self.config["request_timeout_ms"]
        try:
            self._io.run(self._io.wait_for, by_hand.future, timeout_ms)
        except KafkaTimeoutError:
            self._membership.commits.give_up(by_hand)
            raise

    def commit_async(self, offsets: Any = None, callback: Any = None) -> Any:
        """``KafkaConsumer.commit_async``: what the broker accepts counts as processed.

        In one order with all other commits, as ``commit``. It is sent once: a failure reaches the
        future and the callback only; then the records are still ``unprocessed``, so that their
        revoke can be delayed until another commit.
        """
        if not self._io.subscribed:
            return super().commit_async(offsets, callback)
        if offsets is None:
            offsets = self._positions()
        try:
            future = self._hand_outs.enter(offsets, retried=False).future
        except PartitionsLostError as error:
            future = Future().failure(error)
        return self._io.tell_in_polls(future, offsets, callback)

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """``KafkaConsumer.seek``; a lower offset than before may be committed from here on."""
        super().seek(partition, offset)
        self._hand_outs.sought([partition], offset)

    def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_beginning``; lower offsets may be committed from there on."""
        super().seek_to_beginning(*partitions)
        self._hand_outs.sought(partitions or self._io.owned())

    def seek_to_end(self, *partitions: TopicPartition) -> None:
        """``KafkaConsumer.seek_to_end``."""
        super().seek_to_end(*partitions)
        self._hand_outs.sought(partitions or self._io.owned())

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of what waits, and let a lower offset be committed next.

        For the one case in which a committed position must move back: the records are gone.
        Those that were handed out do not count any more; seek to where polls go on.
        """
        self._hand_outs.forget_commits(partitions)

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Those whose commit was given up since the last call, since the broker has no such."""
        return self._membership.commits.take_unknown()

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False when they are not by ``timeout_ms``."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self._membership.commits.any_outstanding():
            if time.monotonic() >= deadline:
                return False
            self._membership.raise_if_failed()
            time.sleep(0.002)
        return True

    def __next__(self) -> Any:
        """The next record; the library's iterator, which may drop records that a poll brought."""
        record = super().__next__()
        if self._io.subscribed:
            self._hand_outs.hand_out({TopicPartition(record.topic, record.partition): [record]})
        return record

    def _positions(self) -> dict[TopicPartition, Any]:
        """What a commit by hand without offsets commits; nothing of a completed revoke."""
        consumed = self._io.consumed()
        return {p: consumed[p] for p in self.assignment() & consumed.keys()}

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """Fetch the names of all topics, at most ``timeout_ms`` long (KafkaTimeoutError)."""
        return self._io.existing_topics(timeout_ms)

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Those of these topics that this client may not describe, asked now."""
        return self._io.hidden_topics(topics, timeout_ms)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that the metadata has now."""
        counts = self._io.partition_counts({p.topic for p in partitions})
        return frozenset(p for p in partitions if p.partition < counts[p.topic])

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it."""
        self._io.refresh_metadata()

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, over the lane; without those that have none.

        Raises KafkaTimeoutError, and what the broker refuses.
        """
        committed = self._coordinator.fetch_committed_offsets(list(partitions), timeout_ms)
        return {partition: found.offset for partition, found in committed.items()}

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets``, without those whose leader does not tell; never asks it twice."""
        return end_offsets_now(self, partitions, timeout_ms)

    def partitions_with_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Those whose leader the metadata knows; asking for others would wait for them."""
        leaders = {p: self._cluster.leader_for_partition(p) for p in partitions}
        return [p for p, leader in leaders.items() if leader is not None and leader >= 0]

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned now, those to be revoked included.

        A partition leaves it when its revoke is completed or it is lost, even while the answer
        to its last commit keeps it from being released to the group.
        """
        return self._ownership.assignment if self._io.subscribed else self._io.owned()

    def get_to_be_revoked_partitions(self) -> frozenset[TopicPartition]:
        """Partitions whose revoke is completed in the next poll, unless it is delayed."""
        return self._ownership.to_be_revoked

    def get_lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions that were lost during the last poll."""
        return self._ownership.lost

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end, as of the last poll.

        Never asks a broker. The end is the high watermark, or the last stable offset under
        ``read_committed``. Java's ``Consumer#currentLag`` (KIP-695).

        Returns
        -------
        int or None
            None while the position or the end is unknown: no fetch has been answered yet.

        Raises
        ------
        IllegalStateError
            The partition is not assigned; as ``position`` and ``highwater`` do.
        """
        if partition not in self.assignment():
            raise IllegalStateError(f"{partition} is not assigned")
        found = self._metadata_of(partition)
        return None if found is None else found.lag

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return self._ownership.generation

    @property
    def is_stable(self) -> bool:
        """Whether this member has joined and its assignment is in force."""
        return self._membership.is_stable()

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows this member; empty before the first join."""
        return self._membership.member_id

    @property
    def session_timeout_ms(self) -> int:
        """Without a sign of life for so long this member is out; the broker's, once known."""
        return self._membership.lease.session_timeout_ms

    def may_hand_out(self) -> bool:
        """Whether the membership is certain right now (the lease; no loss waits to be applied)."""
        return self._membership.lease.holds() and not self._membership.loss_waits()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._membership.commits.acknowledged(partition)

    def _metadata_of(self, partition: TopicPartition) -> FetchMetadata | None:
        end, position = self._ends.latest(partition), self._io.position(partition)
        return None if end is None or position is None else end.seen_from(position)

    # -- one turn of the rebalance ----------------------------------------------------------------

    @property
    def _group_id(self) -> str:
        return str(self.config["group_id"])

    def _grouped(self) -> bool:
        return bool(self._io.subscribed)

    def _poll_as(
        self, form: Callable[..., Any], timeout_ms: float, max_records: int | None
    ) -> PollResult:
        """Poll, and have the records handed out in this form; see `hand_out_as`."""
        hand_out_as(self, form)
        if self._closed or timeout_ms < 0 or not self._grouped():
            records = self._poll_by_hand(timeout_ms, max_records, True)
            return PollResult(records, metadata=self._fetch_metadata(records))
        if max_records is None:
            max_records = self.config["max_poll_records"]
        return self._poll(timeout_ms, max_records, True)

    def _poll_by_hand(
        self, timeout_ms: float, max_records: int | None, update_offsets: bool
    ) -> dict[TopicPartition, list[Any]]:
        """The library's own poll: its checks, and what is assigned by hand.

        It knows no wakeup, so it waits a slice at a time, as ``_poll`` does.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        wait_ms = timeout_ms
        while True:
            records: dict[TopicPartition, list[Any]] = super().poll(
                min(wait_ms, _SLICE_MS), max_records, update_offsets
            )
            wait_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            if records or wait_ms == 0 or self._woken.is_set() or self._closed:
                self._woken.clear()
                self._ends.collect(self.assignment())
                return records

    def _poll(self, timeout_ms: float, max_records: int, update_offsets: bool) -> PollResult:
        # Until when: the timeout. Ended early by records, a requested revoke, a loss, or wakeup. In
        # between, kafka-python's fetcher waits for data a slice at a time.
        deadline = time.monotonic() + timeout_ms / 1000
        if (untold := self._take_untold()) is not None:
            return untold
        self._io.poll()
        self._ends.collect(self._io.owned())  # before this poll changes it
        self._rebalancing.begin_turn()
        self._untold = True
        while True:
            self._membership.polled()  # waiting in a poll is being alive, however long it takes
            return_early = self._rebalancing.apply_events()
            self._listener.raise_failure()
            left_ms = 0 if return_early else max(0.0, (deadline - time.monotonic()) * 1000)
            try:
                records = fetch_step(self, min(left_ms, _SLICE_MS), max_records, update_offsets)
            except UnreadableRecordError:
                if not return_early:
                    raise
                records = {}  # first what this poll has to tell; a later one meets them again
            if update_offsets:
                self._hand_outs.hand_out(records)
            self._hand_outs.look_for_truncations(records)
            woken = self._woken.is_set()
            if records or return_early or woken or time.monotonic() >= deadline:
                self._woken.clear()
                self._untold = False
                return self._result(records, self._fetch_metadata(records))

    def _take_untold(self) -> PollResult | None:
        """What the last poll learned and did not return, because it raised; None if nothing.

        No other turn begins before that is told: it would complete revokes that nobody could delay.
        """
        if not self._untold:
            return None
        self._untold = False
        self._membership.polled()
        result = self._result({}, {})
        tells = result.to_be_revoked or result.lost or result.assigned or result.revoked
        return result if tells else None

    def _result(
        self,
        records: dict[TopicPartition, list[Any]],
        metadata: dict[TopicPartition, FetchMetadata],
    ) -> PollResult:
        ownership = self._ownership
        return PollResult(
            records,
            ownership.to_be_revoked,
            ownership.lost,
            ownership.added,
            ownership.revoked,
            metadata,
        )

    def _fetch_metadata(
        self, records: Collection[TopicPartition]
    ) -> dict[TopicPartition, FetchMetadata]:
        """What the fetches answered since the last poll say, seen from where this poll ends."""
        self._ends.collect(self._io.owned())
        told = self._ends.take_fresh().union(records) - self._ownership.gated
        found = ((partition, self._metadata_of(partition)) for partition in told)
        return {partition: metadata for partition, metadata in found if metadata is not None}
