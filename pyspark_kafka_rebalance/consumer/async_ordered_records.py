"""AsyncTimestampOrderedRecords: TimestampOrderedRecords for asyncio, on the consumer's thread.

What holds of the polls of an :class:`AsyncDeferredRevokeConsumer` holds of these: what a cancelled
poll brought is returned by the next one, no poll begins before the result of the last is returned,
and after a seek no record is returned that was polled before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from .asynchronous import ITERATION_MS, AsyncDeferredRevokeConsumer
from .ordered_poll import OrderedPoll
from .ordered_records import ARROW_ROWS, TimestampOrderedRecords

if TYPE_CHECKING:
    from typing_extensions import Self


class AsyncTimestampOrderedRecords:
    """The records of a started consumer in the order of their timestamps (KIP-695)::

        async with AsyncDeferredRevokeConsumer("clicks", "views", group_id="g", ...) as consumer:
            async for record in AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=1_000):
                await process(record)
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})

    ``async for`` asks for more when every record that it had has been through the loop's body: only
    then is a requested revoke completed.

    Parameters
    ----------
    consumer : AsyncDeferredRevokeConsumer
        Started.
    max_task_idle_ms, partition_group, buffered_records_per_partition
        As for :class:`TimestampOrderedRecords`. ``partition_group`` is called on the consumer's
        thread.

    Raises
    ------
    OptionError
        As :class:`TimestampOrderedRecords`.
    IllegalStateError
        The consumer is not started, or closed.
    """

    def __init__(
        self,
        consumer: AsyncDeferredRevokeConsumer,
        max_task_idle_ms: int = -1,
        partition_group: Callable[[TopicPartition], Hashable] | None = None,
        buffered_records_per_partition: int = 1_000,
    ) -> None:
        self._consumer = consumer
        self._ordered = TimestampOrderedRecords(
            consumer._thread.opened(),
            max_task_idle_ms,
            partition_group,
            buffered_records_per_partition,
        )
        self._iterated = OrderedPoll([])
        self._seeks = 0  # before that poll
        self._records: deque[Any] = deque()  # of _iterated, not returned yet

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> OrderedPoll:
        """The next records; first those that ``async for`` polled and did not return.

        With them comes all that poll has told: what is to be revoked, too.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records that may be returned.
        max_records : int, optional
            Default: ``max_poll_records``.
        """
        if self._records:
            rest, self._records = list(self._records), deque()
            result, seeks = replace(self._iterated, records=rest), self._seeks
        else:
            result, seeks = await self._next(timeout_ms, max_records)
        return replace(
            result,
            records=self._consumer.without_sought(result.records, seeks),
            catch_up=self._consumer.gaps_without_sought(result.catch_up, seeks),
        )

    async def poll_arrow(
        self,
        timeout_ms: float = 0,
        max_records: int = ARROW_ROWS,
        include_headers: bool = False,
    ) -> OrderedPoll:
        """The next records as one Arrow table.

        Parameters
        ----------
        timeout_ms, max_records, include_headers
            As for :meth:`TimestampOrderedRecords.poll_arrow`.

        Raises
        ------
        OptionError
            A deserializer is configured: the columns hold bytes.
        IllegalStateError
            Records that ``async for`` has polled are to be returned first, by itself or by `poll`.
        """
        if self._records:
            raise IllegalStateError("records that async for has polled are to be returned first")
        poll = partial(self._ordered.poll_arrow, timeout_ms, max_records, include_headers)
        polled = await self._consumer.polled_by(poll, lambda result: _is_ordered(result, False))
        result: OrderedPoll = polled.result
        return replace(
            result,
            records=self._consumer.rows_without_sought(result.records, polled.seeks),
            catch_up=self._consumer.gaps_without_sought(result.catch_up, polled.seeks),
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        if not self._consumer._thread.closing:
            self._consumer._thread.opened().refuse_iteration_of_two()
        while not self._consumer._thread.closing:
            while self._records:
                record = self._records.popleft()
                if self._consumer.without_sought([record], self._seeks):
                    return record
            self._iterated, self._seeks = await self._next(ITERATION_MS, None)
            self._records.extend(self._iterated.records)
        raise StopAsyncIteration

    def buffered(self, partition: TopicPartition) -> int:
        """How many records of it are read ahead and not returned."""
        return self._ordered.buffered(partition)

    async def _next(self, timeout_ms: float, max_records: int | None) -> tuple[OrderedPoll, int]:
        poll = partial(self._ordered.poll, timeout_ms, max_records)
        polled = await self._consumer.polled_by(poll, lambda result: _is_ordered(result, True))
        return polled.result, polled.seeks


def _is_ordered(result: Any, of_records: bool) -> bool:
    """Whether a poll in order brought this: records, or a table."""
    return isinstance(result, OrderedPoll) and isinstance(result.records, list) == of_records
