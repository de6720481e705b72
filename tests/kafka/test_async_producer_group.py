"""AsyncProducerGroup on a broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from producer_groups import read_committed

from pyspark_kafka_rebalance import (
    AsyncGroupTransaction,
    AsyncProducerGroup,
    OptionError,
    TransactionAbortedError,
)
from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.parametrize("protocol", ["classic"], indirect=True)

MakeGroup = Callable[..., AsyncProducerGroup]


@pytest.fixture
def make(kafka: LocalKafka, group_id: str, protocol: str) -> MakeGroup:
    def make(**config: Any) -> AsyncProducerGroup:
        return AsyncProducerGroup(
            group_id,
            3,
            bootstrap_servers=kafka.bootstrap_servers,
            group_protocol=protocol,
            heartbeat_interval_ms=500,
            **config,
        )

    return make


def test_records_and_restart_points_are_committed_as_one(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    async def produce() -> None:
        async with make() as group:
            assert await group.subscribe() == {0: None, 1: None, 2: None}
            deliveries = [
                await group.send(topic, b"%d" % n, source_partition=0, future=True)
                for n in range(100)
            ]
            first, last = deliveries[0], deliveries[-1]
            assert first is not None
            assert last is not None
            assert (await last).topic == topic
            assert first.done()
            await group.commit_transaction("100")
            await group.send(topic, b"never seen", source_partition=1)
            assert await group.abort_transaction() == {0: "100", 1: None, 2: None}
        async with make() as group:
            assert (await group.subscribe())[0] == "100"
            assert group.progress().source_partitions[0].restart_point == "100"

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"%d" % n for n in range(100)]


def test_several_tasks_send_in_one_transaction(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    async def produce() -> None:
        async with make() as group:
            await group.subscribe()

            async def send(p: int) -> None:
                for n in range(50):
                    await group.send(topic, b"%d:%d" % (p, n), source_partition=p)
                    await asyncio.sleep(0)

            await asyncio.gather(*(send(p) for p in range(3)))
            await group.commit_transaction("50")

    asyncio.run(produce())
    rows = read_committed(kafka, topic)
    for p in range(3):
        assert [row for row in rows if row.startswith(b"%d:" % p)] == [
            b"%d:%d" % (p, n) for n in range(50)
        ]


def test_transactions_end_by_themselves(kafka: LocalKafka, topic: str, make: MakeGroup) -> None:
    async def produce() -> None:
        async with make(commit_records=50) as group:
            await group.subscribe()
            for n in range(500):
                await group.send(topic, b"%d" % n, source_partition=0, restart_point=str(n + 1))
            assert group.restart_points[0] == "500"

    asyncio.run(produce())
    assert len(read_committed(kafka, topic)) == 500


def test_a_cancelled_poll_loses_nothing(topic: str, make: MakeGroup) -> None:
    async def produce() -> None:
        async with make() as first, make() as second:
            await first.subscribe()
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(first.poll(timeout_ms=60_000), 0.2)
            joining = asyncio.ensure_future(second.subscribe())
            revoked: set[int] = set()
            while not revoked:
                try:
                    told = await asyncio.wait_for(first.poll(timeout_ms=5_000), 0.05)
                except asyncio.TimeoutError:
                    continue
                revoked |= told.revoked
            await joining
            while not second.restart_points:
                await second.poll(timeout_ms=100)
            assert set(second.restart_points) == revoked

    asyncio.run(produce())


def test_a_cancelled_poll_tells_of_no_abort_that_its_task_has_heard_of_since(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """The task went back once more, and sent again what was in the open transaction."""

    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            await group.send(topic, b"gone", source_partition=0)
            polling = asyncio.create_task(group.poll(30_000))
            await asyncio.sleep(0.1)
            result, membership = group._polling, group._group._membership
            assert result is not None
            with membership.changed:
                membership.ownership.doom("by the test")
            polling.cancel()
            await asyncio.wait([result])
            assert polling.cancelled()
            assert isinstance(result.exception(), TransactionAbortedError)
            with pytest.raises(TransactionAbortedError):
                await group.send(topic, b"row", source_partition=0)
            await group.send(topic, b"row", source_partition=0)
            await group.poll()
            await group.commit_transaction({0: "1"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"row"]


def test_what_is_refused_is_raised_where_it_is_awaited(topic: str, make: MakeGroup) -> None:
    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            await group.send(topic, b"row", source_partition=0)
            with pytest.raises(OptionError):
                await group.commit_transaction({1: "x"})
            group._group._membership.ownership.doom("said the test")
            with pytest.raises(TransactionAbortedError, match="said the test"):
                await group.commit_transaction("x")
            await group.send(topic, b"row", source_partition=0)
            await group.commit_transaction("x")

    asyncio.run(produce())


def test_no_task_sends_behind_what_was_aborted(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """One of them was told, and what the other had sent before was passed by."""
    rows = 4

    async def produce() -> None:
        half = [asyncio.Event(), asyncio.Event()]
        goes_on = [asyncio.Event(), asyncio.Event()]
        told: list[tuple[int, str]] = []

        async def work(p: int, transaction: AsyncGroupTransaction) -> None:
            for n in range(rows):
                if n == rows // 2:
                    half[p].set()
                    await goes_on[p].wait()
                try:
                    await transaction.send(topic, b"%d:%d" % (p, n), source_partition=p)
                except TransactionAbortedError as error:
                    told.append((p, error.reason))

        async def transact() -> None:
            async with group.transaction() as transaction:
                await asyncio.gather(*(work(p, transaction) for p in range(2)))
                await transaction.commit({0: str(rows), 1: str(rows)})

        async with make() as group:
            await group.subscribe()
            first = asyncio.create_task(transact())
            await asyncio.gather(*(each.wait() for each in half))
            group._group._membership.ownership.doom("said the test")
            assert not await group.poll(), "nobody is told of a handle's abort by a poll"
            goes_on[0].set()
            await asyncio.sleep(0.1)
            async with group.transaction() as second:  # while one of the first still sends
                await second.send(topic, b"0:0", source_partition=0, restart_point="1")
                goes_on[1].set()
                with pytest.raises(TransactionAbortedError, match="said the test"):
                    await first
            assert sorted(told) == [(p, "said the test") for p in (0, 0, 1, 1)]
            assert group.restart_points == {0: "1", 1: None, 2: None}
            with pytest.raises(TransactionAbortedError, match="has been committed"):
                await second.send(topic, b"0:1", source_partition=0)
            for p in goes_on:
                p.set()
            await transact()

    asyncio.run(produce())
    found = read_committed(kafka, topic)
    whole = [b"%d:%d" % (p, n) for p in range(2) for n in range(rows)]
    assert sorted(found) == sorted([b"0:0", *whole])


def test_a_handle_that_nobody_waits_for_is_ended(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            released = threading.Event()
            group._thread.submit(released.wait)

            async def transact() -> None:
                async with group.transaction():
                    pytest.fail("it was cancelled")

            beginning = asyncio.create_task(transact())
            await asyncio.sleep(0.05)
            beginning.cancel()
            with pytest.raises(asyncio.CancelledError):
                await beginning
            released.set()
            await group.send(topic, b"row", source_partition=0)
            await group.commit_transaction({0: "1"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"row"]


def test_an_abort_that_nobody_heard_of_is_told_again(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """Its next records would follow a gap."""

    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            await group.send(topic, b"gone", source_partition=0)
            released = threading.Event()
            group._thread.submit(released.wait)
            group._group._membership.ownership.doom("said the test")
            sending = asyncio.create_task(group.send(topic, b"gone, too", source_partition=0))
            await asyncio.sleep(0.05)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            released.set()
            with pytest.raises(TransactionAbortedError, match="said the test"):
                await group.commit_transaction({0: "2"})
            await group.send(topic, b"row", source_partition=0)
            await group.commit_transaction({0: "1"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"row"]


def test_arrow_data(kafka: LocalKafka, topic: str, make: MakeGroup) -> None:
    rows = pa.table({"value": [b"%d" % n for n in range(1_000)]})

    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            await group.send_batch(topic, rows, source_partition=0, restart_point="1000")
            await group.commit_transaction()
            async with group.transaction() as transaction:
                await transaction.send_batch(topic, rows, source_partition=1, restart_point="1")
            assert group.restart_points == {0: "1000", 1: "1", 2: None}

    asyncio.run(produce())
    assert len(read_committed(kafka, topic)) == 2_000


def test_what_is_sent_in_tasks_of_its_own_is_the_callers(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """``wait_for`` and ``gather`` run a call in a task that ends with it."""

    async def produce() -> None:
        async with make() as group:
            await group.subscribe()

            def send(n: int) -> Any:
                return group.send(topic, b"%d" % n, source_partition=0)

            await asyncio.wait_for(send(0), 60)
            await asyncio.gather(send(1), send(2))
            group._group._membership.ownership.doom("said the test")
            refused = await asyncio.gather(send(3), send(4), send(5), return_exceptions=True)
            assert [type(each) for each in refused] == [TransactionAbortedError] * 3
            await asyncio.gather(*(send(n) for n in range(4)))
            await group.commit_transaction({0: "4"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"0", b"1", b"2", b"3"]


def test_no_record_overtakes_one_that_waits_for_the_thread(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            await group.send(topic, b"0", source_partition=0)
            lock, taken, given = group._group._transactions.lock, *_events(2)

            def hold() -> None:
                with lock:
                    taken.set()
                    given.wait()

            other = threading.Thread(target=hold)
            other.start()
            taken.wait()
            free = threading.Event()
            group._thread.submit(free.wait)
            first = asyncio.create_task(group.send(topic, b"1", source_partition=0))
            await asyncio.sleep(0)
            given.set()
            other.join()
            second = asyncio.create_task(group.send(topic, b"2", source_partition=0))
            await asyncio.sleep(0)
            free.set()
            await asyncio.gather(first, second)
            await group.commit_transaction({0: "3"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"0", b"1", b"2"]


def _events(count: int) -> list[threading.Event]:
    return [threading.Event() for _ in range(count)]


def test_records_arrive_in_the_order_of_the_calls(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    async def produce() -> None:
        async with make() as group:
            await group.subscribe()
            sends = []
            for n in range(2_000):  # the first of them begin a transaction meanwhile
                send = group.send(topic, b"%d" % n, source_partition=0)
                sends.append(asyncio.create_task(send))
                if n % 10 == 0:
                    await asyncio.sleep(0)
            await asyncio.gather(*sends)
            await group.commit_transaction({0: "2000"})

    asyncio.run(produce())
    assert read_committed(kafka, topic) == [b"%d" % n for n in range(2_000)]


def test_closing_waits_for_no_broker_that_does_not_answer(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """A commit that was under way kept it for the timeout of its transaction, and longer."""

    async def produce() -> None:
        group = make(commit_interval_ms=50_000)
        await group.subscribe()
        await group.send(topic, b"row", source_partition=0, restart_point="1")
        kafka.suspend()
        try:
            committing = asyncio.create_task(group.commit_transaction())
            await asyncio.sleep(0)
            await asyncio.wait_for(group.close(timeout_ms=3_000), 30)
            with pytest.raises(TransactionAbortedError):
                await asyncio.wait_for(committing, 30)
        finally:
            kafka.resume()

    asyncio.run(produce())


def test_closing_ends_a_send_that_waits_for_the_metadata_of_its_topic(
    kafka: LocalKafka, topic: str, make: MakeGroup
) -> None:
    """It went on for ``max_block_ms``, a minute, and the group was left only then."""

    async def produce() -> None:
        group = make()
        await group.subscribe()
        kafka.suspend()
        try:
            sending = asyncio.create_task(group.send(topic, b"row", source_partition=0))
            await asyncio.sleep(0)
            await asyncio.wait_for(group.close(timeout_ms=3_000), 30)
            with pytest.raises(TransactionAbortedError):
                await asyncio.wait_for(sending, 20)
        finally:
            kafka.resume()

    asyncio.run(produce())


def test_closing_takes_no_longer_than_it_may(topic: str, make: MakeGroup) -> None:
    """It took a second more where a call before it did not end."""

    async def close() -> float:
        group, released = make(), threading.Event()
        await group.subscribe()
        group._thread.submit(released.wait)
        began = time.monotonic()
        await group.close(timeout_ms=1_000)
        took_s = time.monotonic() - began
        released.set()
        return took_s

    assert asyncio.run(close()) < 1.7
