"""kafka-python's transactional producer, with the group's fencing (KIP-447) and no lost failures.

What is done here and not there, of kafka-python 3.0.12:

- TxnOffsetCommit that comes while the group rebalances is refused with the generation, and there
  dooms the transaction. The member may well go on owning what it owns: here it is sent again, with
  the generation that the member has then, until the member is lost.
- A record that could not be delivered in time, or a bumped epoch, leaves a transaction there that
  commits without those records. Here no transaction is committed of which one record failed.
- A coordinator whose broker is gone is given up after a second, not after request_timeout_ms; and
  the request that was to be sent to it is sent to its successor. There it is forgotten, because
  ``await_ready`` raises where its caller looks at what it returns: whoever waits, waits for ever.
- Closing it always closes it.
- A partition that is new to its topic is asked for, where there it is refused as unknown.
- The wait for the metadata of a topic ends when the producer is to end.
- A partition can be added to the transaction before anything is sent to it.
- The next transaction is refused until all markers of the one before are written. There its first
  request sleeps for retry_backoff_ms then; with less than the 100 ms of the default the sender
  looks up as often while it waits for an answer, which costs records. Here it sleeps for 10 ms
  and waits for 100, unless retry_backoff_ms is given.
- Nothing is sent while a request about the transaction is under way, so that what a group adds to a
  commit, two of them, would hold up its last records. Here AddOffsetsToTxn comes at the beginning
  of the transaction, and TxnOffsetCommit when the last records are on their way.

Protocol: AddPartitionsToTxn v0-3, AddOffsetsToTxn v0-3, TxnOffsetCommit v3, EndTxn v0-3.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.net.compat import KafkaNetClient
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.sender import Sender
from kafka.producer.transaction_manager import (
    AddOffsetsToTxnHandler,
    TransactionManager,
    TxnOffsetCommitHandler,
    TxnRequestHandler,
)
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from ...transport.kafka_python_version import require_names
from .record_appender import RecordAppender

log = logging.getLogger(__name__)

require_names(
    {
        KafkaProducer: ("_wait_on_metadata",),
        Sender: ("_dispatch_error", "wakeup"),
        KafkaNetClient: ("await_ready",),
        TransactionManager: (
            "_enqueue_request",
            "_lookup_coordinator",
            "begin_commit",
            "next_request_handler",
        ),
        TxnOffsetCommitHandler: ("_build_request", "handle_response", "reenqueue"),
        AddOffsetsToTxnHandler: ("handle_response",),
        TxnRequestHandler: ("is_retry", "set_retry"),
        RecordAccumulator: ("flush_in_progress", "has_undrained"),
    }
)

#: A broker that refuses TxnOffsetCommit so may accept it once the member has joined anew.
_AFTER_JOIN = (
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.StaleMemberEpochError,
)

#: kafka-python waits for a connection to the coordinator that it knew last, and sends nothing else
#: meanwhile; then it asks who is the coordinator now. A connection that takes longer goes on.
_READY_WAIT_MS = 1_000

#: Before a request about the transaction is sent again; nothing else is sent meanwhile.
_RETRY_S = 0.01

#: Until metadata that were asked for are looked at.
_LOOK_EVERY_S = 0.02

#: How long a wait looks away from ``end_by``.
_SLICE_S = 0.1

#: After what adds partitions to a transaction (2), and their repetitions; before its end (3).
_ADD_OFFSETS_PRIORITY = 2.4
_COMMIT_OFFSETS_PRIORITY = 2.6

#: Tells who the member is now; None: it is lost, and may commit nothing.
Membership = Callable[[], ConsumerGroupMetadata | None]


class NotCommittedError(Exception):
    """The transaction cannot be committed; the cause says why, and nothing was begun."""


class InDoubtError(Exception):
    """Whether the transaction was committed is not known."""


class TransactionalProducer:
    """One ``KafkaProducer`` and its transactions; used by one thread at a time.

    Parameters
    ----------
    config : mapping
        kafka-python's producer configuration, ``transactional_id`` included.
    membership : callable
        As ``Membership``; called on kafka-python's thread as well.
    """

    def __init__(self, config: Mapping[str, Any], membership: Membership) -> None:
        self._membership = membership
        self._timeout_s = config["transaction_timeout_ms"] / 1000
        self._end_by = math.inf
        self._failure: BaseException | None = None
        self._epoch: Any = None
        self._offsets: _AddOffsets | None = None  # of the open transaction
        self._producer = KafkaProducer(**config)
        self._manager = self._producer._transaction_manager
        self._sender = self._producer._sender
        dispatch = self._sender._dispatch_error

        def dispatch_error(batch: Any, exception: Exception, partition_response: Any) -> None:
            dispatch(batch, exception, partition_response)
            if batch.is_done and self._failure is None:
                self._failure = exception

        self._sender._dispatch_error = dispatch_error
        client = self._sender._client
        await_ready = client.await_ready

        def await_ready_for_a_while(node_id: Any, timeout_ms: float = 0) -> bool:
            try:
                return bool(await_ready(node_id, timeout_ms=min(timeout_ms, _READY_WAIT_MS)))
            except kafka_errors.KafkaConnectionError:
                return False

        client.await_ready = await_ready_for_a_while
        self._end_waits_for_metadata()
        self._let_records_go_first()
        if "retry_backoff_ms" not in config:
            self._retry_soon()
        #: KafkaProducer's; its futures are those of the records.
        self.send = RecordAppender(self._producer).send

    @classmethod
    def connected(cls, config: Mapping[str, Any], membership: Membership) -> TransactionalProducer:
        """A new one, after ``init``."""
        producer = cls(config, membership)
        try:
            producer.init()
        except BaseException:
            producer.close(0)
            raise
        return producer

    def init(self) -> None:
        """Fence who went by this transactional id before; raises what kafka-python does."""
        self._producer.init_transactions()

    def end_by(self, when: float) -> None:
        """Wait for no broker beyond this moment of ``time.monotonic``; any thread.

        A wait under way ends as at its own deadline.
        """
        self._end_by = min(self._end_by, when)

    def knows(self, topic: str) -> bool:
        """Whether a record can be sent there without waiting for metadata."""
        return self._producer._metadata.partitions_for_topic(topic) is not None

    def begin(self, group_id: str) -> None:
        """Begin a transaction, which will have offsets of this group."""
        self._failure = None
        self._producer.begin_transaction()
        manager = self._manager
        self._epoch = manager.producer_id_and_epoch
        with manager._lock:
            self._offsets = _AddOffsets(manager, self._membership, group_id)
            manager._enqueue_request(self._offsets)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Make these part of the transaction before anything is sent to them.

        A topic that has grown is known to this producer five minutes later, if nobody asks.
        """
        for partition in partitions:
            self._wait_until_known(partition)
            self._manager.maybe_add_partition_to_transaction(partition)

    def _wait_until_known(self, partition: TopicPartition) -> None:
        deadline = time.monotonic() + self._timeout_s
        while partition.partition not in self._producer.partitions_for(partition.topic):
            if time.monotonic() > min(deadline, self._end_by):
                raise kafka_errors.UnknownTopicOrPartitionError(str(partition))
            self._producer._metadata.request_update()
            self._sender.wakeup()
            time.sleep(_LOOK_EVERY_S)

    def note(self, future: Any) -> None:
        """Look at a record's future that was done as soon as it was sent."""
        if future.is_done and future.failed() and self._failure is None:
            self._failure = future.exception

    def failure(self) -> BaseException | None:
        """Why the transaction cannot be committed, as far as that is known."""
        if self._failure is not None:
            return self._failure
        if self._manager.has_error():
            error: BaseException = self._manager.last_error
            return error
        if self._epoch is not None and self._epoch is not self._manager.producer_id_and_epoch:
            ended: BaseException = kafka_errors.InvalidProducerEpochError("ended by the broker")
            return ended
        return None

    @property
    def broken(self) -> bool:
        """Whether another one must be made in its place."""
        return bool(self._manager.has_fatal_error() or self._producer._closed)

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit the transaction, with these offsets of its group in it.

        Until when: the transaction's timeout, after which the broker has aborted it. What ends it
        early: a record that failed, or the group's refusal. From EndTxn on the broker decides.

        Raises
        ------
        NotCommittedError
            Nothing of it will be seen once it is aborted.
        InDoubtError
            It may be committed.
        """
        deadline = time.monotonic() + self._timeout_s
        manager, handler = self._manager, self._offsets
        assert handler is not None
        try:
            with manager._lock:
                manager._maybe_fail_with_error()
                handler.commit(offsets)
            self._flush(deadline)
            if not self._wait(handler.result, deadline):
                raise kafka_errors.KafkaTimeoutError("no answer from the group's coordinator")
            failure = self.failure()
            if failure is not None:
                raise failure
            # Nothing is in flight any more: no answer can change the state between here and EndTxn.
            result = manager.begin_commit()
        except Exception as error:
            raise NotCommittedError(_says(error)) from error
        self._sender.wakeup()
        try:
            if not self._wait(result, max(deadline, time.monotonic() + 1)):
                raise kafka_errors.KafkaTimeoutError("no answer to EndTxn")
        except Exception as error:
            raise InDoubtError(_says(error)) from error

    def abort(self, timeout_s: float) -> bool:
        """Abort the transaction; False if another producer must be made, which aborts it."""
        if self.broken:
            return False
        try:
            result = self._manager.begin_abort()
            self._sender.wakeup()
            aborted = self._wait(result, time.monotonic() + timeout_s)
        except Exception as error:
            log.info("not aborted: %r", error)
            return False
        accumulator = self._producer._accumulator
        # Ending a transaction with records on their way begins a flush that nobody ends, and what
        # is sent from then on would not linger.
        while aborted and accumulator.flush_in_progress():
            accumulator._flushes_in_progress.decrement()
        return aborted

    def close(self, timeout_s: float) -> None:
        """Close the connections; what is open stays so until the broker or a successor ends it."""
        self.end_by(time.monotonic() + timeout_s)
        # kafka-python flushes first, and raises what does not get out in time before it has closed
        # anything. What is to be delivered is delivered by a commit.
        self._producer.flush = lambda timeout=None: None
        self._producer.close(timeout=timeout_s)

    def _retry_soon(self) -> None:
        """Sleep in kafka-python's stead before a request is sent again."""
        next_request_handler = self._manager.next_request_handler

        def next_one(has_incomplete_batches: bool) -> Any:
            handler = next_request_handler(has_incomplete_batches)
            if handler is not None and handler.is_retry:
                time.sleep(_RETRY_S)
                handler._is_retry = False
            return handler

        self._manager.next_request_handler = next_one

    def _flush(self, deadline: float) -> None:
        """Wait for the delivery of what was sent; KafkaTimeoutError as kafka-python's ``flush``."""
        while True:
            try:
                self._producer.flush(_SLICE_S)
                return
            except kafka_errors.KafkaTimeoutError:
                if time.monotonic() >= min(deadline, self._end_by):
                    raise

    def _wait(self, result: Any, deadline: float) -> bool:
        """Whether this is done in time; raises what it raises."""
        while not result.wait(_SLICE_S * 1000):
            if time.monotonic() >= min(deadline, self._end_by):
                return False
        return True

    def _end_waits_for_metadata(self) -> None:
        """Have each record of a topic that is not known wait for it until ``end_by`` at most."""
        metadata = self._producer._metadata
        wait = self._producer._wait_on_metadata

        def wait_for_a_while(topic: str, max_wait_ms: float) -> Any:
            partitions = metadata.partitions_for_topic(topic)
            if partitions is not None:
                return partitions
            deadline = time.monotonic() + max_wait_ms / 1000
            while True:
                try:
                    return wait(topic, min(max_wait_ms, _SLICE_S * 1000))
                except kafka_errors.KafkaTimeoutError as error:
                    if time.monotonic() >= min(deadline, self._end_by):
                        raise kafka_errors.KafkaTimeoutError(f"no metadata of {topic!r}") from error

        self._producer._wait_on_metadata = wait_for_a_while

    def _let_records_go_first(self) -> None:
        """Send the group's offsets beside the last records, not before them."""
        manager, accumulator = self._manager, self._producer._accumulator
        next_request_handler = manager.next_request_handler

        def next_one(has_incomplete_batches: bool) -> Any:
            with manager._lock:
                pending = manager._pending_requests
                waits = (
                    bool(pending)
                    and isinstance(pending[0][2], _CommitOffsets)
                    and not manager._new_partitions_in_transaction
                    and not manager.has_error()
                )
            if waits and accumulator.has_undrained():
                return None
            return next_request_handler(has_incomplete_batches)

        manager.next_request_handler = next_one


