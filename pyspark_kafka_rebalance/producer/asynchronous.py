"""AsyncProducerGroup: ProducerGroup for asyncio.

Calls that may wait run on a thread of its own, in the order in which they were made. A record of a
source partition that is already in the open transaction is sent on the event loop itself, which
takes some microseconds and never waits.

Invariants:
 1. The event loop never waits for a broker, nor for a lock that is held while somebody does.
 2. The events of a poll are returned once; those of a cancelled poll by the next poll.
 3. No record overtakes another: none is sent on the event loop while an earlier call waits for the
    thread. A poll does not hold up records; it ends early for the other calls.
 4. A call without a handle is made when its coroutine is: ``group.send(...)``. If it was made
    before a TransactionAbortedError was raised, it is refused.
 5. A TransactionAbortedError that reaches no caller, because the wait for it was cancelled, is
    raised again by the next call without a handle.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.errors import IllegalStateError

from ..errors import TransactionAbortedError
from .group import GroupTransaction, ProducerGroup
from .members.ownership import ProducerEvents
from .progress import ProducerProgress
from .transactions import CLOSED, NOT_AT_ONCE, NOW, Handle

if TYPE_CHECKING:
    import pyarrow as pa
    from typing_extensions import Self, Unpack

    from ..produce.producer import RecordPosition
    from ..settings.typed_settings import ProducerGroupSettings

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: Part of the time to close during which earlier calls may wait for brokers.
_FOR_CALLS = 0.5

#: Part of it that is left for the threads to end.
_FOR_THREADS = 0.05


class Delivery:
    """The delivery of a record; ``await`` it for its RecordPosition, if you need that.

    read_committed consumers see the record once its transaction is committed; the commit waits for
    all deliveries.
    """

    def __init__(self, future: Future[RecordPosition]) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether the broker has answered."""
        return self._future.done()

    def __await__(self) -> Generator[Any, None, RecordPosition]:
        return asyncio.shield(asyncio.wrap_future(self._future)).__await__()


