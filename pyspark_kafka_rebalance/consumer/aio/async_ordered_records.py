"""AsyncTimestampOrderedRecords: TimestampOrderedRecords for asyncio, on the consumer's thread.

Polls follow the rules of :class:`AsyncDeferredRevokeConsumer`: the next poll returns a cancelled
one's result, no poll starts before the last result is returned, and after a seek no record polled
before it is returned.

Nothing is kept here. ``async for`` takes one record after the other from the merge's buffers, on
the event loop itself while the thread is idle. Records that it has not returned are not handed out,
and the next poll gets them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from ..ordered.ordered_poll import OrderedPoll
from ..ordered.ordered_records import ARROW_ROWS, TimestampOrderedRecords
from .asynchronous import ITERATION_MS, AsyncDeferredRevokeConsumer

if TYPE_CHECKING:
    import pyarrow as pa
    from kafka.consumer.fetcher import ConsumerRecord
    from typing_extensions import Self


class AsyncTimestampOrderedRecords:
    """The records of a started consumer in the order of their timestamps (KIP-695)::

        async with AsyncDeferredRevokeConsumer("clicks", "views", group_id="g", ...) as consumer:
            async for record in AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=1_000):
                await process(record)
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})

    A requested revoke is completed once the last returned record has been through the loop's body.
    Records that are only buffered are not handed out; the next poll of any kind gets them.

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

    async def poll(self, timeout_ms: float = 0, max_records: int | None = None) -> OrderedPoll:
        """The next records, or the result of a poll that was cancelled.

        Rebalance news that ``async for`` has met are reported first.

        Parameters
        ----------
        timeout_ms : float
            How long to wait for records that may be returned.
        max_records : int, optional
            Default: ``max_poll_records``.
        """

        def poll(left_ms: float) -> OrderedPoll:
            return self._ordered.poll(left_ms, max_records)

        result: OrderedPoll = await self._consumer.returned_by(
            poll,
            timeout_ms,
            _has_records,
            partial(self._without_sought, self._consumer.without_sought),
        )
        return result

    async def poll_arrow(
        self, timeout_ms: float = 0, max_records: int = ARROW_ROWS, include_headers: bool = False
    ) -> OrderedPoll[pa.Table, pa.RecordBatch]:
        """The next records as one Arrow table.

        Parameters
        ----------
        timeout_ms, max_records, include_headers
            As for :meth:`TimestampOrderedRecords.poll_arrow`.

        Raises
        ------
        OptionError
            A deserializer is configured: the columns hold bytes.
        """

        def poll(left_ms: float) -> OrderedPoll[pa.Table, pa.RecordBatch]:
            return self._ordered.poll_arrow(left_ms, max_records, include_headers)

        result: OrderedPoll[pa.Table, pa.RecordBatch] = await self._consumer.returned_by(
            poll,
            timeout_ms,
            _has_a_table,
            partial(self._without_sought, self._consumer.rows_without_sought),
        )
        return result

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ConsumerRecord:
        poll = partial(self._ordered.poll_next, ITERATION_MS)
        return await self._consumer.next_record(poll, _has_records, self._ordered.next_buffered)

    def _without_sought(self, records_without_sought: Callable[..., Any], polled: Any) -> Any:
        result = polled.result
        return replace(
            result,
            records=records_without_sought(result.records, polled.seeks),
            catch_up=self._consumer.gaps_without_sought(result.catch_up, polled.seeks),
        )

    def buffered(self, partition: TopicPartition) -> int:
        """How many records of the partition are read ahead and not returned."""
        return self._ordered.buffered(partition)


def _has_records(result: Any) -> bool:
    return isinstance(result, OrderedPoll) and isinstance(result.records, list)


def _has_a_table(result: Any) -> bool:
    return isinstance(result, OrderedPoll) and not isinstance(result.records, list)
