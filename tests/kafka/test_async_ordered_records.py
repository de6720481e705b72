"""AsyncTimestampOrderedRecords on a real broker: the order, and that nothing cancelled is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from event_loop import in_an_event_loop
from group_members import parts_of
from kafka import KafkaProducer
from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import (
    AsyncDeferredRevokeConsumer,
    AsyncTimestampOrderedRecords,
    OptionError,
)
from pyspark_kafka_rebalance.testing import LocalKafka

BASE_MS = 1_700_000_000_000


@pytest.fixture
def topic(kafka: LocalKafka, topic_name: str) -> str:
    """Two partitions with 200 records each, whose timestamps and values take turns."""
    kafka.create_topic(topic_name, 2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20)
    for at in range(400):
        producer.send(topic_name, b"%d" % at, partition=at % 2, timestamp_ms=BASE_MS + at)
    producer.close()
    return topic_name


@asynccontextmanager
async def started(
    kafka: LocalKafka, group_id: str, *topics: str
) -> AsyncIterator[AsyncDeferredRevokeConsumer]:
    async with AsyncDeferredRevokeConsumer(
        *topics,
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group_id,
        auto_offset_reset="earliest",
        heartbeat_interval_ms=500,
        fetch_max_wait_ms=100,
        max_poll_records=50,
    ) as consumer:
        yield consumer


@asynccontextmanager
async def in_order(
    kafka: LocalKafka, group_id: str, topic: str
) -> AsyncIterator[tuple[AsyncDeferredRevokeConsumer, AsyncTimestampOrderedRecords]]:
    async with started(kafka, group_id, topic) as consumer:
        yield consumer, AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)


@in_an_event_loop
async def test_async_for_yields_one_order(kafka: LocalKafka, topic: str, group_id: str) -> None:
    async with in_order(kafka, group_id, topic) as (consumer, ordered):
        found = []
        async for record in ordered:
            found.append(int(record.value))
            partition = TopicPartition(record.topic, record.partition)
            consumer.commit_processed({partition: record.offset + 1})
            if len(found) == 400:
                break
        assert found == list(range(400))
        assert await consumer.drain(10_000)
        partitions = [TopicPartition(topic, n) for n in range(2)]
        assert await consumer.committed_offsets(partitions, 10_000) == dict.fromkeys(
            partitions, 200
        )


@in_an_event_loop
async def test_nothing_of_a_cancelled_poll_is_lost(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with in_order(kafka, group_id, topic) as (_, ordered):
        found: list[int] = []
        while len(found) < 400:
            polling = asyncio.create_task(ordered.poll(10_000, max_records=7))
            await asyncio.sleep(0.001 * (len(found) % 5))
            polling.cancel()
            await asyncio.wait([polling])
            if polling.cancelled():
                result = await ordered.poll(10_000, max_records=7)
            else:
                result = polling.result()
            found += [int(record.value) for record in result.records]
        assert found == list(range(400))


@in_an_event_loop
async def test_after_a_seek_nothing_comes_that_was_polled_before(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with in_order(kafka, group_id, topic) as (consumer, ordered):
        found = []
        async for record in ordered:
            found.append(int(record.value))
            if len(found) == 10:
                await consumer.seek(TopicPartition(topic, 0), 150)
            if len(found) == 10 + 195 + 50:
                break
        assert found == [*range(10), *(n for n in range(10, 400) if n % 2 or n >= 300)]


@in_an_event_loop
async def test_a_poll_after_async_for_tells_what_that_has_learned_of_a_rebalance(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    """A requested revoke was completed although nobody had the chance to delay it."""

    async def until_it_owns() -> None:
        async with started(kafka, group_id, topic) as other:
            while not other.assignment():
                await other.poll(100)

    async with in_order(kafka, group_id, topic) as (consumer, ordered):
        assert await anext(ordered)
        assert (await ordered.poll(0)).records
        others = asyncio.create_task(until_it_owns())
        while not parts_of(consumer._thread.opened()).record.any_waits():
            await asyncio.sleep(0.02)  # until the next poll will learn of the rebalance
        assert await anext(ordered)
        told = await ordered.poll(0)
        assert told.records
        assert len(told.to_be_revoked) == 1
        assert await consumer.delay_revoke(told.to_be_revoked)
        assert not (await ordered.poll(100)).revoked
        assert told.to_be_revoked <= consumer.assignment()
        while not others.done():
            await ordered.poll(100)
        await others


@in_an_event_loop
async def test_two_ways_to_poll_do_not_take_each_other_s_results(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        with pytest.raises(OptionError):
            AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=-5)
        ordered = AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)
        found = {int((await anext(ordered)).value)}
        polling = asyncio.create_task(ordered.poll(10_000))
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.wait([polling])
        with pytest.raises(IllegalStateError, match="another kind"):
            await consumer.poll(100)
        found |= {int(r.value) for r in (await ordered.poll(0)).records}
        while len(found) < 400:
            records = await consumer.poll(100)
            found.update(int(r.value) for each in records.values() for r in each)
    with pytest.raises(IllegalStateError):
        AsyncTimestampOrderedRecords(consumer)


@in_an_event_loop
async def test_a_cancelled_iteration_that_brought_nothing_keeps_no_other_poll(
    kafka: LocalKafka, topic_name: str, group_id: str
) -> None:
    """All others were refused until one was made in its way, though there was nothing to return."""
    kafka.create_topic(topic_name, 2)
    async with started(kafka, group_id, topic_name) as consumer:
        ordered = AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(anext(ordered), 0.1)
        assigned: set[TopicPartition] = set()
        while len(assigned) < 2:  # also if that is what the cancelled one has learned
            assigned |= (await consumer.poll_with_rebalance(1_000)).assigned
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(consumer.poll(10_000), 0.1)
        assert not (await ordered.poll_arrow(100)).records.num_rows
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(ordered.poll_arrow(10_000), 0.1)
        cancelled = consumer._thread.polling
        assert cancelled is not None
        await asyncio.wait([cancelled])  # or it would still bring what is produced now
        kafka.produce(topic_name, [b"1"])
        assert (await anext(ordered)).value == b"1"


@in_an_event_loop
async def test_tables_come_in_order_also_of_cancelled_polls_and_after_a_seek(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with in_order(kafka, group_id, topic) as (consumer, ordered):
        found: list[int] = []
        refused = 0
        while len(found) < 200:
            polling = asyncio.create_task(ordered.poll_arrow(10_000, max_records=7))
            await asyncio.sleep(0.001 * (len(found) % 5))
            polling.cancel()
            await asyncio.wait([polling])
            if polling.cancelled():
                try:  # it may have brought nothing
                    records = (await ordered.poll(100, max_records=7)).records
                except IllegalStateError:
                    refused += 1
                else:
                    found += [int(record.value) for record in records]
                result = await ordered.poll_arrow(10_000, max_records=7)
            else:
                result = polling.result()
            found += map(int, result.records["value"].to_pylist())
        assert found == list(range(len(found)))
        assert refused
        polling = asyncio.create_task(ordered.poll_arrow(10_000, max_records=50))
        await asyncio.sleep(0)
        polling.cancel()
        await asyncio.wait([polling])
        await consumer.seek(TopicPartition(topic, 0), 195)
        result = await ordered.poll_arrow(10_000)
        assert len(result.records) < 50, "every second row of what was polled"
        odd = [n for n in range(len(found), 400) if n % 2]
        rows = list(map(int, result.records["value"].to_pylist()))
        while len(rows) < len(odd) + 5:
            rows += map(int, (await ordered.poll_arrow(1_000)).records["value"].to_pylist())
        even = [n for n in rows if not n % 2]
        assert (even, [n for n in rows if n % 2]) == (list(range(390, 400, 2)), odd)


async def broken_off(
    consumer: AsyncDeferredRevokeConsumer, found: list[int], count: int
) -> AsyncTimestampOrderedRecords:
    """An iteration that returned so many records, and has polled more."""
    ordered = AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)
    async for record in ordered:
        found.append(int(record.value))
        consumer.processed(TopicPartition(record.topic, record.partition), record.offset)
        if len(found) == count:
            break
    assert sum(ordered.buffered(partition) for partition in consumer.assignment())
    return ordered


@in_an_event_loop
async def test_what_async_for_has_not_returned_is_not_handed_out(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        await broken_off(consumer, [], 10)
        partitions = [TopicPartition(topic, n) for n in range(2)]
        assert consumer.unprocessed() == frozenset()
        assert [await consumer.position(partition) for partition in partitions] == [5, 5]


@in_an_event_loop
async def test_the_consumer_s_own_polls_return_what_async_for_has_left(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    """It belonged to the iteration alone, and the polls went on behind it."""
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        await broken_off(consumer, found, 10)
        while len(found) < 400:
            records = await consumer.poll(1_000)
            found += [int(record.value) for each in records.values() for record in each]
        assert sorted(found) == list(range(400))


@in_an_event_loop
async def test_another_iteration_goes_on_in_order_where_the_last_was_left(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        for count in range(40, 401, 40):
            async for record in AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0):
                found.append(int(record.value))
                partition = TopicPartition(record.topic, record.partition)
                consumer.commit_processed({partition: record.offset + 1})
                if len(found) == count:
                    break
        assert found == list(range(400))


@in_an_event_loop
async def test_nothing_comes_of_a_partition_that_was_given_away_since_the_iteration_was_left(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    """Its new owner had delivered these records, too, and those that stayed came out of order."""
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        ordered = await broken_off(consumer, found, 10)
        async with started(kafka, group_id, topic) as other:
            of_other: list[int] = []
            while not other.assignment():
                for partition, records in (await consumer.poll(100, max_records=1)).items():
                    found += [int(record.value) for record in records]
                    consumer.commit_processed({partition: records[-1].offset + 1})
                await other.poll(0)
            (moved,) = other.assignment()
            while len(of_other) < 200 - sum(n % 2 == moved.partition for n in found):
                records = await other.poll(1_000)
                of_other += [int(r.value) for each in records.values() for r in each]
            while len(found) + len(of_other) < 400:
                found.append(int((await anext(ordered)).value))
            assert sorted(found + of_other) == list(range(400))
            for partition in range(2):
                own = [n for n in found if n % 2 == partition]
                assert own == sorted(own)


@in_an_event_loop
async def test_what_is_left_of_a_paused_partition_comes_when_it_is_resumed(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        ordered = await broken_off(consumer, found, 10)
        await consumer.pause(TopicPartition(topic, 0))
        found += [int((await anext(ordered)).value) for _ in range(195)]
        assert found[10:] == list(range(11, 400, 2))
        await consumer.resume(TopicPartition(topic, 0))
        found += [int((await anext(ordered)).value) for _ in range(195)]
        assert found[205:] == list(range(10, 400, 2))


@in_an_event_loop
async def test_what_async_for_of_a_cancelled_poll_has_left_the_next_poll_returns(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        ordered = await broken_off(consumer, found, 1)
        while True:
            polling = asyncio.create_task(ordered.poll(10_000, max_records=30))
            await asyncio.sleep(0)
            polling.cancel()
            await asyncio.wait([polling])
            found.append(int((await anext(ordered)).value))
            if consumer._records:
                break
        for poll in (consumer.poll, ordered.poll_arrow):
            with pytest.raises(IllegalStateError, match="returned first"):
                await poll(100)
        another = AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)
        while len(found) < 400:
            found += [int(record.value) for record in (await another.poll(1_000)).records]
        assert found == list(range(400))


@in_an_event_loop
async def test_what_the_consumer_s_own_async_for_has_left_is_to_be_returned_before_an_order_begins(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    """The merge began behind it: nobody was ever given it."""
    async with started(kafka, group_id, topic) as consumer:
        found = []
        async for record in consumer:
            found.append(int(record.value))
            if len(found) == 10:
                break
        ordered = AsyncTimestampOrderedRecords(consumer, max_task_idle_ms=0)
        for poll in (ordered.poll, ordered.poll_arrow, ordered.__anext__):
            with pytest.raises(IllegalStateError, match="returned first"):
                await poll()
        records = await consumer.poll()
        found += [int(r.value) for each in records.values() for r in each]
        assert len(found) > 10
        async for record in ordered:
            found.append(int(record.value))
            if len(found) == 400:
                break
        assert sorted(found) == list(range(400))


@in_an_event_loop
async def test_what_async_for_has_polled_is_not_left_out_of_a_table(
    kafka: LocalKafka, topic: str, group_id: str
) -> None:
    async with started(kafka, group_id, topic) as consumer:
        found: list[int] = []
        ordered = await broken_off(consumer, found, 10)
        while len(found) < 400:
            found += map(int, (await ordered.poll_arrow(1_000)).records["value"].to_pylist())
        assert found == list(range(400))
