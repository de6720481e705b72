"""kafka-python's transactional producer, with the group's fencing (KIP-447) and no lost failures.

What this module does differently from kafka-python 3.0.12:

- A TxnOffsetCommit that arrives while the group rebalances is refused for its generation, which
  dooms kafka-python's transaction. But the member may well go on owning what it owns. Here the
  request is sent again with the member's generation at that time, until the member is lost.
- In kafka-python, a record that could not be delivered in time, or a bumped epoch, leaves a
  transaction that commits without those records. Here no transaction is committed if one of its
  records failed.
- A coordinator whose broker is gone is given up after a second, not after request_timeout_ms, and
  its request is sent to its successor. kafka-python forgets the request, because ``await_ready``
  raises where its caller checks the return value; anybody who waits for it waits for ever.
- ``close`` always closes the producer.
- Metadata is requested for a partition that is new to its topic; kafka-python calls it unknown.
- The wait for the metadata of a topic ends when the producer is to end.
- A partition can be added to the transaction before anything is sent to it.
- The broker refuses the next transaction until all markers of the previous one are written.
  kafka-python's first request then sleeps for retry_backoff_ms. With less than the default of
  100 ms the sender wakes up as often while it waits for an answer, which costs throughput. Here it
  sleeps for 10 ms and waits for 100, unless retry_backoff_ms is given.
- Nothing is sent while a request about the transaction is under way. So the two requests that a
  group adds to a commit would hold up its last records. Here AddOffsetsToTxn is sent at the
  beginning of the transaction, and TxnOffsetCommit when the last records are on their way.
- A request that got no answer is sent again in kafka-python, under the same epoch. If its first
  copy arrives in a later transaction, an EndTxn ends that one, and records of an aborted
  transaction become part of it. Here ``unanswered`` says that there may be such a copy. Whoever
  begins the next transaction does it with a new producer, that is, with a new epoch, which the
  broker tells from the old one.

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
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from ...transport.forks import leave_to_parent
from ...transport.kafka_python_version import require_names
from ...transport.secured_clients import net_client
from ..required_brokers import TXN_OFFSET_COMMIT_WITH_MEMBER
from .record_appender import RecordAppender

log = logging.getLogger(__name__)

require_names(
    {
        KafkaProducer: ("_wait_on_metadata", "_unregister_cleanup"),
        Sender: ("_dispatch_error", "wakeup"),
        KafkaNetClient: ("await_ready", "send"),
        TransactionManager: (
            "_enqueue_request",
            "_lookup_coordinator",
            "begin_commit",
            "next_request_handler",
        ),
        TxnOffsetCommitHandler: ("_build_request", "handle_response", "reenqueue"),
        AddOffsetsToTxnHandler: ("handle_response",),
        TxnRequestHandler: ("is_retry", "set_retry"),
        TxnOffsetCommitRequest: ("_min_version",),
        RecordAccumulator: ("flush_in_progress", "has_undrained"),
    }
)

#: A TxnOffsetCommit that is refused with one of these may be accepted once the member has rejoined.
_AFTER_JOIN = (
    kafka_errors.IllegalGenerationError,
    kafka_errors.RebalanceInProgressError,
    kafka_errors.StaleMemberEpochError,
)

#: kafka-python waits this long for a connection to the last known coordinator, and sends nothing
#: else meanwhile; then it looks up the coordinator again. A slower connection attempt goes on.
_READY_WAIT_MS = 1_000

#: Delay before a request about the transaction is sent again; nothing else is sent meanwhile.
_RETRY_S = 0.01

#: How often to check for requested metadata.
_LOOK_EVERY_S = 0.02

#: How often a wait checks for ``end_by``.
_SLICE_S = 0.1

#: After requests that add partitions to a transaction (2), and their retries; before its end (3).
_ADD_OFFSETS_PRIORITY = 2.4
_COMMIT_OFFSETS_PRIORITY = 2.6

#: What changes a transaction. All of it has the producer's epoch.
_OF_A_TRANSACTION = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)

#: Returns the member's current group metadata; None if it is lost and must not commit anything.
Membership = Callable[[], ConsumerGroupMetadata | None]


class NotCommittedError(Exception):
    """The transaction cannot be committed; the cause says why, and nothing was begun."""


class InDoubtError(Exception):
    """It is not known whether the transaction was committed."""


class TransactionalProducer:
    """One ``KafkaProducer`` and its transactions; used by one thread at a time.

    Parameters
    ----------
    config : mapping
        kafka-python's producer configuration, ``transactional_id`` included.
    membership : callable
        As ``Membership``; called on kafka-python's thread as well.

    Attributes
    ----------
    unanswered : bool
        Whether a request of a transaction got no answer. A copy of it may still arrive, so this
        producer must begin no transaction any more.
    """

    unanswered = False

    def __init__(self, config: Mapping[str, Any], membership: Membership) -> None:
        self._membership = membership
        self._timeout_s = config["transaction_timeout_ms"] / 1000
        self._end_by = math.inf
        self._failure: BaseException | None = None
        self._epoch: Any = None
        self._offsets: _AddOffsets | None = None  # of the open transaction
        self._producer = KafkaProducer(**{"kafka_client": net_client, **config})
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
        self._note_missing_answers(client)
        self._end_waits_for_metadata()
        self._let_records_go_first()
        if "retry_backoff_ms" not in config:
            self._retry_soon()
        leave_to_parent(self, TransactionalProducer._leave_to_parent)
        #: KafkaProducer's; its futures are those of the records.
        self.send = RecordAppender(self._producer).send

    @classmethod
    def connected(cls, config: Mapping[str, Any], membership: Membership) -> TransactionalProducer:
        """Return a new producer, after ``init``."""
        producer = cls(config, membership)
        try:
            producer.init()
        except BaseException:
            producer.close(0)
            raise
        return producer

    def init(self) -> None:
        """Fence earlier producers with this transactional id; raises what kafka-python raises."""
        self._producer.init_transactions()

    def end_by(self, when: float) -> None:
        """Wait for no broker beyond this ``time.monotonic`` time; any thread.

        A wait under way then ends as it would at its own deadline.
        """
        self._end_by = min(self._end_by, when)

    def knows(self, topic: str) -> bool:
        """Whether a record can be sent to this topic without waiting for metadata."""
        return self._producer._metadata.partitions_for_topic(topic) is not None

    def begin(self, group_id: str) -> None:
        """Begin a transaction that will commit offsets of this group; not if ``unanswered``."""
        self._failure = None
        self._producer.begin_transaction()
        manager = self._manager
        self._epoch = manager.producer_id_and_epoch
        with manager._lock:
            self._offsets = _AddOffsets(manager, self._membership, group_id)
            manager._enqueue_request(self._offsets)

    def add(self, partitions: Collection[TopicPartition]) -> None:
        """Add these to the transaction before anything is sent to them.

        Requests metadata for a new partition; otherwise the producer would take five minutes to
        notice that a topic has grown.
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
        """Check a record's future that was done as soon as the record was sent."""
        if future.is_done and future.failed() and self._failure is None:
            self._failure = future.exception

    def failure(self) -> BaseException | None:
        """Return why the transaction cannot be committed, as far as that is known."""
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
        """Whether this producer must be replaced."""
        return bool(self._manager.has_fatal_error() or self._producer._closed)

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata],
        before_end: Callable[[], None] = lambda: None,
    ) -> None:
        """Commit the transaction, including these offsets of its group.

        ``before_end`` is called when the group has accepted them and all records are delivered; if
        it raises, nothing is committed.

        Waits until the transaction's timeout, after which the broker has aborted it. A record that
        failed, or a refusal by the group, ends the wait early. From EndTxn on the broker decides.

        Raises
        ------
        NotCommittedError
            Nothing of it will be seen once it is aborted.
        InDoubtError
            It may have been committed.
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
            before_end()
            # Nothing is in flight any more, so no answer can change the state before EndTxn.
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
        """Abort the transaction; False if that takes a new producer in this one's place."""
        if self.broken:
            return False
        try:
            result = self._manager.begin_abort()
            self._sender.wakeup()
            aborted = self._wait(result, time.monotonic() + timeout_s)
        except Exception as error:
            log.info("cannot abort the transaction: %r", error)
            return False
        accumulator = self._producer._accumulator
        # If a transaction ends with records on their way, kafka-python begins a flush and never
        # ends it; records sent from then on would not linger.
        while aborted and accumulator.flush_in_progress():
            accumulator._flushes_in_progress.decrement()
        return aborted

    def close(self, timeout_s: float) -> None:
        """Close the connections; an open transaction is left to the broker or a successor."""
        self.end_by(time.monotonic() + timeout_s)
        # kafka-python flushes first, and raises if records are not delivered in time, before it has
        # closed anything. Here a commit delivers what is to be delivered.
        self._producer.flush = lambda timeout=None: None
        self._producer.close(timeout=timeout_s)

    def _note_missing_answers(self, client: KafkaNetClient) -> None:
        send = client.send

        def missing(error: BaseException) -> None:
            # Without a connection nothing was sent.
            if not isinstance(error, kafka_errors.NodeNotReadyError):
                self.unanswered = True

        def send_and_note(node_id: Any, request: Any, **kwargs: Any) -> Any:
            future = send(node_id, request, **kwargs)
            if isinstance(request, _OF_A_TRANSACTION):
                future.add_errback(missing)
            return future

        client.send = send_and_note

    def _leave_to_parent(self) -> None:
        """In a forked child: its end must not end the parent's transaction."""
        self._producer._unregister_cleanup()
        self._producer._closed = True

    def _retry_soon(self) -> None:
        """Before a request is sent again, sleep here, for a short time, not in kafka-python."""
        next_request_handler = self._manager.next_request_handler

        def next_one(has_incomplete_batches: bool) -> Any:
            handler = next_request_handler(has_incomplete_batches)
            if handler is not None and handler.is_retry:
                time.sleep(_RETRY_S)
                handler._is_retry = False
            return handler

        self._manager.next_request_handler = next_one

    def _flush(self, deadline: float) -> None:
        """Wait until all records are delivered; raises KafkaTimeoutError as ``flush`` does."""
        while True:
            try:
                self._producer.flush(_SLICE_S)
                return
            except kafka_errors.KafkaTimeoutError:
                if time.monotonic() >= min(deadline, self._end_by):
                    raise

    def _wait(self, result: Any, deadline: float) -> bool:
        """Return whether the result is done in time; raises what it raises."""
        while not result.wait(_SLICE_S * 1000):
            if time.monotonic() >= min(deadline, self._end_by):
                return False
        return True

    def _end_waits_for_metadata(self) -> None:
        """Have records of an unknown topic wait for its metadata until ``end_by`` at most."""
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
        """Send the group's offsets along with the last records, not before them."""
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
    """AddOffsetsToTxn; then, once the offsets are known, TxnOffsetCommit, even in a rebalance.

    ``result`` is the result of both requests.
    """

    priority = _ADD_OFFSETS_PRIORITY

    def __init__(self, manager: Any, membership: Membership, group_id: str) -> None:
        super().__init__(manager, ConsumerGroupMetadata(group_id=group_id), {})
        self._membership = membership
        self._is_added = False

    def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Set the offsets to commit; call it with the manager's lock held."""
        self.offsets = dict(offsets)
        if self._is_added:
            self._send_them()

    def handle_response(self, response: Any) -> None:
        """Handle it as kafka-python does, but enqueue TxnOffsetCommit separately."""
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
    """TxnOffsetCommit, sent again with another generation if a rebalance came in between."""

    priority = _COMMIT_OFFSETS_PRIORITY

    def __init__(
        self, manager: Any, member: ConsumerGroupMetadata, first: Any, membership: Membership
    ) -> None:
        super().__init__(manager, member, manager._pending_txn_offset_commits, first.result)
        self._membership = membership

    def _build_request(self) -> Any:
        """As kafka-python's, but nothing that leaves out the member: it would be accepted."""
        request = super()._build_request()
        request._min_version = TXN_OFFSET_COMMIT_WITH_MEMBER
        return request

    def handle_response(self, response: Any) -> None:
        """Handle it as kafka-python does, but send it again if the generation is outdated."""
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
        """Send it again with the member's current identity, whatever the error was; or give up."""
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
