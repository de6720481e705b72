"""The first calls of a process that was suspended beyond its session, before its I/O loop runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kafka.structs import OffsetAndMetadata, TopicPartition
from model_log import PartitionLog
from simulated_kafka import TOPIC, Broker, World

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining

P = TopicPartition(TOPIC, 0)
SESSION_S = 30.0

Call = Callable[[DeferredRevokeConsumer], Any]


def commit_async(consumer: DeferredRevokeConsumer) -> None:
    future = consumer.commit_async({P: OffsetAndMetadata(1, "", -1)})
    if future.failed():
        raise future.exception


CALLS: dict[str, Call] = {
    "processed": lambda consumer: consumer.processed(P, 0),
    "commit_processed": lambda consumer: consumer.commit_processed({P: 1}),
    "commit_remaining": lambda consumer: consumer.commit_remaining({P: Remaining(1)}),
    "commit": lambda consumer: consumer.commit({P: OffsetAndMetadata(1, "", -1)}),
    "commit_async": commit_async,
}


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    with world.is_real():
        yield world
        for net in list(world.nets):
            net.die()


@pytest.fixture
def broker(world: World) -> Broker:
    broker = Broker(world, {P: PartitionLog()}, SESSION_S, 60)
    broker.logs[P].produce(5)
    return broker


@pytest.fixture
def consumer(broker: Broker) -> DeferredRevokeConsumer:
    """It was handed out five records."""
    consumer = DeferredRevokeConsumer(
        TOPIC,
        group_id="g",
        group_protocol="consumer",
        bootstrap_servers="broker:9092",
        kafka_client=broker.client,
        enable_incremental_fetch_sessions=False,
        auto_offset_reset="earliest",
    )
    found: list[int] = []
    while len(found) < 5:
        found += [r.offset for records in consumer.poll(100).values() for r in records]
    return consumer


@pytest.mark.parametrize("call", CALLS)
def test_what_is_processed_after_the_session_is_refused(
    world: World, broker: Broker, consumer: DeferredRevokeConsumer, call: str
) -> None:
    """`processed` accepted it: the worker took its record for done, which another member had."""
    world.now += SESSION_S
    for _ in range(2):
        with pytest.raises(PartitionsLostError, match="t-0"):
            CALLS[call](consumer)
    assert consumer.poll_with_rebalance(timeout_ms=100).lost == {P}
    assert broker.committed == {}


@pytest.mark.parametrize("call", CALLS)
def test_what_is_processed_within_the_session_counts(
    world: World, broker: Broker, consumer: DeferredRevokeConsumer, call: str
) -> None:
    world.now += SESSION_S / 2
    CALLS[call](consumer)
    result = consumer.poll_with_rebalance(timeout_ms=100)
    assert result.lost == frozenset()
    assert broker.committed == {P: 1}


def test_a_membership_that_began_in_the_meantime_is_not_lost(
    world: World, consumer: DeferredRevokeConsumer
) -> None:
    """A call that finds the session over may be overtaken by the loss and by the next join."""
    membership = consumer._membership
    lease = membership.lease
    before = lease.clock()
    lease.clock = iter([before + SESSION_S, before]).__next__  # renewed after the first look
    membership.lose_if_expired()
    assert membership.record.member.joined
    assert not membership.loss_waits()
