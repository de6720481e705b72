"""AsyncDeferredRevokeConsumer: DeferredRevokeConsumer for asyncio.

kafka-python's I/O loop is its own, not asyncio's, and a consumer belongs to one thread: so whatever
waits, or changes something, is done by a :class:`DeferredRevokeConsumer` on a thread that does
nothing else, in the order of the calls, and the event loop only awaits the answer.

Invariants:
 1. The event loop itself calls only what is safe, and never waits, while a poll runs: commits and
    what tells how things stand.
 2. What a poll brought is returned exactly once: that of a cancelled poll by the next poll.
 3. No poll begins before the result of the last is returned. A revoke is therefore never completed
    before somebody had the chance to delay it.
 4. After a seek no record is returned that was polled before it. Nobody will say that such a record
    is processed: it counts as that where the seek skipped it, else it is polled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from ..errors import PartitionsLostError
from .deferred import DeferredRevokeConsumer, PollResult

if TYPE_CHECKING:
    from typing_extensions import Self

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

#: How long ``async for`` polls at a stretch. Nothing depends on it: whatever is to be done at once
#: (records, a close, a seek) ends a poll early.
_ITERATION_MS = 10_000


@dataclass(frozen=True)
class _Sought:
    """A partition's last seek: its number among all, and the offset below which it skipped."""

    number: int
    skips_below: float


@dataclass(frozen=True)
class _Polled:
    """A poll's result, and how many seeks were made before it."""

    result: PollResult
    seeks: int


