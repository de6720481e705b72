"""ProducerGroup: producers share the partitions of a source, and restart where they were (KIP-509).

::

    with ProducerGroup("db1", 3, bootstrap_servers=...) as group:
        group.subscribe()
        while True:
            group.poll(timeout_ms=100)
            for table, restart_point in group.restart_points.items():
                for row in read(table, after=restart_point):
                    group.send(TOPICS[table], row.value, row.key, source_partition=table,
                               restart_point=row.change)
                group.commit_transaction()

Or, if several threads send in one transaction, by its handle::

    with group.transaction() as transaction:
        transaction.send(topic, value, source_partition=table, restart_point=change)

``ownership.py`` decides what is owned; ``transactions.py`` has the transactions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalStateError, KafkaError

from ..errors import (
    KafkaRebalanceError,
    OptionError,
    PartitionsLostError,
    TransactionAbortedError,
)
from ..transport.forks import leave_to_parent, refuse
from .members.listener import tell
from .members.membership import BeingCalled, ProducerMembership
from .members.ownership import ProducerEvents
from .options import ProducerOptions
from .status import GroupStatus
from .transactions import CLOSED, NOT_AT_ONCE, Handle, Transactions

if TYPE_CHECKING:
    from concurrent.futures import Future

    import pyarrow as pa
    from typing_extensions import Self, Unpack

    from ..produce.producer import RecordPosition
    from ..settings.typed_settings import ProducerGroupSettings

log = logging.getLogger(__name__)

#: How often a waiting call checks for failures, and for a commit that is due.
_SLICE_S = 0.05

#: A new member without a source partition after this many heartbeat intervals is on standby.
_STANDBY_AFTER_INTERVALS = 3

#: Part of the time to close that is kept for leaving the group if brokers do not answer.
_TO_LEAVE = 0.25


class ProducerGroup(GroupStatus):
    """A member of a producer group; a context manager that does not subscribe by itself.

    Use it from one thread at a time. What is owned changes only in ``poll`` and ``alive``, and at
    the end of a transaction. But a loss can happen at any time, and dooms the transaction if that
    has records of what is lost.

    Parameters
    ----------
    group_id : str
        The group of producers, which is a consumer group to the brokers.
    source_partition_count : int
        How many partitions the source has, numbered from 0; the same for all members.
    session_timeout_ms : int, default 30,000
        A member that is dead for this long is out of the group. So is one that is silent for this
        long although its threads live: it does not send, commit, poll or call ``alive``.
    group_protocol : {"classic", "consumer", "auto"}
        As for ``DeferredRevokeConsumer``. In the consumer protocol the broker decides when a member
        is dead; silence is still up to ``session_timeout_ms``.
    restart_topic : str, optional
        Default ``__producer_group.<group_id>``. Created if it is missing: compacted, with one
        partition for each source partition.
    commit_interval_ms, commit_records : int, optional
        Commit automatically this long after a transaction's first record, or after this many
        records. The commit happens in ``send``, ``send_batch``, ``poll`` or ``alive``, once the
        last record of each source partition came with its restart point.
    transaction_timeout_ms : int, optional
        The broker aborts an open transaction after this long. Default 60,000, or twice the session
        timeout if that is longer.
    revoke_timeout_ms : int, optional
        How long a revoke waits for the open transaction. After that the source partition is lost
        and the transaction aborted. Default: the transaction's timeout.
    **config
        kafka-python's producer and consumer settings.

    Raises
    ------
    OptionError
        An option is missing or not allowed; raised before any network access.
    """

    def __init__(
        self,
        group_id: str,
        source_partition_count: int,
        **config: Unpack[ProducerGroupSettings],
    ) -> None:
        self._options = ProducerOptions.checked(group_id, source_partition_count, **config)
        self._transactions = transactions = Transactions(self._options)
        self._membership = ProducerMembership(
            self._options, transactions.abort_doomed, self._log_progress
        )
        transactions.membership = self._membership
        self._serializes = bool(self._options.key_serializer or self._options.value_serializer)
        self._sends_quickly = not self._serializes
        self._listener: Any = None
        self._untold = ProducerEvents()
        self._started = False
        self._closed = False
        self._woken = threading.Event()
        leave_to_parent(self, ProducerGroup._leave_to_parent)

    # -- KIP-509 ----------------------------------------------------------------------------------

    def subscribe(
        self, listener: Any = None, timeout_ms: float | None = None
    ) -> dict[int, str | None]:
        """Join the group and wait for source partitions.

        Returns once some are assigned and their restart points are read; or, on standby, three
        heartbeat intervals after the join. Source partitions whose owner is in a transaction come
        later, in polls.

        Parameters
        ----------
        listener : ProducerRebalanceListener, optional
            Called for all changes, including those of this call, on the calling thread.
        timeout_ms : float, optional
            Wait at most this long; by default only the conditions above end the wait.

        Returns
        -------
        dict of int to str or None
            The source partitions and their restart points; None if nothing was ever committed.
            Empty on standby.

        Raises
        ------
        OptionError
            The topic exists in another shape; says how to fix it.
        KafkaRebalanceError, KafkaError
            The brokers refused a request.
        """
        if self._started:
            raise IllegalStateError("already subscribed; make a new producer group")
        self._started = True
        self._listener = listener
        self._membership.start()
        self._transactions.start()
        deadline = None if timeout_ms is None else time.monotonic() + timeout_ms / 1000
        standby_s = _STANDBY_AFTER_INTERVALS * self._options.heartbeat_interval_ms / 1000
        joined_at: float | None = None
        with self._membership.being_called:
            while deadline is None or time.monotonic() < deadline:
                self._membership.raise_failure()
                if joined_at is None and self._membership.has_joined:
                    joined_at = time.monotonic()
                with self._membership.changed:
                    ownership = self._membership.ownership
                    if ownership.ready() and not ownership.reading():
                        break
                    overdue = joined_at is not None and time.monotonic() > joined_at + standby_s
                    if overdue and not ownership.reading():
                        break
                    self._membership.changed.wait(_SLICE_S)
        self._turn(tells=True)
        self._untold = ProducerEvents()
        return self.restart_points

    def poll(self, timeout_ms: float = 0) -> ProducerEvents:
        """Take part in the rebalance and return what has changed since the last poll.

        Gives a sign of life. Commits if a commit is due. Waits up to ``timeout_ms`` for a change.

        Raises
        ------
        TransactionAbortedError
            The open transaction was aborted.
        KafkaRebalanceError
            The error that ended the membership.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        with self._called():
            while True:
                self._transactions.raise_aborted()
                self._commit_if_due()
                self._turn(tells=True)
                left_s = deadline - time.monotonic()
                if self._untold or left_s <= 0 or self._woken.is_set() or self._closed:
                    self._woken.clear()
                    told, self._untold = self._untold, ProducerEvents()
                    return told
                self._membership.raise_failure()
                with self._membership.changed:
                    if not self._membership.ownership.has_news():
                        self._membership.changed.wait(min(left_s, _SLICE_S))

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        future: bool = False,
    ) -> Future[RecordPosition] | None:
        """Send a record in the open transaction; the first record starts it.

        Parameters
        ----------
        topic, value, key, headers, partition, timestamp_ms
            As for ``KafkaProducer.send``.
        source_partition : int, optional
            Where the record was read from; by default it is a record of every owned one.
        restart_point : str, optional
            Where to continue reading that source partition once everything up to this record is
            committed. For automatic commits, and ``commit_transaction`` without arguments.
        future : bool
            Whether to return a future of the record's position in the log. The commit waits for
            all records, and raises what could not be delivered.

        Returns
        -------
        concurrent.futures.Future or None
            Of a ``RecordPosition``, if ``future``. read_committed consumers see the record only
            after the commit.

        Raises
        ------
        PartitionsLostError
            The source partition is not owned (any more); the transaction continues without it.
        TransactionAbortedError
            The transaction was aborted: go back to the restart points.
        """
        if (
            not future
            and self._sends_quickly
            and self._transactions.send_quickly(
                None,
                source_partition,
                restart_point,
                topic,
                value,
                key,
                headers,
                partition,
                timestamp_ms,
            )
        ):
            membership = self._membership
            membership.being_called.signs_of_life += 1
            boundaries = self._transactions.boundaries
            if boundaries.automatic and (
                membership.ownership.asked_back_now or boundaries.may_be_due(time.monotonic)
            ):
                self._commit_if_due()
            return None
        return self._send_in(
            None,
            topic,
            value,
            key,
            source_partition,
            restart_point,
            headers,
            partition,
            timestamp_ms,
            future,
        )

    def send_batch(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send the rows of Arrow data in the open transaction; the first record starts it.

        Serializers do not apply.

        Parameters
        ----------
        topic : str
        data : pyarrow.RecordBatch or pyarrow.Table
            Columns ``value``, and as far as given ``key``, ``headers``, ``timestamp``,
            ``partition``: see `produce.encoder.arrow_rows`.
        source_partition, restart_point : int, str, optional
            As for ``send``; ``restart_point`` is where to continue after the last row.
        timestamp_ms : int, optional
            Of rows without a timestamp; by default the time of the call. Milliseconds.

        Raises
        ------
        TypeError, ValueError, RecordTooLargeError
            A column or row is not allowed. The transaction is aborted, since it may have a part of
            the rows; the next call raises TransactionAbortedError.
        PartitionsLostError, TransactionAbortedError
            As ``send``.
        """
        self._send_batch_in(None, topic, data, source_partition, restart_point, timestamp_ms)

    def transaction(self) -> GroupTransaction:
        """Start a transaction with a handle, for several threads that send in it.

        As a context manager it is committed at the end, with the restart points given to its
        ``send``; an exception aborts it. Until it has ended, calls without a handle that send,
        commit or abort raise IllegalStateError. It is never committed automatically.

        Raises
        ------
        IllegalStateError
            Another transaction is open.
        TransactionAbortedError
            As ``send``, once.
        """
        with self._called():
            return GroupTransaction(self, self._transactions.begin())

    def commit_transaction(self, restart_points: str | Mapping[int, str] | None = None) -> None:
        """Commit the records sent since the last commit and the restart points, as one.

        Both are committed, or neither is, even if the process was suspended and another member has
        taken over in the meantime.

        Parameters
        ----------
        restart_points : str or mapping of int to str, optional
            One for each source partition, at most 1 MiB each. A single string is for all source
            partitions with records, or for all that are owned if there are no records. By default,
            the restart points given to ``send``.

        Raises
        ------
        OptionError
            A source partition has records and no restart point; the transaction stays open.
        PartitionsLostError
            A restart point is for a source partition that is not owned; the transaction stays open.
        TransactionAbortedError
            Nothing was committed; or, if the text says so, it is not known whether it was. Continue
            at its ``restart_points``.
        """
        self._commit_in(None, restart_points)

    def abort_transaction(self) -> dict[int, str | None]:
        """Abort the records sent since the last commit; return the restart points."""
        return self._abort_in(None)

    def alive(self) -> None:
        """Give a sign of life when the source is quiet; commits if a commit is due.

        Raises
        ------
        TransactionAbortedError, KafkaRebalanceError
            As ``poll``.
        """
        with self._called():
            self._transactions.raise_aborted()
            self._commit_if_due()
            self._turn()

    def grow(self, source_partition_count: int) -> None:
        """Say that the source has more partitions now; call it on every member, in any order.

        A member that is assigned partitions beyond its number fails after the session timeout.

        Raises
        ------
        OptionError
            The number is smaller than before.
        """
        with self._called(growing=True):
            before = self._membership.ownership.source_partition_count
            if source_partition_count < before:
                raise OptionError(
                    "source_partition_count", source_partition_count, f"{before} or more"
                )
            self._membership.grow(source_partition_count)

    # -- the end ----------------------------------------------------------------------------------

    def wakeup(self) -> None:
        """End the poll under way early, or else the next one; from any thread."""
        self._woken.set()
        with self._membership.changed:
            self._membership.changed.notify_all()

    def close(self, timeout_ms: float = 10_000) -> None:
        """Leave the group, so that others take over at once; idempotent.

        Commits the open transaction if commits are automatic and it is at a boundary, else aborts
        it. In a forked child of the process that made the group this does nothing.

        Parameters
        ----------
        timeout_ms : float
            For everything. If brokers do not answer by then, they decide the open transaction on
            their own.
        """
        if self._closed:
            return
        self._closed = True
        self._sends_quickly = False
        timeout_s = timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        try:
            # Leaving the group needs a broker as well.
            self._transactions.close(timeout_s * (1 - _TO_LEAVE))
        finally:
            self._membership.stop(max(0.1, deadline - time.monotonic()))
            if (observer := self._transactions.observer) is not None:
                observer.closed()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- in a transaction, of a handle or (None) of the one user -----------------------------------

    def _send_in(
        self,
        handle: Handle | None,
        topic: str,
        value: Any,
        key: Any,
        source_partition: int | None,
        restart_point: str | None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        future: bool = False,
    ) -> Future[RecordPosition] | None:
        if self._closed or not self._started:
            self._refuse(handle)
        with self._membership.being_called:  # metadata or buffer space may take long
            if self._serializes:
                key, value = self._options.serialized(topic, headers, key, value)
            delivery: Future[RecordPosition] | None = self._transactions.send(
                handle,
                source_partition,
                restart_point,
                topic,
                value,
                key,
                headers,
                partition,
                timestamp_ms,
                future,
            )
        if self._transactions.boundaries.automatic:
            self._commit_if_due()
        return delivery

    def _send_at_once(
        self,
        handle: Handle | None,
        made: float,
        topic: str,
        value: Any,
        key: Any,
        source_partition: int | None,
        restart_point: str | None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        future: bool = False,
    ) -> Any:
        """Send as ``_send_in``; NOT_AT_ONCE if that waits or ends a transaction. Any thread."""
        if not self._running:
            return NOT_AT_ONCE
        self._membership.sign_of_life()
        if self._serializes:
            key, value = self._options.serialized(topic, headers, key, value)
        record = (topic, value, key, headers, partition, timestamp_ms)
        return self._transactions.send_at_once(
            handle, made, source_partition, restart_point, *record, future=future
        )

    def _send_batch_in(
        self,
        handle: Handle | None,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        source_partition: int | None,
        restart_point: str | None,
        timestamp_ms: int | None,
    ) -> None:
        if self._closed or not self._started:
            self._refuse(handle)
        with self._membership.being_called:
            self._transactions.send_batch(
                handle, source_partition, restart_point, topic, data, timestamp_ms
            )
        self._commit_if_due()

    def _commit_in(
        self, handle: Handle | None, restart_points: str | Mapping[int, str] | None
    ) -> None:
        with self._called(handle):
            self._transactions.commit(handle, restart_points)
            self._turn()

    def _abort_in(self, handle: Handle | None) -> dict[int, str | None]:
        with self._called(handle):
            self._transactions.abort(handle)
            self._turn()
            return self.restart_points

    def _end_by(self, timeout_ms: float) -> None:
        """Have the calls under way wait for brokers this long at most; any thread.

        Call ``close`` next: no transaction can be started any more.
        """
        self._transactions.end_by(time.monotonic() + timeout_ms / 1000)
        self.wakeup()

    # -- within calls -----------------------------------------------------------------------------

    def _leave_to_parent(self) -> None:
        """In a forked child: the group is closed there, without having closed anything."""
        self._closed = True
        self._sends_quickly = False
        setattr(self, "_refuse", refuse)  # noqa: B010 - a method, which mypy guards

    @property
    def _running(self) -> bool:
        return self._started and not self._closed

    def _refuse(self, handle: Handle | None = None) -> None:
        if handle is not None:
            raise TransactionAbortedError(handle.ended or CLOSED, self.restart_points)
        raise IllegalStateError(CLOSED if self._closed else "subscribe() comes first")

    def _called(self, handle: Handle | None = None, *, growing: bool = False) -> BeingCalled:
        """Begin a call that waits; raises the error that ended the membership.

        A call on a handle whose transaction has ended raises that before.
        """
        if not self._running or (handle is not None and handle.ended and not handle.is_aborting):
            self._refuse(handle)
        self._membership.raise_failure(growing=growing)
        return self._membership.being_called

    def _commit_if_due(self) -> None:
        boundaries = self._transactions.boundaries
        if not boundaries.automatic or not boundaries.last_points:
            return
        hurry = bool(self._membership.ownership.asked_back_now)
        due = boundaries.due(time.monotonic(), hurry=hurry)
        if due and self._transactions.may_commit_by_itself():
            self._transactions.commit(None, None)
            self._turn()

    def _turn(self, *, tells: bool = False) -> None:
        """Take the ownership changes; what is given up goes back to the group at once."""
        membership = self._membership
        with membership.changed:
            events = membership.ownership.turn(tells=tells or self._listener is not None)
        if not events:
            return
        self._untold = self._untold.then(events)
        if events.revoked:
            membership.wake()
        log.info("producer group %s: %s", self._options.group_id, events)
        if self._listener is not None:
            tell(self._listener, events)


class GroupTransaction:
    """A transaction of a ``ProducerGroup``, as a handle that several threads may share.

    Each call on it raises TransactionAbortedError once it has ended, so no thread sends behind
    records that were aborted. Use it as a context manager: see ``ProducerGroup.transaction``.
    """

    def __init__(self, group: ProducerGroup, handle: Handle) -> None:
        self._group = group
        self._handle = handle
        self._is_done = False  # by a call on it

    @property
    def has_ended(self) -> bool:
        """Whether it is committed or aborted."""
        return self._handle.ended is not None

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        headers: list[tuple[str, bytes]] | None = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        future: bool = False,
    ) -> Future[RecordPosition] | None:
        """Send a record in this transaction; as ``ProducerGroup.send``."""
        group = self._group
        if (
            not future
            and group._sends_quickly
            and group._transactions.send_quickly(
                self._handle,
                source_partition,
                restart_point,
                topic,
                value,
                key,
                headers,
                partition,
                timestamp_ms,
            )
        ):
            group._membership.sign_of_life()
            return None
        return self._group._send_in(
            self._handle,
            topic,
            value,
            key,
            source_partition,
            restart_point,
            headers,
            partition,
            timestamp_ms,
            future,
        )

    def send_batch(
        self,
        topic: str,
        data: pa.RecordBatch | pa.Table,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        timestamp_ms: int | None = None,
    ) -> None:
        """Send rows in this transaction; as ``ProducerGroup.send_batch``."""
        self._group._send_batch_in(
            self._handle, topic, data, source_partition, restart_point, timestamp_ms
        )

    def commit(self, restart_points: str | Mapping[int, str] | None = None) -> None:
        """Commit, and end; as ``ProducerGroup.commit_transaction``."""
        self._group._commit_in(self._handle, restart_points)
        self._is_done = True

    def abort(self) -> dict[int, str | None]:
        """Abort, and end; return the restart points."""
        points = self._group._abort_in(self._handle)
        self._is_done = True
        return points

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort_quietly()
        elif not self._is_done:
            try:
                self.commit()
            except (OptionError, PartitionsLostError):
                self._abort_quietly()
                raise

    def _abort_quietly(self) -> None:
        """Abort if it has not ended; another error is on its way."""
        if not self.has_ended or self._handle.is_aborting:
            with suppress(KafkaRebalanceError, KafkaError):
                self.abort()
