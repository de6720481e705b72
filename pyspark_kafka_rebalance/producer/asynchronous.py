"""AsyncProducerGroup: ProducerGroup for asyncio.

A :class:`ProducerGroup` whose calls that may wait run on a thread of its own, in the order in which
they are made. A record of a source partition that the open transaction has already is sent on the
event loop itself, which takes some microseconds and never waits.

Invariants:
 1. The event loop never waits for a lock or a broker.
 2. What a poll tells is told once: that of a cancelled poll by the next poll.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from .group import ProducerGroup
from .ownership import ProducerEvents
from .progress import ProducerProgress

if TYPE_CHECKING:
    from typing_extensions import Self

Answer = TypeVar("Answer")


class Delivery:
    """The delivery of a record; ``await`` it for kafka-python's RecordMetadata, or do not.

    Nobody reads the record before its transaction is committed, which waits for all deliveries.
    """

    def __init__(self, future: Any) -> None:
        self._future = future

    def done(self) -> bool:
        """Whether the broker has answered."""
        return bool(self._future.is_done)

    def __await__(self) -> Generator[Any, None, Any]:
        loop = asyncio.get_running_loop()
        answered: asyncio.Future[Any] = loop.create_future()

        def answer(_: Any) -> None:
            loop.call_soon_threadsafe(_settle, answered, self._future)

        self._future.add_both(answer)
        return answered.__await__()


def _settle(answered: asyncio.Future[Any], future: Any) -> None:
    if answered.done():  # cancelled
        return
    if future.failed():
        answered.set_exception(future.exception)
    else:
        answered.set_result(future.value)


class AsyncProducerGroup:
    """:class:`ProducerGroup` with ``await`` (KIP-509)::

        async with AsyncProducerGroup("db1", 3, bootstrap_servers=...) as group:
            await group.subscribe()
            async for table, row in changes(group.restart_points):
                await group.send("rows", row.value, row.key, source_partition=table)
                await group.commit_transaction({table: row.change})

    Several tasks may send; what they send is in one transaction. An abort is told to one of them,
    by TransactionAbortedError: before it goes on it has the others stop, and go back to the restart
    points as well. What they send before is of a new transaction, behind a gap.

    Parameters
    ----------
    *arguments, **config
        As for :class:`ProducerGroup`. The listener is called on the group's thread, not on the
        event loop.
    """

    def __init__(self, *arguments: Any, **config: Any) -> None:
        self._group = ProducerGroup(*arguments, **config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-producer-group")
        self._polling: asyncio.Future[ProducerEvents] | None = None
        self._closing: asyncio.Future[None] | None = None

    async def subscribe(
        self, listener: Any = None, timeout_ms: float | None = None
    ) -> dict[int, str | None]:
        """Join the group, and wait for source partitions; as ``ProducerGroup.subscribe``."""
        return await self._in_turn(self._group.subscribe, listener, timeout_ms)

    async def poll(self, timeout_ms: float = 0) -> ProducerEvents:
        """Take part in the rebalance, and say what has changed; as ``ProducerGroup.poll``."""
        if self._polling is None:
            self._polling = self._submit(self._group.poll, timeout_ms)
        polling = self._polling
        try:
            await asyncio.wait([polling])
        except asyncio.CancelledError:
            self._group.wakeup()
            raise
        if self._polling is polling:
            self._polling = None
            return polling.result()
        return ProducerEvents()  # another task has been told

    async def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        *,
        source_partition: int | None = None,
        restart_point: str | None = None,
        **record: Any,
    ) -> Delivery:
        """Send a record in the open transaction; as ``ProducerGroup.send``.

        Returns when the record is on its way; ``await`` what it returns for its delivery.
        """
        sent = self._group.send_at_once(
            topic, value, key, source_partition, restart_point, **record
        )
        if sent is None:
            send = partial(
                self._group.send,
                topic,
                value,
                key,
                source_partition=source_partition,
                restart_point=restart_point,
                **record,
            )
            sent = await self._in_turn(send)
        return Delivery(sent)

    async def commit_transaction(
        self, restart_points: str | Mapping[int, str] | None = None
    ) -> None:
        """Commit what was sent, with where to go on; as ``ProducerGroup.commit_transaction``."""
        await self._in_turn(self._group.commit_transaction, restart_points)

    async def abort_transaction(self) -> dict[int, str | None]:
        """Abort what was sent since the last commit; where to go on."""
        return await self._in_turn(self._group.abort_transaction)

    async def alive(self) -> None:
        """A sign of life, when the source is quiet; commits if that is due."""
        await self._in_turn(self._group.alive)

    async def grow(self, source_partition_count: int) -> None:
        """The source has got more partitions; as ``ProducerGroup.grow``."""
        await self._in_turn(self._group.grow, source_partition_count)

    async def close(self, timeout_ms: float = 10_000) -> None:
        """Leave the group, so that others take over at once; idempotent."""
        if self._closing is None:
            self._group.wakeup()
            self._closing = self._submit(self._group.close, timeout_ms)
            self._thread.shutdown(wait=False)
        await asyncio.shield(self._closing)
        if self._polling is not None and not self._polling.cancelled():
            self._polling.exception()  # of a cancelled poll: looked at, so that nobody misses it

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
        """The source partitions that are owned, with the restart points committed last."""
        return self._group.restart_points

    @property
    def to_be_revoked(self) -> frozenset[int]:
        """Those of them that the group wants back once the open transaction has ended."""
        return self._group.to_be_revoked

    @property
    def member_id(self) -> str:
        """By which the group knows this member; empty before it has joined."""
        return self._group.member_id

    def progress(self) -> ProducerProgress:
        """What this member owns, and how far it is."""
        return self._group.progress()

    def _submit(self, function: Callable[..., Answer], *arguments: Any) -> asyncio.Future[Answer]:
        return asyncio.wrap_future(self._thread.submit(function, *arguments))

    async def _in_turn(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run on the group's thread, after what was called before; a poll ends early for it."""
        answer = self._submit(function, *arguments)
        if self._polling is not None:
            self._group.wakeup()
        # Shielded: what has begun goes on, and a commit that nobody waits for is one all the same.
        return await asyncio.shield(answer)
