"""OpenTelemetry metrics of clients on a real broker: a hand-over, a commit, a lag, transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from group_members import MakeMember, poll_until
from kafka.structs import TopicPartition
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from producer_groups import PATIENCE_S, owns, producers_of
from producer_groups import poll_until as poll_producers_until

from pyspark_kafka_rebalance import AsyncDeferredRevokeConsumer
from pyspark_kafka_rebalance.metrics import observe
from pyspark_kafka_rebalance.testing import LocalKafka


class Collector:
    """Collects metrics in memory, as a test wants to compare them."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader])

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def by(self, name: str, attribute: str) -> dict[str, float]:
        """Values, or counts of a histogram, by one attribute; without those that are 0."""
        found: dict[str, float] = {}
        for point in self.points(name):
            key = str(point.attributes.get(attribute))
            found[key] = found.get(key, 0) + getattr(point, "value", getattr(point, "count", 0))
        return {key: value for key, value in found.items() if value}


PARTITION = "messaging.destination.partition.id"
CLIENT = "messaging.client.id"


@pytest.fixture
def metrics() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.provider.shutdown()


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_two_consumers_share_a_topic_and_commit(
    kafka: LocalKafka, topic_name: str, consumers: MakeMember, metrics: Collector
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x" * 100] * 20)
    first = consumers(topic_name, client_id="first")
    observe(first, metrics.provider)
    with pytest.raises(ValueError, match="observed already"):
        observe(first, metrics.provider)
    results = poll_until(
        lambda: metrics.by("messaging.client.consumed.messages", PARTITION) == {"0": 10, "1": 10},
        first,
    )
    assert metrics.by("kafka_rebalance.lag.offsets", PARTITION) == {}, "nothing is left"
    assert metrics.by("kafka_rebalance.position", PARTITION) == {"0": 10, "1": 10}
    assert metrics.by("kafka_rebalance.hand_over.duration", CLIENT) == {"first": 2}
    assert min(metrics.by("kafka_rebalance.fetched", PARTITION).values()) > 1_000
    assert metrics.points("kafka_rebalance.committed.offset") == []
    first.commit_processed({TopicPartition(topic_name, p): 10 for p in range(2)})
    assert first.drain(PATIENCE_S * 1000)
    assert metrics.by("kafka_rebalance.committed.offset", PARTITION) == {"0": 10, "1": 10}
    assert len(metrics.points("kafka_rebalance.committed.age")) == 2
    assert metrics.by("messaging.client.operation.duration", "messaging.operation.name").keys() == {
        "commit"
    }

    second = consumers(topic_name, client_id="second")
    observation = observe(second, metrics.provider)
    poll_until(
        lambda: (
            metrics.by("kafka_rebalance.assigned_partitions", CLIENT) == {"first": 1, "second": 1}
        ),
        first,
        second,
        results=results,
    )
    assert metrics.by("kafka_rebalance.revoke.duration", CLIENT) == {"first": 1}
    assert metrics.by("kafka_rebalance.revoking_partitions", CLIENT) == {}
    assert metrics.by("kafka_rebalance.rebalances", CLIENT)["first"] >= 2
    assert metrics.by("kafka_rebalance.lost_partitions", CLIENT) == {}

    # A poll takes 5 of the 30 records: the rest, as far as the fetch has seen it, is the lag.
    # The first answer may come before all are written.
    kept = sorted(first.assignment())[0]
    kafka.produce(topic_name, [b"x"] * 30, partition=kept.partition)
    deadline = time.monotonic() + PATIENCE_S
    while (lag := metrics.by("kafka_rebalance.lag.offsets", CLIENT).get("first")) is None:
        assert time.monotonic() < deadline
        first.poll(timeout_ms=100, max_records=5)
    end = first.highwater(kept)
    assert end is not None
    assert 15 < end <= 40
    assert lag == end - first.position(kept)
    (waits_s,) = metrics.by("kafka_rebalance.lag.time", CLIENT).values()
    assert 0 < waits_s < PATIENCE_S

    assert metrics.points("kafka_rebalance.decode.rows") == [], "kafka-python has decoded"
    left = 40 - first.position(kept)
    deadline = time.monotonic() + PATIENCE_S
    while first.position(kept) < 40:
        assert time.monotonic() < deadline
        first.poll_arrow(timeout_ms=100, max_records=5)
    assert metrics.by("kafka_rebalance.decode.rows", CLIENT) == {"first": left}
    assert 0 < metrics.by("kafka_rebalance.decode.time", CLIENT)["first"] < PATIENCE_S

    second.close()
    assert observation.closed
    assert metrics.by("kafka_rebalance.assigned_partitions", CLIENT) == {"first": 1}


@pytest.mark.parametrize("protocol", ["consumer"], indirect=True)
def test_what_is_not_drained_by_the_deadline_is_counted_as_lost(
    kafka: LocalKafka, topic_name: str, consumers: MakeMember, metrics: Collector
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    first = consumers(topic_name, revoke_timeout_ms=1_500)
    observe(first, metrics.provider)
    poll_until(lambda: len(first.assignment()) == 2, first)
    second = consumers(topic_name)
    ages: list[float] = []

    def lost() -> bool:
        ages.extend(point.value for point in metrics.points("kafka_rebalance.revoke.age"))
        return metrics.by("kafka_rebalance.lost_partitions", "kafka_rebalance.loss.reason") == {
            "undrained": 1
        }

    poll_until(lost, first, second, hold=True)
    assert ages
    assert ages == sorted(ages)


def test_an_asyncio_consumer_may_be_observed_before_it_is_started(
    kafka: LocalKafka, topic: str, group_id: str, metrics: Collector
) -> None:
    kafka.produce(topic, [b"x"] * 5)

    async def read() -> bool:
        consumer = AsyncDeferredRevokeConsumer(
            topic,
            group_id=group_id,
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        observation = observe(consumer, metrics.provider)
        assert metrics.points("kafka_rebalance.assigned_partitions") == []
        async with consumer:
            read = 0
            async for _ in consumer:
                read += 1
                if read == 5:
                    break
            assert metrics.by("kafka_rebalance.assigned_partitions", PARTITION) == {"None": 1}
        return observation.closed

    assert asyncio.run(read())
    assert metrics.by("messaging.client.consumed.messages", PARTITION) == {"0": 5}


def test_a_producer_groups_transactions_and_restart_points(
    kafka: LocalKafka, topic: str, group_id: str, metrics: Collector
) -> None:
    with producers_of(kafka, group_id, "classic", 25_000) as producers:
        group = producers(2)
        observation = observe(group, metrics.provider)
        group.subscribe()
        poll_producers_until(owns(group, 0, 1), group)
        assert metrics.by("kafka_rebalance.assigned_partitions", PARTITION) == {"None": 2}
        assert metrics.points("kafka_rebalance.restart_point.age") == []
        for _ in range(3):
            group.send(topic, b"row", source_partition=1)
        group.commit_transaction("here")
        group.send(topic, b"row", source_partition=0)
        group.abort_transaction()
        group.send(topic, b"row", source_partition=0)
        group.close()  # which aborts what is open
    assert observation.closed
    assert metrics.by("messaging.client.sent.messages", "error.type") == {"None": 3, "aborted": 2}
    assert metrics.by(
        "kafka_rebalance.transaction.duration", "kafka_rebalance.transaction.outcome"
    ) == {"committed": 1, "aborted": 2}
    assert metrics.by(
        "kafka_rebalance.producer.committed_records", "kafka_rebalance.source_partition.id"
    ) == {"1": 3}
    operations = metrics.by("messaging.client.operation.duration", "messaging.operation.name")
    assert operations["commit_transaction"] == 1
    assert metrics.by("kafka_rebalance.rebalances", CLIENT)
