"""AsyncProducerGroup on a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from producer_groups import read_committed

from pyspark_kafka_rebalance import AsyncProducerGroup, OptionError, TransactionAbortedError
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
                await group.send(topic, b"%d" % n, source_partition=0) for n in range(100)
            ]
            metadata = await deliveries[-1]
            assert metadata.topic == topic
            assert deliveries[0].done()
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