class AsyncDeferredRevokeConsumer:
    """:class:`DeferredRevokeConsumer` with ``await`` (KIP-983)::

        async with AsyncDeferredRevokeConsumer("orders", group_id="g", ...) as consumer:
            async for record in consumer:
                await process(record)
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})

    ``async for`` asks for more when every record that it had has been through the loop's body: only
    then is a requested revoke completed. Who processes beside the loop polls with
    ``poll_with_rebalance`` and delays what is not done. One task polls or iterates.

    A cancelled poll loses nothing: it goes on in its thread, is told to end, and the next poll
    returns its result, at once and before anything else happens.

    Coroutines run in the order of the calls. One that waits for a poll of another task to end,
    makes that poll end early. The other methods neither wait nor change what a poll sees, and say
    how things stand now, also while a poll runs.

    Parameters
    ----------
    *topics, **config
        As for :class:`DeferredRevokeConsumer`, which is only made by ``start`` or ``async with``.
        Deserializers and rebalance listeners run on the consumer's thread, not on the event loop.
    """

    def __init__(self, *topics: str, **config: Any) -> None:
        self._make = partial(DeferredRevokeConsumer, *topics, **config)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kafka-consumer")
        self._consumer: DeferredRevokeConsumer | None = None
        self._started = False
        self._closing: asyncio.Future[None] | None = None

        self._one_poll = asyncio.Lock()
        self._polling: asyncio.Future[_Polled] | None = None  # its result is not returned yet
        self._iterated = _Polled(PollResult(), 0)
        self._records: deque[Any] = deque()  # of _iterated, not returned yet

        # Written by the consumer's thread only.
        self._seeks = 0
        self._sought: dict[TopicPartition, _Sought] = {}

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises
        ------
        OptionError
            An option that is missing or not allowed.
        UnsupportedBrokerError, KafkaError
            No broker that could be used.
        IllegalStateError
            It was started before.
        """
        if self._started:
            raise IllegalStateError("started before; make a new one")
        self._started = True

        def make() -> None:
            self._consumer = self._make()

        try:
            await asyncio.shield(asyncio.wrap_future(self._thread.submit(make)))
        except BaseException:
            self._begin_close(timeout_ms=0)  # of what a cancelled start goes on to make
            raise

    async def close(self, timeout_ms: float | None = None) -> None:
        """Drain the commits, leave the group, close the connections; a poll under way ends.

        Parameters
        ----------
        timeout_ms : float, optional
            For everything together; default ``request_timeout_ms``.
        """
        await asyncio.shield(self._begin_close(timeout_ms))
        polling = self._polling
        if polling is not None and not self._one_poll.locked() and (error := polling.exception()):
            log.error("closed before the failure of a cancelled poll was told", exc_info=error)
            self._polling = None

    def _begin_close(self, timeout_ms: float | None) -> asyncio.Future[None]:
        if self._closing is None:

            def close() -> None:
                if self._consumer is not None:
                    self._consumer.close(timeout_ms=timeout_ms)

            self.wakeup()
            self._closing = asyncio.wrap_future(self._thread.submit(close))
            self._thread.shutdown(wait=False)  # once it has done what was submitted
        return self._closing

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    # -- polling ----------------------------------------------------------------------------------

    async def poll_with_rebalance(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> PollResult:
        """Poll and say in one answer what the rebalance wants (KIP-983, variant 1).

        First come records that ``async for`` polled and did not return, and the result of a poll
        that was cancelled: both at once, whatever the arguments.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        self._opened()
        if self._records:
            rest, self._records = self._records, deque()
            result = replace(self._iterated.result, records=_by_partition(rest))
            return self._without_sought(_Polled(result, self._iterated.seeks))
        return self._without_sought(await self._next_poll(timeout_ms, max_records))

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[Any]]:
        """Only the records; aiokafka's ``getmany``."""
        return (await self.poll_with_rebalance(timeout_ms, max_records)).records

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        while self._closing is None:
            while self._records:
                record = self._records.popleft()
                partition = _partition_of(record)
                if not self._was_sought(partition, self._iterated.seeks):
                    return record
                self._skip(partition, [record])
            polled = await self._next_poll(_ITERATION_MS, None)
            self._iterated = polled
            self._records.extend(r for records in polled.result.records.values() for r in records)
        raise StopAsyncIteration

    def wakeup(self) -> None:
        """End the poll under way early, if there is one."""
        if self._consumer is not None and self._polling is not None:
            self._consumer.wakeup()

    async def _next_poll(self, timeout_ms: float, max_records: int | None) -> _Polled:
        """Wait for the poll under way, or begin one."""
        async with self._one_poll:
            consumer = self._opened()
            polling = self._polling
            if polling is None:

                def poll() -> _Polled:
                    result = consumer.poll_with_rebalance(timeout_ms, max_records)
                    return _Polled(result, self._seeks)

                self._polling = polling = self._submit(poll)
            try:
                await asyncio.wait([polling])
            except asyncio.CancelledError:
                self.wakeup()
                raise
            # From here to the caller nothing waits, so that nothing can be cancelled.
            self._polling = None
            consumer._polls.woken.clear()  # a wakeup that came when the poll had just ended
            return polling.result()

    def _without_sought(self, polled: _Polled) -> PollResult:
        result = polled.result
        sought = {p for p in result.metadata if self._was_sought(p, polled.seeks)}
        sought |= {p for p in result.records if self._was_sought(p, polled.seeks)}
        for partition in sought:
            self._skip(partition, result.records.get(partition, ()))
        if not sought:
            return result
        return replace(
            result,
            records={p: found for p, found in result.records.items() if p not in sought},
            metadata={p: found for p, found in result.metadata.items() if p not in sought},
        )

    def _was_sought(self, partition: TopicPartition, seeks: int) -> bool:
        return partition in self._sought and self._sought[partition].number > seeks

    def _skip(self, partition: TopicPartition, obsolete: Iterable[Any]) -> None:
        """These records will not be returned: what the seek skipped must hold nothing up."""
        end = self._sought[partition].skips_below
        skipped = [record.offset for record in obsolete if record.offset < end]
        if skipped and partition in self.assignment():
            # Lost, and no poll has said so yet: then there is nothing to hold up, and whoever
            # raised here would drop what was polled of other partitions.
            with contextlib.suppress(PartitionsLostError):
                self.processed(partition, *skipped)

    # -- at any time, without waiting -------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records below these next offsets are processed: commit them in the background."""
        self._opened().commit_processed(offsets)

    def processed(self, partition: TopicPartition, *offsets: int) -> None:
        """The records at these offsets are processed, in whatever order: commit how far all are."""
        self._opened().processed(partition, *offsets)

    def unprocessed(self) -> frozenset[TopicPartition]:
        """Owned partitions with records that polls handed out and nobody has ``processed``."""
        return self._opened().unprocessed()

    def get_to_be_revoked_partitions(self) -> frozenset[TopicPartition]:
        """Partitions whose revoke is completed in the next poll, unless it is delayed."""
        return self._opened().get_to_be_revoked_partitions()

    def get_lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions that were lost during the last poll."""
        return self._opened().get_lost_partitions()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions assigned now, those to be revoked included."""
        return self._opened().assignment()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._opened().acknowledged(partition)

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end, as of the last poll."""
        return self._opened().current_lag(partition)

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return self._opened().generation

    @property
    def is_stable(self) -> bool:
        """Whether this member has joined and its assignment is in force."""
        return self._opened().is_stable

    # -- in turn, on the consumer's thread --------------------------------------------------------

    async def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Delay the revoke of these partitions to the poll after the next."""
        return await self._in_turn(self._opened().delay_revoke, frozenset(partitions))

    async def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False when they are not by ``timeout_ms``."""
        return await asyncio.to_thread(self._opened().drain, timeout_ms)  # not in the polls' way

    async def subscribe(
        self, topics: Collection[str] = (), pattern: str | None = None, listener: Any = None
    ) -> None:
        """Change what is subscribed to."""
        await self._in_turn(self._opened().subscribe, topics, pattern, listener)

    async def unsubscribe(self) -> None:
        """Leave the group and give up every partition."""
        await self._in_turn(self._seek, self._opened().unsubscribe, (), 0)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Read on from ``offset``."""
        consumer = self._opened()
        seek = partial(consumer.seek, partition, offset)
        await self._in_turn(self._seek, seek, [partition], offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Read on from the beginning; without partitions, of all that are assigned."""
        seek = partial(self._opened().seek_to_beginning, *partitions)
        await self._in_turn(self._seek, seek, partitions, 0)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Read on from the end; without partitions, of all that are assigned."""
        seek = partial(self._opened().seek_to_end, *partitions)
        await self._in_turn(self._seek, seek, partitions, math.inf)

    async def pause(self, *partitions: TopicPartition) -> None:
        """Fetch no more of these partitions; what was polled before is still returned."""
        await self._in_turn(self._opened().pause, *partitions)

    async def resume(self, *partitions: TopicPartition) -> None:
        """Fetch paused partitions again."""
        await self._in_turn(self._opened().resume, *partitions)

    async def position(
        self, partition: TopicPartition, timeout_ms: float | None = None
    ) -> int | None:
        """The next offset that a poll of the consumer's thread will bring."""
        position: int | None = await self._in_turn(self._opened().position, partition, timeout_ms)
        return position

    async def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets; without those that have none."""
        return await self._in_turn(self._opened().committed_offsets, partitions, timeout_ms)

    async def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The first offset of each partition; assigned or not."""
        found: dict[TopicPartition, int] = await self._in_turn(
            self._opened().beginning_offsets, partitions, timeout_ms
        )
        return found

    async def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """The end of each partition; assigned or not."""
        found: dict[TopicPartition, int] = await self._in_turn(
            self._opened().end_offsets, partitions, timeout_ms
        )
        return found

    # ---------------------------------------------------------------------------------------------

    def _seek(
        self,
        seek: Callable[[], object],
        partitions: Collection[TopicPartition],
        skips_below: float,
    ) -> None:
        """On the consumer's thread: what was polled of the partitions until now is obsolete."""
        assert self._consumer is not None
        moved = partitions or self._consumer.assignment()
        seek()
        self._seeks += 1
        self._sought.update(dict.fromkeys(moved, _Sought(self._seeks, skips_below)))

    async def _in_turn(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Run on the consumer's thread, after what was called before.

        Cancelled, it is not run at all, or its answer is given up.
        """
        answer = self._submit(partial(function, *arguments))
        self.wakeup()
        return await answer

    def _submit(self, function: Callable[[], Answer]) -> asyncio.Future[Answer]:
        return asyncio.wrap_future(self._thread.submit(function))

    def _opened(self) -> DeferredRevokeConsumer:
        if self._closing is not None:
            raise IllegalStateError("the consumer is closed")
        if self._consumer is None:
            raise IllegalStateError("the consumer is not started: 'async with', or await start()")
        return self._consumer


def _partition_of(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _by_partition(records: Iterable[Any]) -> dict[TopicPartition, list[Any]]:
    grouped: dict[TopicPartition, list[Any]] = {}
    for record in records:
        grouped.setdefault(_partition_of(record), []).append(record)
    return grouped