class _AddOffsets(AddOffsetsToTxnHandler):  # type: ignore[misc]
    """AddOffsetsToTxn; once they are known, TxnOffsetCommit by a member that may rebalance.

    ``result`` is that of both.
    """

    priority = _ADD_OFFSETS_PRIORITY

    def __init__(self, manager: Any, membership: Membership, group_id: str) -> None:
        super().__init__(manager, ConsumerGroupMetadata(group_id=group_id), {})
        self._membership = membership
        self._is_added = False

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """These are the offsets; within the manager's lock."""
        self.offsets = dict(offsets)
        if self._is_added:
            self._send_them()

    def handle_response(self, response: Any) -> None:
        """As kafka-python's, with the other handler behind it."""
        if response.error_code:
            super().handle_response(response)
            return
        self.transaction_manager._transaction_started = True
        self._is_added = True
        if self.offsets:
            self._send_them()

    def _send_them(self) -> None:
        manager = self.transaction_manager
        manager._pending_txn_offset_commits = dict(self.offsets)
        member = self._membership()
        if member is None:
            self.abortable_error(_out_of_the_group())
            return
        manager._enqueue_request(_CommitOffsets(manager, member, self, self._membership))


class _CommitOffsets(TxnOffsetCommitHandler):  # type: ignore[misc]
    """TxnOffsetCommit, sent again with another generation where a rebalance came between."""

    priority = _COMMIT_OFFSETS_PRIORITY

    def __init__(
        self, manager: Any, member: ConsumerGroupMetadata, first: Any, membership: Membership
    ) -> None:
        super().__init__(manager, member, manager._pending_txn_offset_commits, first.result)
        self._membership = membership

    def handle_response(self, response: Any) -> None:
        """As kafka-python's, but for a generation that is not the member's last word."""
        errors = {
            kafka_errors.for_code(partition.error_code)
            for topic in response.topics
            for partition in topic.partitions
        }
        if errors.intersection(_AFTER_JOIN):
            self.reenqueue()
        else:
            super().handle_response(response)

    def reenqueue(self) -> None:
        """Send it again as whoever the member is now, whatever it was refused for; or give up."""
        member = self._membership()
        if member is None:
            self.abortable_error(_out_of_the_group())
            return
        self.group_metadata = member
        self.request = self._build_request()
        super().reenqueue()


def _out_of_the_group() -> Exception:
    error: Exception = kafka_errors.CommitFailedError("this member is out of the group")
    return error


def _says(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
