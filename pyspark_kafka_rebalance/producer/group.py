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

What is owned is decided in ``ownership.py``; the transactions are in ``transactions.py``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalStateError

from ..errors import OptionError
from .listener import tell
from .membership import BeingCalled, ProducerMembership
from .options import ProducerOptions
from .ownership import ProducerEvents
from .status import GroupStatus
from .transactions import Transactions

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

#: How long a wait looks away: from failures, and from a boundary that is due.
_SLICE_S = 0.05

#: Without a source partition after so many heartbeat intervals a newcomer is on standby.
_STANDBY_AFTER_INTERVALS = 3

#: Of the time to close: what remains to leave the group when brokers do not answer.
_TO_LEAVE = 0.25


class ProducerGroup(GroupStatus):
    """A member of a producer group; a context manager that subscribes nothing by itself.

    One thread at a time uses it. Whatever is owned changes in ``poll``, ``alive``, and at the end
    of a transaction, and nowhere else; but a loss may come at any time, and dooms the transaction
    that has records of what is lost.

    Parameters
    ----------
    group_id : str
        The group of producers, which is a consumer group to the brokers.
    source_partition_count : int
        How many partitions the source has, numbered from 0; the same for all members.
    session_timeout_ms : int, default 30,000
        A member is out of the group that is dead for so long; and one that is silent for so long,
        although its threads live: one that neither sends, commits, polls nor calls ``alive``.
    group_protocol : {"classic", "consumer", "auto"}
        As for ``DeferredRevokeConsumer``. In the consumer protocol the broker says when a member is
        dead; the silence is ours.
    restart_topic : str, optional
        Default ``__producer_group.<group_id>``. Made if it is missing: compacted, one partition for
        each of the source.
    commit_interval_ms, commit_records : int, optional
        Commit so long after the first record of a transaction, or after so many: in ``send``,
        ``poll`` and ``alive``, where the last record of each source partition came with its
        restart point.
    transaction_timeout_ms : int, optional
        After this the broker aborts an open transaction. Default 60,000, or twice the session
        timeout if that is longer.
    revoke_timeout_ms : int, optional
        How long a revoke waits for the open transaction; then the source partition is lost, and the
        transaction aborted. Default: the transaction's timeout.
    **config
        kafka-python's settings, of producers and consumers.

    Raises
    ------
    OptionError
        An option that is missing or not allowed; before any network is touched.
    """

    def __init__(self, group_id: str, source_partition_count: int, **config: Any) -> None:
        self._options = ProducerOptions.checked(group_id, source_partition_count, **config)
        self._transactions = transactions = Transactions(self._options)
        self._membership = ProducerMembership(
            self._options, transactions.abort_doomed, self._log_progress
        )
        transactions.membership = self._membership
        self._serializes = bool(self._options.key_serializer or self._options.value_serializer)
        self._listener: Any = None
        self._untold = ProducerEvents()
        self._started = False
        self._closed = False
        self._woken = threading.Event()

    # -- KIP-509 ----------------------------------------------------------------------------------

    def subscribe(
        self, listener: Any = None, timeout_ms: float | None = None
    ) -> dict[int, str | None]:
        """Join the group, and wait for source partitions.

        Until when: some are assigned, with their restart points; or, on standby, three heartbeat
        intervals after the join. Those of members that are in a transaction come later, by polls.

        Parameters
        ----------
        listener : ProducerRebalanceListener, optional
            Told of all changes, those of this call included, on the thread that calls.
        timeout_ms : float, optional
            Wait for so long at most; default: until what is said above.

        Returns
        -------
        dict of int to str or None
            The source partitions and their restart points; None: nothing was ever committed. Empty
            on standby.

        Raises
        ------
        OptionError
            The topic is there in another shape; says how to mend it.
        KafkaRebalanceError, KafkaError
            What the brokers refuse.
        """
        if self._started:
            raise IllegalStateError("subscribed before; make a new one")
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
        """Take part in the rebalance, and say what has changed since the last poll.

        A sign of life. Commits if that is due. Waits for a change for ``timeout_ms``.

        Raises
        ------
        TransactionAbortedError
            The open transaction was aborted.
        KafkaRebalanceError
            What ended the membership.
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
    ) -> Any:
        """Send a record in the open transaction; the first one begins it.

        Parameters
        ----------
        topic, value, key, headers, partition, timestamp_ms
            As for ``KafkaProducer.send``.
        source_partition : int, optional
            What the record was read from; without it, it counts as one of each that is owned.
        restart_point : str, optional
            Where reading that source partition goes on once everything up to this record is
            committed. For automatic commits, and ``commit_transaction`` without arguments.

        Returns
        -------
        Future
            kafka-python's, of the delivery. Nobody reads the record before the commit.

        Raises
        ------
        PartitionsLostError
            The source partition is not owned (any more); the transaction goes on without it.
        TransactionAbortedError
            The transaction was aborted: go back to the restart points.
        """
        if self._closed or not self._started:
            self._refuse()
        with self._membership.being_called:  # metadata, or room for the record, may take long
            if self._serializes:
                key, value = self._options.serialized(topic, headers, key, value)
            future = self._transactions.send(
                source_partition, restart_point, topic, value, key, headers, partition, timestamp_ms
            )
        if self._transactions.boundaries.automatic:
            self._commit_if_due()
        return future

    def commit_transaction(self, restart_points: str | Mapping[int, str] | None = None) -> None:
        """Commit the records sent since the last commit, with where to go on, as one.

        Either both are there for good, or neither: not even what this process sends when it was
        stopped, and another member has taken over meanwhile.

        Parameters
        ----------
        restart_points : str or mapping of int to str, optional
            At most 1 MiB each: of each source partition; a single one is that of all that records
            were sent of, or, if there are none, of all that is owned. Without it: those given to
            ``send``.

        Raises
        ------
        OptionError
            A source partition has records and no restart point; the transaction stays open.
        PartitionsLostError
            A restart point is of a source partition that is not owned; the transaction stays open.
        TransactionAbortedError
            Nothing of it was committed, or, if its text says so, this was not known. Its
            ``restart_points`` say where to go on.
        """
        with self._called():
            self._transactions.commit(restart_points)
            self._turn()

    def abort_transaction(self) -> dict[int, str | None]:
        """Abort the records sent since the last commit; where to go on."""
        with self._called():
            self._transactions.abort()
            self._turn()
            return self.restart_points

    def alive(self) -> None:
        """A sign of life, when the source is quiet; commits if that is due.

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
        """The source has got more partitions; call it on every member, in any order.

        Members that are assigned more than they know of fail after the session timeout.

        Raises
        ------
        OptionError
            It is less than before.
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

        What is open is committed if commits are automatic and this is a boundary, else aborted.

        Parameters
        ----------
        timeout_ms : float
            For all of it; brokers that do not answer by then decide what is open by themselves.
        """
        if self._closed:
            return
        self._closed = True
        timeout_s = timeout_ms / 1000
        deadline = time.monotonic() + timeout_s
        try:
            # Leaving takes a broker as well.
            self._transactions.close(timeout_s * (1 - _TO_LEAVE))
        finally:
            self._membership.stop(max(0.1, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # -- within calls -----------------------------------------------------------------------------

    @property
    def _running(self) -> bool:
        return self._started and not self._closed

    def _refuse(self) -> None:
        raise IllegalStateError(
            "the producer group is closed" if self._closed else "subscribe() comes first"
        )

    def _called(self, *, growing: bool = False) -> BeingCalled:
        """A call that waits; raises what ended the membership."""
        if not self._running:
            self._refuse()
        self._membership.raise_failure(growing=growing)
        return self._membership.being_called

    def _commit_if_due(self) -> None:
        boundaries = self._transactions.boundaries
        if not boundaries.automatic or not boundaries.records:
            return
        hurry = bool(self._membership.ownership.asked_back_now)
        due = boundaries.due(time.monotonic(), hurry=hurry)
        if due and self._transactions.may_commit_by_itself():
            self._transactions.commit(None)
            self._turn()

    def _turn(self, *, tells: bool = False) -> None:
        """Take what there is to tell; what is given up goes back to the group at once."""
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
