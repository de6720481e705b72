"""AsyncDeferredRevokeConsumer: DeferredRevokeConsumer for asyncio.

It runs a :class:`DeferredRevokeConsumer` on a thread of its own (``consumer_thread.py``). This
module keeps polled records and knows which of them a seek has made obsolete. All other calls only
pass through (``async_member.py``).

Invariants:
 1. While a poll runs, the event loop itself makes only safe calls that never wait: commits and
    queries of the state.
 2. A poll's result is returned exactly once. The next poll returns the result of a cancelled poll,
    and the rest that an iteration left. It is kept in one place, here, for all kinds of polls.
 3. No poll starts before the last one's result is returned, to its last record. A revoke is
    therefore never completed before the application had the chance to delay it.
 4. After a seek no record is returned that was polled before it. The application never reports such
    a record: it counts as processed if the seek skipped it, else it is polled again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalStateError
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...errors import PartitionsLostError
from ..consumer import DeferredRevokeConsumer, PollResult
from ..offsets.found_records import below, offsets_of
from .async_member import AsyncMember
from .consumer_thread import ConsumerThread

if TYPE_CHECKING:
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import Self, Unpack

    from ...settings.typed_settings import ConsumerSettings

log = logging.getLogger(__name__)

#: How long one poll of ``async for`` waits. Nothing depends on it: records, a close or a seek end a
#: poll early.
ITERATION_MS = 10_000


@dataclass(frozen=True)
class _Sought:
    """A partition's last seek: its number among all, and the offset below which it skipped."""

    number: int
    skips_below: float


@dataclass(frozen=True)
class _Polled:
    """A poll's result, and how many seeks were made before it."""

    result: Any
    seeks: int


