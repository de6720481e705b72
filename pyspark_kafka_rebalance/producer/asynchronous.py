"""AsyncProducerGroup: ProducerGroup for asyncio.

It wraps a :class:`SharedProducerGroup`. Calls that may wait run on a thread of its own, in the
order in which they begin. A record of a source partition that is already in the open transaction is
sent on the event loop itself, which takes some microseconds and never waits.

Invariants:
 1. The event loop never waits for a broker, nor for a lock that is held while somebody does.
 2. The events of a poll are returned once; those of a cancelled poll by the next poll.
 3. No record overtakes another: none is sent on the event loop while an earlier call waits for the
    thread. A poll does not hold up records; it ends early for the other calls.
 4. A call belongs to the task that created its coroutine, ``group.send(...)``, whichever task
    awaits it: ``gather``, ``wait_for`` and ``create_task`` run it in a task that ends with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary, ref

from ..errors import TransactionAbortedError
from .aborts import NOW, Author, Call
from .ownership import ProducerEvents
from .progress import ProducerProgress
from .shared_group import SharedProducerGroup
from .transactions import NOT_AT_ONCE

if TYPE_CHECKING:
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

    Several tasks may send; they share one transaction. When it is aborted, each task that has sent
    in it gets one TransactionAbortedError, from its next call. It then goes back to the restart
    points of the source partitions that it sends. Nobody can move these restart points before that.
    Records are sent in the order in which the calls begin, even with ``gather`` and
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
        self._group = SharedProducerGroup(group_id, source_partition_count, **config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-producer-group")
        self._authors: WeakKeyDictionary[asyncio.Task[Any], Author] = WeakKeyDictionary()
        self._polling: asyncio.Future[ProducerEvents] | None = None
        self._poll_call: Call | None = None
        self._closing: asyncio.Future[None] | None = None
        #: Calls handed to the thread, and those it has done; without polls.
        self._left_to_thread = 0
        self._done_by_thread = 0

    def subscribe(
        self, listener: Any = None, timeout_ms: float | None = None
    ) -> Coroutine[Any, Any, dict[int, str | None]]:
        """Join the group and wait for source partitions; as ``ProducerGroup.subscribe``."""
        return self._in_turn(self._group.subscribe, listener, timeout_ms)

    def poll(self, timeout_ms: float = 0) -> Coroutine[Any, Any, ProducerEvents]:
        """Take part in the rebalance and return what has changed; as ``ProducerGroup.poll``."""
        return self._poll(_task(), timeout_ms)

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
        call = self._call(_task())
        return self._send(call, topic, value, key, source_partition, restart_point, record)

    def commit_transaction(
        self, restart_points: str | Mapping[int, str] | None = None
    ) -> Coroutine[Any, Any, None]:
        """Commit what was sent and the restart points; as ``ProducerGroup.commit_transaction``."""
        return self._in_turn(self._group.commit_transaction, restart_points)

    def abort_transaction(self) -> Coroutine[Any, Any, dict[int, str | None]]:
        """Abort what was sent since the last commit; return where to go on.

        Other tasks that have sent some of it are told by their next calls.
        """
        return self._in_turn(self._group.abort_transaction)

    def alive(self) -> Coroutine[Any, Any, None]:
        """Give a sign of life when the source is quiet; commits if a commit is due."""
        return self._in_turn(self._group.alive)

    def grow(self, source_partition_count: int) -> Coroutine[Any, Any, None]:
        """Say that the source has more partitions now; as ``ProducerGroup.grow``."""
        return self._in_turn(self._group.grow, source_partition_count)

    async def close(self, timeout_ms: float = 10_000) -> None:
        """Leave the group, so that others take over at once; idempotent.

        Calls under way may wait for brokers during half of the time. Only a ``subscribe`` or
        ``grow`` that has found no broker to connect to goes on until its own timeout; the group is
        left then.
        """
        timeout_s = timeout_ms / 1000
        if self._closing is None:
            self._group.end_by(timeout_ms * _FOR_CALLS)
            deadline = time.monotonic() + timeout_s * (1 - _FOR_THREADS)
            self._closing = self._submit(self._call(_task()), self._close_by, deadline)
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
        call: Call | None,
        topic: str,
        value: Any,
        key: Any,
        source_partition: int | None,
        restart_point: str | None,
        record: dict[str, Any],
    ) -> Delivery | None:
        call = call or self._call(asyncio.current_task())
        assert call is not None
        if self._left_to_thread == self._done_by_thread:
            sent = self._group.send_at_once(
                call, topic, value, key, source_partition, restart_point, **record
            )
            if sent is not NOT_AT_ONCE:
                return _delivery(sent)
        send = partial(
            self._group.send,
            topic,
            value,
            key,
            source_partition=source_partition,
            restart_point=restart_point,
            **record,
        )
        return _delivery(await self._answer(call, send))

    async def _poll(self, task: asyncio.Task[Any] | None, timeout_ms: float) -> ProducerEvents:
        call = self._call(task or asyncio.current_task())
        assert call is not None
        if self._polling is None:
            call.made = NOW  # a poll sends nothing, so it is never too old
            self._polling = self._submit(call, self._group.poll, timeout_ms)
            self._poll_call = call
        polling = self._polling
        try:
            await asyncio.wait([polling])
        except asyncio.CancelledError:
            self._group.wakeup()
            raise
        if self._polling is not polling:
            return ProducerEvents()  # another task has got the result
        self._polling = None
        try:
            return polling.result()
        except TransactionAbortedError:
            told = self._poll_call
            if told is None or told.author is not call.author:
                return ProducerEvents()  # its author is still to be told
            if not self._group.owes(told):
                return ProducerEvents()  # it has been told since, and may have sent again
            self._group.told(told)
            raise

    def _in_turn(
        self, function: Callable[..., Answer], *arguments: Any
    ) -> Coroutine[Any, Any, Answer]:
        return self._answer(self._call(_task()), function, *arguments)

    async def _answer(
        self, call: Call | None, function: Callable[..., Answer], *arguments: Any
    ) -> Answer:
        """Run a call on the group's thread, after earlier calls; a poll ends early for it."""
        call = call or self._call(asyncio.current_task())
        assert call is not None
        self._left_to_thread += 1
        answer = self._submit(call, self._counted, function, *arguments)
        if self._polling is not None:
            self._group.wakeup()
        try:
            # Shielded: a call that has begun goes on; a commit that nobody awaits still commits.
            return await asyncio.shield(answer)
        except TransactionAbortedError:
            self._group.told(call)
            raise
        except asyncio.CancelledError:
            answer.add_done_callback(lambda _: self._group.unheard(call))
            raise

    def _counted(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        try:
            return function(*arguments)
        finally:
            self._done_by_thread += 1

    def _submit(
        self, call: Call | None, function: Callable[..., Answer], *arguments: Any
    ) -> asyncio.Future[Answer]:
        assert call is not None
        submitted = self._thread.submit(self._group.run, call, function, *arguments)
        return asyncio.wrap_future(submitted)

    def _close_by(self, deadline: float) -> None:
        self._group.close(max(0.0, deadline - time.monotonic()) * 1000)

    def _call(self, task: asyncio.Task[Any] | None) -> Call | None:
        """Return a call that this task makes now; None if the task is not known yet."""
        if task is None:
            return None
        author = self._authors.get(task)
        if author is None:
            author = self._authors[task] = Author(_ended(ref(task)))
        return self._group.call_of(author)


def _delivery(future: Future[RecordPosition] | None) -> Delivery | None:
    return None if future is None else Delivery(future)


def _ended(task: ref[asyncio.Task[Any]]) -> Callable[[], bool]:
    """Return a check whether this task has ended; does not keep the task alive."""

    def ended() -> bool:
        found = task()
        return found is None or found.done()

    return ended


def _task() -> asyncio.Task[Any] | None:
    """The running task; None outside of one, as in ``asyncio.run(group.subscribe())``."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None