class AsyncProducerGroup:
    """:class:`ProducerGroup` with ``await`` (KIP-509)::

        async with AsyncProducerGroup("db1", 3, bootstrap_servers=...) as group:
            await group.subscribe()
            async for table, row in changes(group.restart_points):
                await group.send("rows", row.value, row.key, source_partition=table)
                await group.commit_transaction({table: row.change})

    This form is for one task. Several tasks share the handle of a transaction::

        async with group.transaction() as transaction:
            await asyncio.gather(*(read(table, transaction) for table in tables))

    Records are sent in the order in which the calls start, even with ``gather`` and
    ``create_task``.

    Parameters
    ----------
    group_id, source_partition_count, **config
        As for :class:`ProducerGroup`. The listener is called on the group's thread, not on the
        event loop.
    """

    def __init__(
        self,
        group_id: str,
        source_partition_count: int,
        **config: Unpack[ProducerGroupSettings],
    ) -> None:
        self._group = ProducerGroup(group_id, source_partition_count, **config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-producer-group")
        self._polling: asyncio.Future[ProducerEvents] | None = None
        self._poll: Future[ProducerEvents]  # the same, on the thread
        self._poll_is_left = False  # whether somebody who waited for it was cancelled
        self._closing: asyncio.Future[None] | None = None
        #: Calls handed to the thread, and those it has done; without polls.
        self._left_to_thread = 0
        self._done_by_thread = 0

    def subscribe(
        self, listener: Any = None, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, dict[int, str | None]]:
        """Join the group and wait for source partitions; as ``ProducerGroup.subscribe``."""
        return self._in_turn(NOW, self._group.subscribe, listener, timeout_ms)

    async def poll(self, timeout_ms: float = 0) -> ProducerEvents:
        """Take part in the rebalance and return what has changed; as ``ProducerGroup.poll``."""
        while True:
            if self._closing is not None:
                self._refuse(None)
            if self._polling is None:
                self._polling, self._poll = self._submit(NOW, self._group.poll, timeout_ms)
                self._poll_is_left = False
            polling = self._polling
            try:
                await asyncio.wait([polling])
            except asyncio.CancelledError:
                self._group.wakeup()
                self._leave_poll()
                raise
            if self._polling is not polling:
                return ProducerEvents()  # another task has got the result
            self._polling = None
            error = None if polling.cancelled() else polling.exception()
            if not (self._poll_is_left and isinstance(error, TransactionAbortedError)):
                return polling.result()
            # The next call without a handle raises it; that may be another poll.

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        **record: Any,
    ) -> Coroutine[Any, Any, Delivery | None]:
        """Send a record in the open transaction; as ``ProducerGroup.send``.

        Returns once the record is on its way; with ``future=True``, a ``Delivery`` to await.
        """
        made = self._group._transactions.tellings
        return self._send(None, made, topic, value, key, source_partition, restart_point, record)

    def send_batch(
        self, topic: str, data: pa.RecordBatch | pa.Table, **rows: Any
    ) -> Coroutine[Any, Any, None]:
        """Send the rows of Arrow data in the open transaction; as ``ProducerGroup.send_batch``."""
        return self._in_turn(None, lambda: self._group.send_batch(topic, data, **rows))

    def transaction(self) -> AsyncGroupTransaction:
        """A transaction with a handle: ``async with`` starts it, and commits or aborts it."""
        return AsyncGroupTransaction(self)

    def commit_transaction(
        self, restart_points: str | Mapping[int, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Commit what was sent and the restart points; as ``ProducerGroup.commit_transaction``."""
        return self._in_turn(None, self._group.commit_transaction, restart_points)

    def abort_transaction(self) -> Coroutine[Any, Any, dict[int, str | None]]:
        """Abort what was sent since the last commit; return the restart points."""
        return self._in_turn(None, self._group.abort_transaction)

    def alive(self) -> Coroutine[Any, Any, None]:
        """Give a sign of life when the source is quiet; commits if a commit is due."""
        return self._in_turn(NOW, self._group.alive)

    def grow(self, source_partition_count: int) -> Coroutine[Any, Any, None]:
        """Say that the source has more partitions now; as ``ProducerGroup.grow``."""
        return self._in_turn(NOW, self._group.grow, source_partition_count)

    async def close(self, timeout_ms: float = 10_000) -> None:
        """Leave the group, so that others take over at once; idempotent.

        Calls under way may wait for brokers during half of the time. Only a ``subscribe`` or
        ``grow`` that has found no broker to connect to continues until its own timeout; the member
        leaves the group then.
        """
        timeout_s = timeout_ms / 1000
        if self._closing is None:
            self._group._end_by(timeout_ms * _FOR_CALLS)
            deadline = time.monotonic() + timeout_s * (1 - _FOR_THREADS)
            self._closing, _ = self._submit(NOW, self._close_by, deadline)
            self._thread.shutdown(wait=False)
        closing = self._closing
        done, _ = await asyncio.wait([closing], timeout=timeout_s)
        if not done:
            log.warning("producer group: not closed in time; an earlier call is still waiting")
            return
        closing.result()
        if self._polling is not None and not self._polling.cancelled():
            self._polling.exception()  # of a cancelled poll; retrieved, or asyncio would log it

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- at any time, without waiting -------------------------------------------------------------

    @property
    def restart_points(self) -> dict[int, str | None]:
        """The owned source partitions, with the restart points committed last."""
        return self._group.restart_points

    @property
    def to_be_revoked(self) -> frozenset[int]:
        """The owned source partitions that the group wants back after the open transaction."""
        return self._group.to_be_revoked

    @property
    def member_id(self) -> str:
        """The group's id for this member; empty before it has joined."""
        return self._group.member_id

    def progress(self) -> ProducerProgress:
        """Return what this member owns and how far it has got."""
        return self._group.progress()

    # -- within calls -----------------------------------------------------------------------------

    async def _send(
        self,
        handle: Handle | None,
        made: float,
        topic: str,
        value: Any,
        key: Any,
        source_partition: int | None,
        restart_point: str | None,
        record: dict[str, Any],
    ) -> Delivery | None:
        group = self._group
        arguments = (topic, value, key, source_partition, restart_point)
        if self._left_to_thread == self._done_by_thread:
            sent = group._send_at_once(handle, made, *arguments, **record)
            if sent is not NOT_AT_ONCE:
                return _delivery(sent)
        send = self._answer(handle, made, lambda: group._send_in(handle, *arguments, **record))
        return _delivery(await send)

    def _in_turn(
        self, made: float | None, function: Callable[..., Answer], *arguments: Any
    ) -> Coroutine[Any, Any, Answer]:
        """As ``_answer``, of a call without a handle; ``made``: None for one that is made now."""
        if made is None:
            made = self._group._transactions.tellings
        return self._answer(None, made, function, *arguments)

    def _refuse(self, handle: Handle | None) -> None:
        """Once ``close`` has begun."""
        if handle is not None:
            raise TransactionAbortedError(handle.ended or CLOSED, self.restart_points)
        raise IllegalStateError(CLOSED)

    def _leave_poll(self) -> None:
        if not self._poll_is_left:
            self._poll_is_left = True
            self._poll.add_done_callback(self._unheard)

    async def _answer(
        self,
        handle: Handle | None,
        made: float,
        function: Callable[..., Answer],
        *arguments: Any,
    ) -> Answer:
        """Run a call on the group's thread, after earlier calls; a poll ends early for it."""
        if self._closing is not None:
            self._refuse(handle)
        self._left_to_thread += 1
        answer, submitted = self._submit(made, self._counted, function, *arguments)
        if self._polling is not None:
            self._group.wakeup()
        try:
            # Shielded: a call that has started continues; a commit that is not awaited commits.
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            if handle is None:
                submitted.add_done_callback(self._unheard)
            raise

    def _unheard(self, submitted: Future[Any]) -> None:
        """This call is not awaited any more: the next call raises its TransactionAbortedError."""
        error = None if submitted.cancelled() else submitted.exception()
        if isinstance(error, TransactionAbortedError):
            self._group._transactions.tell_again(error.reason)

    def _counted(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        try:
            return function(*arguments)
        finally:
            self._done_by_thread += 1

    def _submit(
        self, made: float, function: Callable[..., Answer], *arguments: Any
    ) -> tuple[asyncio.Future[Answer], Future[Answer]]:
        submitted = self._thread.submit(self._run, made, function, *arguments)
        return asyncio.wrap_future(submitted), submitted

    def _run(self, made: float, function: Callable[..., Answer], *arguments: Any) -> Answer:
        self._group._transactions.made = made
        return function(*arguments)

    def _close_by(self, deadline: float) -> None:
        self._group.close(max(0.0, deadline - time.monotonic()) * 1000)


class AsyncGroupTransaction:
    """A transaction of an ``AsyncProducerGroup``, which its callers name.

    As ``GroupTransaction``, with ``await``: several tasks may send in it, and none of them behind a
    gap. ``async with`` begins and ends it, once. A call that is cancelled goes on, ``commit`` and
    the end of the block included: what it came to shows in the group's ``restart_points`` once the
    next transaction has begun.
    """

    def __init__(self, group: AsyncProducerGroup) -> None:
        self._async_group = group
        self._begun: GroupTransaction | None = None
        self._is_used = False
        self._is_committing = False  # or about to, after what was called before

    @property
    def _transaction(self) -> GroupTransaction:
        if self._begun is None:
            raise IllegalStateError("'async with' begins the transaction")
        return self._begun

    @property
    def has_ended(self) -> bool:
        """Whether it is committed or aborted."""
        return self._begun is not None and self._begun.has_ended

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        **record: Any,
    ) -> Coroutine[Any, Any, Delivery | None]:
        """Send a record in this transaction; as ``AsyncProducerGroup.send``."""
        return self._async_group._send(
            self._transaction._handle,
            NOW,
            topic,
            value,
            key,
            source_partition,
            restart_point,
            record,
        )

    def send_batch(
        self, topic: str, data: pa.RecordBatch | pa.Table, **rows: Any
    ) -> Coroutine[Any, Any, None]:
        """Send rows in this transaction; as ``ProducerGroup.send_batch``."""
        return self._in_turn(lambda: self._transaction.send_batch(topic, data, **rows))

    def commit(
        self, restart_points: str | Mapping[int, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Commit, and end; as ``ProducerGroup.commit_transaction``."""
        commit = self._transaction.commit
        self._is_committing = True
        return self._in_turn(commit, restart_points)

    def abort(self) -> Coroutine[Any, Any, dict[int, str | None]]:
        """Abort, and end; return where to go on."""
        return self._abort(self._transaction)

    async def __aenter__(self) -> Self:
        group = self._async_group
        if self._is_used:  # or those who have it would send in another transaction
            raise IllegalStateError("this transaction has begun already; ask for another one")
        self._is_used = True
        try:
            await group._in_turn(None, self._begin)
        except asyncio.CancelledError:
            # It may have begun, or be about to.
            if group._closing is None:
                group._thread.submit(self._end_quietly)
            raise
        return self

    def _begin(self) -> None:
        self._begun = self._async_group._group.transaction()

    def _end_quietly(self) -> None:
        if self._begun is not None:
            self._begun._abort_quietly()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._async_group._closing is None:
            if error is not None:
                self._break_off()
            await self._in_turn(self._transaction.__exit__, kind, error, traceback)
        elif error is None and not self._transaction._is_done:
            self._async_group._refuse(self._transaction._handle)

    async def _abort(self, transaction: GroupTransaction) -> dict[int, str | None]:
        self._break_off()
        return await self._in_turn(transaction.abort)

    def _break_off(self) -> None:
        """Have a call return now that waits for brokers on the thread, where an abort queues."""
        if not self._is_committing:
            self._async_group._group._transactions.interrupt(self._transaction._handle)

    def _in_turn(
        self, function: Callable[..., Answer], *arguments: Any
    ) -> Coroutine[Any, Any, Answer]:
        return self._async_group._answer(self._transaction._handle, NOW, function, *arguments)


def _delivery(future: Future[RecordPosition] | None) -> Delivery | None:
    return None if future is None else Delivery(future)