class AsyncDeferredRevokeConsumer(AsyncMember):
    """:class:`DeferredRevokeConsumer` with ``await`` (KIP-983)::

        async with AsyncDeferredRevokeConsumer("orders", group_id="g", ...) as consumer:
            async for record in consumer:
                await process(record)
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})

    ``async for`` polls again once every record of the last poll has been through the loop's body.
    Only then is a requested revoke completed. If you process records outside the loop, poll with
    ``poll_with_rebalance`` and delay the revoke of unfinished partitions. Poll or iterate in one
    task only.

    A cancelled poll loses nothing: it is woken and ends on its thread, and the next poll returns
    its result at once, before anything else happens.

    Coroutines run in the order of the calls. One that has to wait for another task's poll makes
    that poll end early. The other methods neither wait nor affect a poll; they report the present
    state, also while a poll runs.

    Parameters
    ----------
    *topics, **config
        As for :class:`DeferredRevokeConsumer`, which ``start`` or ``async with`` creates.
        Deserializers run on the consumer's thread, not on the event loop.
    """

    def __init__(self, *topics: str, **config: Unpack[ConsumerSettings]) -> None:
        self._thread = ConsumerThread(partial(DeferredRevokeConsumer, *topics, **config))
        self._one_poll = asyncio.Lock()
        self._iterated = _Polled(PollResult(), 0)
        self._records: deque[Any] = deque()  # of _iterated, not returned yet by any iteration
        # The last result of polled_by, until its caller has returned it.
        self._returning: _Polled | None = None

        # Written by the consumer's thread only.
        self._seeks = 0
        self._sought: dict[TopicPartition, _Sought] = {}

    # -- life -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connect.

        Raises
        ------
        OptionError
            An option is missing or not allowed.
        UnsupportedBrokerError, KafkaError
            No broker can be used.
        IllegalStateError
            It was started before.
        """
        await self._thread.start()

    async def close(self, timeout_ms: float | None = None) -> None:
        """Drain the commits, leave the group, close the connections; a running poll ends.

        Parameters
        ----------
        timeout_ms : float, optional
            The limit for all steps together; default ``request_timeout_ms``.
        """
        await asyncio.shield(self._thread.begin_close(timeout_ms))
        polling = self._thread.polling
        if polling is not None and not self._one_poll.locked() and (error := polling.exception()):
            log.error("closed before the failure of a cancelled poll was raised", exc_info=error)
            self._thread.polling = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # -- polling ----------------------------------------------------------------------------------

    async def poll_with_rebalance(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> PollResult:
        """Poll for records and news of the rebalance, in one result (KIP-983, variant 1).

        Records that ``async for`` polled and did not return come first, and so does the result of a
        cancelled poll: both at once, regardless of the arguments.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        consumer = self._thread.opened()

        def poll(left_ms: float) -> PollResult:
            return consumer.poll_with_rebalance(left_ms, max_records)

        result: PollResult = await self.returned_by(poll, timeout_ms, _is_own, self._without_sought)
        return result

    async def poll(
        self, timeout_ms: float = 0, max_records: int | None = None
    ) -> dict[TopicPartition, list[ConsumerRecord]]:
        """Return only the records, of both kinds in one; aiokafka's ``getmany``."""
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            result = await self.poll_with_rebalance(timeout_ms, max_records)
            told = result.to_be_revoked or result.lost
            only_new = (result.assigned or result.revoked) and not told
            timeout_ms = min(timeout_ms, (deadline - time.monotonic()) * 1000)
            if result.records or result.catch_up or not only_new or timeout_ms <= 0:
                return result.in_one()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        if self._thread.closing:
            raise StopAsyncIteration
        poll = partial(self._thread.opened().poll_with_rebalance, ITERATION_MS)
        return await self.next_record(poll, _is_own)

    def wakeup(self) -> None:
        """End the running poll early, if there is one."""
        self._thread.wakeup()

    # -- shared by all kinds of polls and iterations ----------------------------------------------

    async def next_record(
        self,
        poll: Callable[[], Any],
        is_of_it: Callable[[Any], bool],
        buffered: Callable[[], Any] = lambda: None,
    ) -> Any:
        """The next record of an iteration; StopAsyncIteration once the consumer is being closed.

        ``buffered`` hands out the next record if that needs no poll, and never waits; the other two
        are as for `polled_by`.
        """
        if self._thread.closing:
            raise StopAsyncIteration
        consumer = self._thread.opened()
        consumer.refuse_iteration_of_two()

        def poll_on() -> Any:
            consumer._polls.told_in_passing(False)  # its records have been through the loop's body
            return poll()

        while not self._thread.closing:
            self._refuse_others(is_of_it)
            while self._records:
                record = self._records[0]
                kept = self.without_sought([record], self._iterated.seeks)
                del self._records[0]  # last: an exception before this leaves it there
                if kept:
                    return record
            at_once = self._thread.idle and self._thread.polling is None
            if at_once and (record := buffered()) is not None:
                return record
            self._iterated = await self.polled_by(poll_on, is_of_it)
            self._records = deque(_in_a_row(self._iterated.result.records))
            self._returning = None
            consumer._polls.told_in_passing(True)
        raise StopAsyncIteration

    def _refuse_others(self, is_of_it: Callable[[Any], bool]) -> None:
        if self._records and not is_of_it(self._iterated.result):
            raise IllegalStateError(
                "async for has polled records of another kind, which must be returned first, by "
                "async for or by a poll of that kind"
            )

    async def returned_by(
        self,
        poll: Callable[[float], Any],
        timeout_ms: float,
        is_of_it: Callable[[Any], bool],
        without_sought: Callable[[_Polled], Any],
    ) -> Any:
        """The result of one poll, without records that a seek has made obsolete.

        If none remain, another poll waits for the rest of the time.

        The poll takes a timeout in milliseconds. ``without_sought`` leaves out obsolete records.
        """
        deadline = time.monotonic() + timeout_ms / 1000
        while True:
            left_ms = timeout_ms
            if timeout_ms > 0:  # the consumer refuses negative ones
                left_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            polled = await self.polled_by(partial(poll, left_ms), is_of_it)
            result = without_sought(polled)
            if left_ms <= 0 or _tells(result) or not len(polled.result.records):
                self._returning = None  # last: an exception before this leaves it to the next poll
                return result
            self._returning = None

    async def polled_by(self, poll: Callable[[], Any], is_of_it: Callable[[Any], bool]) -> _Polled:
        """Wait for the running poll, or start this one; an iteration's remainder comes first.

        The poll runs on the consumer's thread. ``is_of_it`` returns whether a result is of this
        poll's kind.

        Raises IllegalStateError if a poll of another kind was cancelled, or was made by an
        iteration, and its records, or the revoke that it reports, are not returned yet.
        """
        async with self._one_poll:
            consumer = self._thread.opened()
            self._refuse_others(is_of_it)
            if (again := self._returning) is not None:  # its caller was interrupted
                if is_of_it(again.result):
                    return again
                self._refuse_other(again)
                self._returning = None
                consumer._polls.told_in_passing(True)
            if self._records:
                kept = self.without_sought(self._records, self._iterated.seeks)
                self._records = deque(kept)
            if self._records:
                rest = list(self._records)
                consumer._polls.told_in_passing(False)  # this result reports the rebalance
                result = self._iterated.result
                own = isinstance(result.records, dict)
                result = replace(result, records=_by_partition(rest) if own else rest)
                polled: _Polled = replace(self._iterated, result=result)
                self._returning, self._records = polled, deque()
                return polled
            while True:
                polling = self._thread.polling
                if polling is None:

                    def begin() -> _Polled:
                        return _Polled(poll(), self._seeks)

                    self._thread.polling = polling = self._thread.submit(begin)
                try:
                    await asyncio.wait([polling])
                except asyncio.CancelledError:
                    self.wakeup()
                    raise
                # Nothing awaits from here to the caller, so nothing can be cancelled.
                other = polling.exception() is None and not is_of_it(polling.result().result)
                if other:
                    self._refuse_other(polling.result())
                consumer._polls.woken.clear()  # a wakeup may have come just after the poll ended
                if polling.exception() is not None:
                    self._thread.polling = None
                    polling.result()
                if not other:
                    polled = polling.result()
                    self._returning, self._thread.polling = polled, None
                    return polled
                self._thread.polling = None
                consumer._polls.told_in_passing(True)  # the next poll reports its news

    def _refuse_other(self, polled: _Polled) -> None:
        """Refuse a poll of another kind while there is a result that it cannot return."""
        if _is_to_be_returned(polled.result):
            raise IllegalStateError(
                "the result of a cancelled poll of another kind must be returned first, by a poll "
                "of that kind"
            )

    def without_sought(self, records: Iterable[Any], seeks: int) -> list[Any]:
        """Drop the records that any seek after the first ``seeks`` ones has made obsolete."""
        kept = []
        for record in records:
            partition = _partition_of(record)
            if self._was_sought(partition, seeks):
                self._skip(partition, [record.offset])
            else:
                kept.append(record)
        return kept

    def rows_without_sought(self, table: Any, seeks: int) -> Any:
        """As ``without_sought``, for a ``pyarrow.Table`` with topic and partition columns."""
        for partition in sorted(p for p in self._sought if self._was_sought(p, seeks)):
            import pyarrow.compute as pc

            topics = pc.equal(table["topic"].cast("string"), partition.topic)
            obsolete = pc.and_(topics, pc.equal(table["partition"], partition.partition))
            self._skip(partition, table.filter(obsolete)["offset"].to_pylist())
            table = table.filter(pc.invert(obsolete))
        return table

    def gaps_without_sought(
        self, caught_up: Mapping[TopicPartition, list[Any]], seeks: int
    ) -> dict[TopicPartition, list[Any]]:
        """As ``without_sought``, for caught-up records: keep any that the live reader misses.

        It reaches everything from the sought offset on.
        """
        kept = {}
        for partition, found in caught_up.items():
            if self._was_sought(partition, seeks):
                found = below(found, self._sought[partition].skips_below)
            if found:
                kept[partition] = found
        return kept

    def _without_sought(self, polled: _Polled) -> PollResult:
        result: PollResult = polled.result
        sought = {p for p in result.metadata if self._was_sought(p, polled.seeks)}
        sought |= {p for p in result.in_one() if self._was_sought(p, polled.seeks)}
        for partition in sought:
            self._skip(partition, [r.offset for r in result.records.get(partition, ())])
        if not sought:
            return result
        return replace(
            result,
            records={p: found for p, found in result.records.items() if p not in sought},
            metadata={p: found for p, found in result.metadata.items() if p not in sought},
            catch_up=self.gaps_without_sought(result.catch_up, polled.seeks),
        )

    def _was_sought(self, partition: TopicPartition, seeks: int) -> bool:
        return partition in self._sought and self._sought[partition].number > seeks

    def _skip(self, partition: TopicPartition, obsolete: Iterable[int]) -> None:
        """These records will not be returned; records that a seek skipped count as processed."""
        end = self._sought[partition].skips_below
        skipped = [offset for offset in obsolete if offset < end]
        if skipped and partition in self.assignment():
            # A partition that is lost, but not reported yet by a poll, has nothing to hold up.
            # Raising here would drop records polled from other partitions.
            with contextlib.suppress(PartitionsLostError):
                self.processed(partition, *skipped)

    # -- returned records -------------------------------------------------------------------------

    async def commit(
        self, offsets: Mapping[TopicPartition, Any] | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit, and wait for the answer; without offsets, all returned records.

        Records of a cancelled poll, and those that ``async for`` has not returned, are not
        committed.

        Raises
        ------
        PartitionsLostError, KafkaTimeoutError, KafkaError
            As ``DeferredRevokeConsumer.commit``.
        """
        consumer = self._thread.opened()
        if offsets is not None or not consumer.is_subscribed:
            if offsets is None:
                offsets = await self._returned_positions(consumer)
            commit = partial(consumer.commit, offsets, timeout_ms)
            if not consumer.is_subscribed:
                await self._thread.in_turn(commit)
            else:  # not on the polling thread, which continues
                await asyncio.to_thread(commit)
            return
        positions = await self._returned_positions(consumer)
        everything = not self._unreturned()
        await asyncio.to_thread(consumer.commit_entries, positions, timeout_ms, everything)

    async def position(
        self, partition: TopicPartition, timeout_ms: float | None = None
    ) -> int | None:
        """The next offset that is returned."""
        consumer = self._thread.opened()
        position = await self._thread.in_turn(consumer.position, partition, timeout_ms)
        first = self._unreturned().get(partition)
        return position if first is None or position is None else min(position, first)

    async def _returned_positions(
        self, consumer: DeferredRevokeConsumer
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """The application's position in each assigned partition."""
        # In turn, so that no poll runs at the same time. An earlier poll's result is on the loop by
        # then.
        positions = dict(await self._thread.in_turn(consumer.returned_positions))
        for partition, offset in self._unreturned().items():
            at = positions.get(partition)
            if at is not None and offset < at.offset:
                positions[partition] = OffsetAndMetadata(offset, "", -1)
        return positions

    def _unreturned(self) -> dict[TopicPartition, int]:
        """The first offset of each partition with polled records that are not returned."""
        polled = [replace(self._iterated, result=list(self._records))] if self._records else []
        if self._returning is not None:
            polled.append(self._returning)
        polling = self._thread.polling
        if polling is not None and polling.done() and polling.exception() is None:
            polled.append(polling.result())
        found: dict[TopicPartition, int] = {}
        for one in polled:
            for partition, offset in _firsts_of(one.result):
                if not self._was_sought(partition, one.seeks):
                    found[partition] = min(offset, found.get(partition, offset))
        return found

    # -- calls that make polled records obsolete, in turn with the polls --------------------------

    async def assign(self, partitions: Collection[TopicPartition]) -> None:
        """Assign exactly these partitions, without a group's help; ``KafkaConsumer.assign``."""

        def assign() -> Collection[TopicPartition]:
            before = consumer.assignment()
            consumer.assign(partitions)
            return before - consumer.assignment()  # the others stay

        consumer = self._thread.opened()
        await self._thread.in_turn(self._seek, assign, partitions, 0)

    async def unsubscribe(self) -> None:
        """Leave the group and give up every partition."""
        await self._thread.in_turn(self._seek, self._thread.opened().unsubscribe, (), 0)

    async def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue at ``offset``."""
        seek = partial(self._thread.opened().seek_or_skip, partition, offset)
        await self._thread.in_turn(self._seek, seek, [partition], offset)

    async def seek_to_beginning(self, *partitions: TopicPartition) -> None:
        """Continue at the start of these partitions, or of all assigned ones."""
        seek = partial(self._thread.opened().seek_to_beginning_or_skip, *partitions)
        await self._thread.in_turn(self._seek, seek, partitions, 0)

    async def seek_to_end(self, *partitions: TopicPartition) -> None:
        """Continue at the end of these partitions, or of all assigned ones."""
        seek = partial(self._thread.opened().seek_to_end, *partitions)
        await self._thread.in_turn(self._seek, seek, partitions, math.inf)

    def _seek(
        self,
        seek: Callable[[], Collection[TopicPartition] | None],
        partitions: Collection[TopicPartition],
        skips_below: float,
    ) -> None:
        """On the consumer's thread: records polled from the partitions until now are obsolete.

        If the seek returns partitions, only the records of these.
        """
        assert self._thread.consumer is not None
        moved = partitions or self._thread.consumer.assignment()
        if (sought := seek()) is not None:
            moved = sought  # the others' polled records are still to be returned
        self._seeks += 1
        self._sought.update(dict.fromkeys(moved, _Sought(self._seeks, skips_below)))


def _partition_of(record: Any) -> TopicPartition:
    return TopicPartition(record.topic, record.partition)


def _firsts_of(result: Any) -> Iterable[tuple[TopicPartition, int]]:
    """The partitions of records or Arrow batches, each with its first offset."""
    if isinstance(result, list):
        return [(_partition_of(record), record.offset) for record in result]
    if hasattr(result, "schema"):
        columns = [result[name].to_pylist() for name in ("topic", "partition", "offset")]
        return [(TopicPartition(t, p), offset) for t, p, offset in zip(*columns, strict=True)]
    if isinstance(result, dict):
        return [(p, next(offsets_of(each))[0][0]) for p, each in result.items() if each]
    return [*_firsts_of(result.records), *_firsts_of(result.catch_up)]


def _tells(result: Any) -> bool:
    """Whether a result has anything for which a poll stops waiting."""
    told = result.to_be_revoked or result.lost or result.assigned or result.revoked
    return bool(len(result.records) or result.catch_up or told)


def _is_own(result: Any) -> bool:
    return isinstance(result, PollResult)


def _is_to_be_returned(result: Any) -> bool:
    """Whether a poll's result can be returned only by a poll of its kind."""
    return bool(len(result.records) or result.catch_up or result.to_be_revoked)


def _in_a_row(records: dict[TopicPartition, list[Any]] | list[Any]) -> Iterable[Any]:
    if isinstance(records, dict):
        return (record for found in records.values() for record in found)
    return records


def _by_partition(records: Iterable[Any]) -> dict[TopicPartition, list[Any]]:
    grouped: dict[TopicPartition, list[Any]] = {}
    for record in records:
        grouped.setdefault(_partition_of(record), []).append(record)
    return grouped
