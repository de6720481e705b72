"""Producer: records and Arrow data to Kafka, idempotent or in transactions.

The callers' threads append records and wait; kafka-python's I/O thread sends, receives, and calls
back. Both use `Delivery` under one lock, which is never held over I/O, while waiting, while rows
are encoded, or when a future gets its result.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from operator import index
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from ..errors import (
    AuthorizationError,
    KafkaRebalanceError,
    OptionError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from ..fetch.connections import MIN_RECEIVE_MESSAGE_MAX_BYTES, ClusterConnections
from ..transport.forks import RefusedLock, leave_to_parent
from .broker_link import BrokerLink
from .broker_versions import LatestVersions, versions_of
from .delivery import OUTSIDE, Delivery, Machine, RecordPosition
from .encoder.arrow_slices import slices_of
from .encoder.at_once import Append
from .encoder.encoded_batch import EncodedBatch
from .encoder.partitioner import partition_of_key
from .idempotent import IdempotentMachine
from .open_batches import OpenBatches
from .open_transaction import MemberNow
from .producer_settings import ProducerSettings
from .requests import GroupMetadata, Offset, Versions
from .transaction import TransactionMachine
from .transaction_errors import Errors, Outcome
from .transaction_step import Ended, Standing

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa
    from typing_extensions import Self, Unpack

    from ..settings.typed_settings import ProducerSettings as TypedSettings
    from .encoder.python_records import Headers

__all__ = ["GroupMetadata", "Offset", "Producer", "RecordPosition", "Transaction"]

log = logging.getLogger(__name__)

#: Rows are encoded in pieces of this size, so that the first are sent while the next are encoded.
_MOST_ROWS_BYTES = 4 * 1024 * 1024


class Producer:
    """Writes to Kafka. Thread-safe.

    Without a ``transactional_id`` records are idempotent: each is written once, in the order of the
    calls within its partition, even if requests are repeated or leaders move. With one, all records
    are written in transactions: see `transaction`.

    The constructor connects. The first transaction takes over the transactional id: it fences the
    producer that had it, and aborts its open transaction.

    Parameters
    ----------
    transactional_id : str, optional
        Names the producer across its incarnations; the newest one fences the others.
    **config
        kafka-python's settings of a producer, and ``buffer_memory``: how many bytes of records may
        wait for acknowledgement (64 MiB); `send` blocks beyond. ``batch_size`` is 500,000 and
        ``linger_ms`` is 5 by default; ``acks`` is always "all".

    Raises
    ------
    OptionError
        A setting is unknown, or has a value that is not allowed.
    AuthenticationError, KafkaRebalanceError
        The brokers do not let this client in.
    UnsupportedBrokerError
        They are older than Kafka 2.5.
    kafka.errors.KafkaError or OSError
        None of them answers within ``bootstrap_timeout_ms``.
    """

    def __init__(
        self, transactional_id: str | None = None, **config: Unpack[TypedSettings]
    ) -> None:
        self._settings = settings = ProducerSettings.checked(transactional_id, config)
        self._serialize_key, self._serialize_value = settings.serializers
        connections = ClusterConnections(settings.client, MIN_RECEIVE_MESSAGE_MAX_BYTES)
        try:
            connections.bootstrap(settings.bootstrap_timeout_s)
            versions = versions_of(connections)
        except BaseException:
            connections.close()
            raise
        self._transactions: TransactionMachine | None = None
        self._latest = LatestVersions(connections, versions, settings.metadata_max_age_s)
        machine: Machine
        if transactional_id is None:
            machine = IdempotentMachine(versions)
        else:
            machine = self._transactions = TransactionMachine(
                transactional_id, settings.transaction_timeout_ms, versions
            )
        self._delivery = Delivery(machine, settings.delivery, time.monotonic)
        self._most = settings.delivery.buffer_memory
        latest = None if transactional_id is None else self._latest
        self._link = BrokerLink(connections, self._delivery, settings, latest, self._transactions)
        self._lock = self._link.lock
        self._delivery.room.locked = self._lock.locked
        #: By topic; none if there are serializers.
        self._at_once: dict[str, Append] = {}
        self._rows_lock = threading.Lock()  # taken before the other
        self._closed = False
        #: Those that somebody has a handle of, by number.
        self._begun: weakref.WeakValueDictionary[int, Transaction] = weakref.WeakValueDictionary()
        leave_to_parent(self, Producer._leave_to_parent)

    # Records.

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        future: bool = False,
    ) -> Future[RecordPosition] | None:
        """Send a record, outside of transactions. Returns before it is sent.

        Parameters
        ----------
        topic : str
        value, key : bytes or None
            Or what the serializers take.
        headers : sequence of (str, bytes or None), optional
        partition : int, optional
            By default that of the key, as Java's producer chooses it; without a key, one partition
            until its batch is closed.
        timestamp_ms : int, optional
            Milliseconds since the epoch; by default the time of the call.
        future : bool
            Whether to return a future of the record's position. With or without one, `flush` raises
            the error of a record that could not be delivered.

        Raises
        ------
        RecordTooLargeError
            The record is larger than ``max_request_size``.
        kafka.errors.KafkaTimeoutError
            There was no room, or no metadata of the topic, for ``max_block_ms``.
        TypeError, ValueError
            The topic has no such partition, or key, value or a header is not bytes.
        """
        at_once = self._at_once.get(topic)
        if (
            at_once is not None
            and not future
            and at_once(OUTSIDE, key, value, headers, partition, timestamp_ms)
        ):
            return None
        self._refuse_outside_of_transactions()
        return self._send(None, topic, value, key, headers, partition, timestamp_ms, future)

    def send_batch(
        self, topic: str, data: pa.RecordBatch | pa.Table, *, timestamp_ms: int | None = None
    ) -> None:
        """Send rows, outside of transactions. Returns before they are sent.

        Parameters
        ----------
        topic : str
        data : pyarrow.RecordBatch or pyarrow.Table
            Columns ``value``, and as far as given ``key``, ``headers``, ``timestamp``,
            ``partition``: see `produce.encoder.arrow_rows`.
        timestamp_ms : int, optional
            Of rows without a timestamp.

        Raises
        ------
        TypeError, ValueError, RecordTooLargeError
            A column or row is not allowed. Rows before it may have been sent.
        kafka.errors.KafkaTimeoutError
            As `send`.
        """
        self._refuse_outside_of_transactions()
        self._send_batch(None, topic, data, timestamp_ms)

    def send_encoded(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Send encoded batches, outside of transactions. Returns before they are sent.

        Parameters
        ----------
        topic : str
        batches : iterable of EncodedBatch
            Of an `ArrowEncoder`, in the order of each partition. They belong to the producer from
            now on, which writes its id and sequence numbers into them. One that is too large for
            the topic is split. Taken one by one, as room in ``buffer_memory`` allows.

        Raises
        ------
        kafka.errors.KafkaTimeoutError
            As `send`; also if the topic does not have a batch's partition.
        """
        self._refuse_outside_of_transactions()
        self._send_encoded(None, topic, batches)

    def partitions_for(self, topic: str, at_least: int = 1) -> int:
        """Return how many partitions a topic has, as soon as there are so many.

        Waits and raises as `send`.
        """
        with self._lock:
            open_transaction = self._delivery.machine.open_transaction
            return self._opened(topic, open_transaction, at_least).partitions

    def topic_partitions(self, topic: str) -> tuple[int, list[int]]:
        """Return how many partitions a topic has, and which of them have a leader.

        As of the last metadata. Waits and raises as `send`.
        """
        with self._lock:
            opened = self._opened(topic, self._delivery.machine.open_transaction)
            return opened.partitions, opened.available

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all records sent so far are acknowledged, or given up.

        Raises
        ------
        kafka.errors.KafkaError
            The error of the first record that was given up since the last call.
        kafka.errors.KafkaTimeoutError
            Not within ``timeout_ms``; by default, ``delivery_timeout_ms`` and ``max_block_ms``.
        TransactionAbortedError
            Their transaction cannot be committed any more.
        """
        self._flush(self._delivery.machine.open_transaction, timeout_ms)

    def _flush(self, transaction: int | None, timeout_ms: float | None) -> None:
        with self._lock:
            self._check(transaction)
        failures = self._deliver_open(timeout_ms)
        if transaction is not None:
            with self._lock:
                self._check(transaction)
        if failures:
            raise failures[0]

    def _deliver_open(self, timeout_ms: float | None) -> list[Exception]:
        """Wait until all records so far are acknowledged or given up; return why they were."""
        delivery = self._delivery
        # What is being encoded may have rows of this thread.
        with self._rows_lock, self._lock, self._link.whole():
            last = delivery.close_open()
            self._link.wake()
        with self._lock:
            if timeout_ms is None:
                timeout_ms = self._settings.longest_delivery_ms
            self._wait_for_leaders(lambda: delivery.settled >= last, timeout_ms, "delivery")
            return delivery.take_failures()

    # Transactions.

    def initialize(self, timeout_ms: float | None = None) -> None:
        """Take over the transactional id: fence its last producer, and abort its open transaction.

        The first `transaction` does it, too. Call it to do so earlier, or after this producer was
        fenced, if it is the rightful owner of the id. Does nothing for a producer that is ready.

        Raises
        ------
        OptionError
            ``transaction_timeout_ms`` is above the brokers' maximum.
        AuthorizationError, KafkaRebalanceError
            The brokers refuse this producer.
        kafka.errors.KafkaTimeoutError
            Not within ``timeout_ms`` (``max_block_ms`` by default).
        """
        machine = self._machine()
        with self._lock:
            self._await_the_last(machine, timeout_ms)
            if machine.standing is not Standing.READY:
                with self._link.whole():
                    self._delivery.apply(machine.initialize())
                    self._link.wake()
            self._initialized(machine, timeout_ms)

    def transaction(self, timeout_ms: float | None = None) -> Transaction:
        """Start a transaction.

        As a context manager it is committed at the end, and aborted after an exception. Waits for
        the end of the previous one if that is being committed or aborted.

        Raises
        ------
        TransactionAbortedError
            The producer is fenced, or the brokers refuse it: see `initialize`.
        RuntimeError
            Another transaction is open; or there is no ``transactional_id``.
        OptionError, KafkaRebalanceError, kafka.errors.KafkaTimeoutError
            As `initialize`, the first time.
        """
        machine = self._machine()
        if machine.standing is Standing.NEW:
            self.initialize(timeout_ms)
        with self._lock:
            self._link.check()
            self._await_the_last(machine, timeout_ms)
            with self._link.whole():
                self._follow_brokers(machine)
                handle = machine.begin()
                self._keep_outcome(self._delivery.last_ended)
                begun = self._begun[handle] = Transaction(self, handle)
                self._delivery.look_at_machine()
            return begun

    @property
    def versions(self) -> Versions:
        """The versions of its requests, those of the transaction that is open."""
        machine = self._transactions
        return self._latest.versions if machine is None else machine.versions

    @property
    def has_failed(self) -> bool:
        """Whether only another producer can send anything."""
        return self._link.has_failed

    @property
    def is_refused(self) -> bool:
        """Whether transactions take `initialize` first: this producer is fenced, or has failed."""
        return self._machine().standing in (Standing.FENCED, Standing.FAILED)

    def waits_for(self, topic: str) -> bool:
        """Whether a record for this topic would have to wait for room or metadata."""
        return topic not in self._delivery.open or not self._delivery.has_room

    def allow(self, topic: str, size: int) -> None:
        """Take records of up to this many bytes for a topic, also above ``max_request_size``.

        Before the first record for it.
        """
        with self._lock:
            self._delivery.allow(topic, size)

    def end_by(self, when: float) -> None:
        """Let no call wait beyond this ``time.monotonic`` time; it then raises KafkaTimeoutError.

        Any thread; also for calls under way.
        """
        self._link.end_by(when)

    def close(self, timeout_ms: float | None = None) -> None:
        """Send what waits, abort the open transaction, and close the connections; idempotent.

        Other threads' calls raise KafkaRebalanceError from then on.

        Parameters
        ----------
        timeout_ms : float, optional
            For how long to try; by default as `flush`, and ``max_block_ms`` with transactions.
            Futures that have no result then get a KafkaRebalanceError.

        Raises
        ------
        kafka.errors.KafkaError
            As `flush`.
        """
        if self._closed:  # in a forked child, where the lock is refused
            return
        self._link.refuse_on_io_thread("close()")
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._delivery.refuse()
            self._link.changed.notify_all()
        try:
            self._finish(timeout_ms)
        finally:
            self._link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _leave_to_parent(self) -> None:
        """In a forked child: each call raises IllegalStateError, and ``close`` does nothing."""
        self._closed = True
        for name in ("_lock", "_rows_lock"):
            setattr(self, name, RefusedLock())

    # For the handles.

    def _send(
        self,
        transaction: int | None,
        topic: str,
        value: Any,
        key: Any,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None,
        future: bool,
    ) -> Future[RecordPosition] | None:
        if self._serialize_key is not None:
            key = self._serialize_key(topic, headers, key)
        if self._serialize_value is not None:
            value = self._serialize_value(topic, headers, value)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        delivery = self._delivery
        with self._lock:  # for each record: kept short
            if delivery.accepts != transaction or delivery.used >= self._most:
                self._make_ready(transaction)
            batches = delivery.open.get(topic)
            if batches is None:
                batches = self._opened(topic, transaction)
            if topic not in self._at_once and self._settings.serializers == (None, None):
                self._at_once[topic] = batches.append_at_once
            if batches.encodes:
                self._wait_for_rows(transaction, batches)
            if partition is None:
                if key is None:
                    sticky = batches.sticky
                    partition = sticky.order[sticky.at]
                else:
                    partition = partition_of_key(key, batches.partitions)
            elif type(partition) is not int or not 0 <= partition < batches.partitions:
                partition = _checked_partition(topic, partition, batches.partitions)
            with self._link.whole():
                if delivery.append(batches, partition, key, value, headers, timestamp_ms):
                    self._link.wake()
                return delivery.await_last(batches, partition) if future else None

    def _send_batch(
        self,
        transaction: int | None,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        timestamp_ms: int | None,
    ) -> None:
        for rows in slices_of(data, min(_MOST_ROWS_BYTES, self._most // 4)):
            is_sent = False
            while not is_sent:
                with self._lock:
                    self._make_ready(transaction)
                    batches = self._opened(topic, transaction)
                # While rows are encoded alone, never while somebody waits for brokers.
                with self._rows_lock:
                    if is_sent := self._delivery.has_room:
                        self._send_slice(transaction, batches, rows, timestamp_ms)
        with self._lock:
            self._check(transaction)

    def _send_slice(
        self, transaction: int | None, batches: OpenBatches, rows: Any, timestamp_ms: int | None
    ) -> None:
        try:
            self._send_rows(transaction, batches, rows, timestamp_ms)
        except BaseException as error:
            if batches.encodes:  # for good, as this thread does no more
                with self._lock:
                    self._link.is_torn(error)
            raise

    def _send_rows(
        self, transaction: int | None, batches: OpenBatches, rows: Any, timestamp_ms: int | None
    ) -> None:
        with self._lock, self._link.whole():
            self._check(transaction)
            self._delivery.begin_rows(batches)
        full: list[EncodedBatch] = []
        try:
            full = batches.encode(rows, timestamp_ms)
        finally:
            with self._lock, self._link.whole():
                self._delivery.end_rows(transaction, batches, full)
                self._link.wake()
                self._link.changed.notify_all()

    def _send_encoded(
        self, transaction: int | None, topic: str, encoded: Iterable[EncodedBatch]
    ) -> None:
        delivery = self._delivery
        for batch in encoded:  # which may take long: without the lock
            with self._lock:
                self._make_ready(transaction)
                batches = self._opened(topic, transaction, batch.partition + 1)
                if batches.encodes:
                    self._wait_for_rows(transaction, batches)
                with self._link.whole():
                    delivery.add_encoded(batches, batch)
                    self._link.wake()
        with self._lock:
            self._check(transaction)

    def _add_offsets(
        self,
        transaction: int,
        group: GroupMetadata | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata],
        before: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None,
        member: MemberNow | None,
    ) -> None:
        machine = self._machine()
        group = group if isinstance(group, GroupMetadata) else GroupMetadata(*group[:4])
        offsets, before = _offsets(offsets), _offsets(before or {})
        with self._lock:
            self._check(transaction)
            with self._link.whole():
                step = machine.add_offsets(transaction, group, offsets, before, member)
                self._delivery.apply(step)
                self._link.wake()

    def _announce(
        self, transaction: int, partitions: Iterable[TopicPartition], group_id: str | None
    ) -> None:
        machine = self._machine()
        with self._lock:
            self._check(transaction)
            with self._link.whole():
                self._delivery.apply(machine.announce(transaction, partitions, group_id))
                self._link.wake()

    def _settle(self, transaction: int, timeout_ms: float | None) -> None:
        machine = self._machine()
        with self._lock:
            self._check(transaction)
            with self._link.whole():
                self._delivery.close_open()
                self._link.wake()

            def is_settled() -> bool:
                self._check(transaction)
                return machine.owes_nothing

            if timeout_ms is None:
                timeout_ms = self._settings.longest_delivery_ms
            self._wait_for_leaders(is_settled, timeout_ms, "delivery")

    def _commit(self, transaction: int, timeout_ms: float | None) -> None:
        machine = self._machine()
        self._link.refuse_on_io_thread("commit()")
        # What is being encoded may have rows of this thread.
        with self._rows_lock, self._lock, self._link.whole():
            if machine.transaction == transaction and machine.open_transaction == transaction:
                self._delivery.close_open()
                self._delivery.apply(machine.commit(transaction))
                self._link.wake()
        with self._lock:
            try:
                ended = self._ended(transaction, timeout_ms)
            except kafka_errors.KafkaTimeoutError:
                if cause := self._doom(transaction):  # its abort goes on in the background
                    raise TransactionAbortedError(cause, {}) from None
                raise
        if ended.outcome is Outcome.NOT_KNOWABLE:
            raise TransactionInDoubtError(
                f"whether transaction {transaction} was committed is not known: {ended.cause}"
            )
        if ended.outcome is Outcome.ABORTED:
            raise TransactionAbortedError(ended.cause, {})

    def _abort(self, transaction: int, cause: str, timeout_ms: float | None) -> None:
        machine = self._machine()
        with self._lock:
            if machine.transaction == transaction:
                with self._link.whole():
                    self._delivery.drop_open()
                    self._delivery.apply(machine.abort(transaction, cause))
                    self._link.wake()
            self._ended(transaction, timeout_ms)

    def _outcome(self, transaction: int) -> Ended | None:
        ended = self._delivery.last_ended
        if ended is not None and ended.transaction == transaction:
            return ended
        begun = self._begun.get(transaction)
        return None if begun is None else begun.ended

    def _keep_outcome(self, ended: Ended | None) -> None:
        """Let the handle of the last transaction know how it ended: the next one begins."""
        if ended is not None and (begun := self._begun.get(ended.transaction)) is not None:
            begun.ended = ended

    # Of these, all but _finish and _machine are called with the lock held.

    def _refuse_outside_of_transactions(self) -> None:
        if self._transactions is not None:
            raise RuntimeError("a producer with a transactional_id sends in transactions alone")

    def _machine(self) -> TransactionMachine:
        if self._transactions is None:
            raise RuntimeError("the producer has no transactional_id")
        return self._transactions

    def _await_the_last(self, machine: TransactionMachine, timeout_ms: float | None) -> None:
        """Wait for the end of a transaction that takes no records any more."""
        self._wait(
            lambda: machine.transaction is None or machine.open_transaction is not None,
            timeout_ms,
            "the end of the last transaction",
        )

    def _follow_brokers(self, machine: TransactionMachine) -> None:
        """Use what the brokers offer by now: they may have been upgraded, or downgraded."""
        if machine.transaction is None and machine.versions != self._latest.versions:
            self._delivery.apply(machine.upgrade(self._latest.versions))
            self._link.wake()

    def _make_ready(self, transaction: int | None) -> None:
        """Wait until a record may be sent, or raise why none may be."""
        self._check(transaction)
        if not self._delivery.has_room:
            self._make_room(transaction)

    def _check(self, transaction: int | None) -> None:
        """Raise why no record may be sent now, if so."""
        self._link.check()
        if self._delivery.accepts == transaction:
            return
        if self._closed:
            raise KafkaRebalanceError("the producer is closed")
        if transaction is None:
            raise RuntimeError("a transaction is open: send by its handle")
        raise self._over(transaction)

    def _over(self, transaction: int) -> TransactionAbortedError:
        """The error for a call on a transaction that has ended, or is about to be aborted."""
        cause = self._doom(transaction)
        if not cause and (ended := self._outcome(transaction)) is not None:
            cause = ended.cause
        return TransactionAbortedError(cause or f"transaction {transaction} has ended", {})

    def _doom(self, transaction: int) -> str:
        """Why a transaction is about to be aborted; empty if it is not."""
        machine = self._machine()
        return machine.doom if machine.transaction == transaction else ""

    def _opened(self, topic: str, transaction: int | None, at_least: int = 1) -> OpenBatches:
        """The open batches of a topic, as soon as metadata says that it has so many partitions."""
        if not isinstance(topic, str):
            raise TypeError(f"topic {topic!r}; allowed: a string")
        batches = self._delivery.open_topic(topic)
        if batches is not None and batches.partitions >= at_least:
            return batches
        self._link.wake()

        def is_known() -> bool:
            self._check(transaction)
            error = self._delivery.topics.topic(topic).error
            if error in (Errors.TOPIC_AUTHORIZATION_FAILED, Errors.INVALID_TOPIC_EXCEPTION):
                raise _topic_error(topic, error)
            found = self._delivery.open_topic(topic)
            if found is not None and found.partitions < at_least:
                self._delivery.topics.stale = True
                return False
            return found is not None

        try:
            self._wait(is_known, None, f"metadata of topic {topic}")
        except BaseException:
            if topic not in self._delivery.open:
                self._delivery.topics.leave(topic)
            raise
        found = self._delivery.open_topic(topic)
        assert found is not None
        return found

    def _wait_for_rows(self, transaction: int | None, batches: OpenBatches) -> None:
        """Wait while rows are encoded: earlier ones of this thread may be among them."""
        while batches.encodes:
            self._wait(lambda: not batches.encodes, None, "another thread's rows")
            self._make_ready(transaction)

    def _make_room(self, transaction: int | None) -> None:
        with self._link.whole():
            self._delivery.close_open()
            self._link.wake()

        def has_room() -> bool:
            self._check(transaction)
            return self._delivery.has_room

        self._wait_for_leaders(has_room, None, "room in buffer_memory")

    def _initialized(self, machine: TransactionMachine, timeout_ms: float | None) -> None:
        self._wait(
            lambda: machine.standing is not Standing.READY or machine.identity.producer_id >= 0,
            timeout_ms,
            f"a producer id for {machine.transactional_id}",
        )
        if machine.standing is Standing.READY:
            return
        if machine.error == Errors.INVALID_TRANSACTION_TIMEOUT:
            raise OptionError(
                "transaction_timeout_ms",
                self._settings.transaction_timeout_ms,
                "at most the brokers' transaction.max.timeout.ms",
            )
        if machine.error == Errors.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise AuthorizationError(
                f"{machine.cause}; it needs WRITE on transactional id {machine.transactional_id}"
            )
        raise KafkaRebalanceError(f"transactional id {machine.transactional_id}: {machine.cause}")

    def _ended(self, transaction: int, timeout_ms: float | None) -> Ended:
        if self._machine().transaction != transaction and self._outcome(transaction) is None:
            raise self._over(transaction)
        self._wait_for_leaders(
            lambda: self._outcome(transaction) is not None,
            timeout_ms,
            f"the end of transaction {transaction}",
        )
        ended = self._outcome(transaction)
        assert ended is not None
        return ended

    def _wait(self, done: Callable[[], bool], timeout_ms: float | None, what: str) -> None:
        timeout_s = self._settings.max_block_s if timeout_ms is None else timeout_ms / 1000
        self._link.wait(done, timeout_s, what)

    def _wait_for_leaders(
        self, done: Callable[[], bool], timeout_ms: float | None, what: str
    ) -> None:
        """As ``_wait``; a time-out says which records wait, and for what."""
        try:
            self._wait(done, timeout_ms, what)
        except kafka_errors.KafkaTimeoutError as error:
            if waits := self._delivery.what_waits():
                raise kafka_errors.KafkaTimeoutError(f"{error.args[0]}; {waits}") from None
            raise

    def _finish(self, timeout_ms: float | None) -> None:
        if self._transactions is None:
            failures = self._deliver_open(timeout_ms)
            if failures:
                raise failures[0]
            return
        with self._lock:
            handle = self._transactions.transaction
        if handle is None:
            return
        try:
            self._abort(handle, "the producer was closed", timeout_ms)
        except (RuntimeError, KafkaRebalanceError, kafka_errors.KafkaError) as error:
            log.warning(
                "transaction %d was not aborted when its producer closed: %s", handle, error
            )


class Transaction:
    """One transaction of a `Producer`: its records and offsets become visible together, or never.

    Every call after its end raises TransactionAbortedError, whoever makes it. If it was aborted,
    the error has the cause, from the moment on at which it cannot be committed any more.

    Attributes
    ----------
    handle : int
        Its number.
    at_once : dict of str to Append
        By topic, as soon as known: takes ``handle`` and the record, or returns False; `send` then
        says why, or waits.
    ended : Ended or None
        How it ended, once the next one has begun.
    """

    def __init__(self, producer: Producer, handle: int) -> None:
        self._producer = producer
        self.handle = handle
        self.at_once = producer._at_once
        self.ended: Ended | None = None
        self._is_told = False  # whether a call has reported the outcome

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Headers = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        *,
        future: bool = False,
    ) -> Future[RecordPosition] | None:
        """Send a record: see `Producer.send`."""
        at_once = self.at_once.get(topic)
        if (
            at_once is not None
            and not future
            and at_once(self.handle, key, value, headers, partition, timestamp_ms)
        ):
            return None
        return self._producer._send(
            self.handle, topic, value, key, headers, partition, timestamp_ms, future
        )

    def send_batch(
        self, topic: str, data: pa.RecordBatch | pa.Table, *, timestamp_ms: int | None = None
    ) -> None:
        """Send rows: see `Producer.send_batch`."""
        self._producer._send_batch(self.handle, topic, data, timestamp_ms)

    def send_encoded(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Send encoded batches: see `Producer.send_encoded`."""
        self._producer._send_encoded(self.handle, topic, batches)

    def send_offsets(
        self,
        group: GroupMetadata | ConsumerGroupMetadata,
        offsets: Mapping[TopicPartition, Offset | OffsetAndMetadata],
        before: Mapping[TopicPartition, Offset | OffsetAndMetadata] | None = None,
        member: MemberNow | None = None,
    ) -> None:
        """Add offsets of a member of a group, which checks its generation (KIP-447).

        Parameters
        ----------
        group : kafka.structs.ConsumerGroupMetadata or GroupMetadata
            The member: a consumer's ``group_metadata()``.
        offsets : mapping of TopicPartition to kafka.structs.OffsetAndMetadata or Offset
            The next ones to read.
        before : mapping of TopicPartition to kafka.structs.OffsetAndMetadata or Offset, optional
            The group's offsets before. They show whether the transaction was committed, if its
            commit is in doubt and its records cannot be read.
        member : callable, optional
            Returns the current GroupMetadata, on any thread, without waiting; None if the member
            must not commit them any more. A refusal during a rebalance is then repeated with the
            next generation.

        Raises
        ------
        ValueError
            The generation is negative: the group would not check it.
        TransactionAbortedError
            The transaction has ended, or cannot be committed any more.
        """
        self._producer._add_offsets(self.handle, group, offsets, before, member)

    def announce(self, partitions: Iterable[TopicPartition], group_id: str | None = None) -> None:
        """Announce partitions and a group to the coordinator: see `TransactionMachine.announce`."""
        self._producer._announce(self.handle, partitions, group_id)

    def flush(self, timeout_ms: float | None = None) -> None:
        """Wait until all records and offsets so far are acknowledged.

        Raises
        ------
        TransactionAbortedError
            The transaction cannot be committed any more.
        kafka.errors.KafkaTimeoutError
            Not within ``timeout_ms``; by default, ``delivery_timeout_ms`` and ``max_block_ms``.
        """
        self._producer._settle(self.handle, timeout_ms)

    def commit(self, timeout_ms: float | None = None) -> None:
        """Commit, and wait for the outcome.

        Raises
        ------
        TransactionAbortedError
            It was not committed, and its records will never be read.
        TransactionInDoubtError
            It cannot be found out whether it was committed.
        kafka.errors.KafkaTimeoutError
            The outcome is not known after ``timeout_ms`` (``max_block_ms`` by default); call again
            to wait for longer.
        """
        self._check_untold()
        try:
            self._producer._commit(self.handle, timeout_ms)
        finally:
            self._is_told = self._has_ended

    def abort(
        self, cause: str = "the application aborted it", timeout_ms: float | None = None
    ) -> None:
        """Abort, and wait until the coordinator has aborted it.

        Raises
        ------
        RuntimeError
            Its commit is under way.
        kafka.errors.KafkaTimeoutError
            It is not aborted after ``timeout_ms`` (``max_block_ms`` by default); it will be, in
            the background.
        """
        self._check_untold()
        try:
            self._producer._abort(self.handle, cause, timeout_ms)
        finally:
            self._is_told = self._has_ended

    @property
    def _has_ended(self) -> bool:
        return self._producer._machine().transaction != self.handle

    def _check_untold(self) -> None:
        if self._is_told:
            raise self._producer._over(self.handle)

    @property
    def outcome(self) -> Outcome | None:
        """Its outcome; None while it is not known."""
        ended = self._producer._outcome(self.handle)
        return None if ended is None else ended.outcome

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.commit()
        elif not self._has_ended:
            with contextlib.suppress(RuntimeError, KafkaRebalanceError):  # under way, or ended
                self.abort(f"{type(error).__name__}: {error}")


def _offsets(
    given: Mapping[TopicPartition, Offset | OffsetAndMetadata],
) -> dict[TopicPartition, Offset]:
    """Kafka-python's offsets have no metadata or leader epoch where Kafka has "" and -1."""
    return {
        partition: each
        if isinstance(each, Offset)
        else Offset(each[0], each[1] or "", -1 if each[2] is None else each[2])
        for partition, each in given.items()
    }


def _checked_partition(topic: str, partition: Any, partitions: int) -> int:
    """The number of a partition that the topic has, as a plain int; also of NumPy's integers.

    Not of floats, which pandas makes of integers, nor of booleans.
    """
    if isinstance(partition, bool) or not hasattr(partition, "__index__"):
        raise TypeError(f"partition {partition!r} of {topic}: an integer")
    number = index(partition)
    if not 0 <= number < partitions:
        raise ValueError(f"{topic} has no partition {number}; it has {partitions}")
    return number


def _topic_error(topic: str, code: int) -> KafkaRebalanceError:
    if code == Errors.TOPIC_AUTHORIZATION_FAILED:
        return AuthorizationError(f"topic {topic}: it needs WRITE on the topic")
    return KafkaRebalanceError(f"topic {topic!r}: the brokers refuse that name")
