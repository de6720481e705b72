"""``startingOffsets=latest`` counts from when a query starts, whenever it gets its partitions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.source import query_run
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.batch_planner import NO_LIMIT
from pyspark_kafka_rebalance.source.spark.read_limits import ReadMaxRows
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader
from pyspark_kafka_rebalance.testing import LocalKafka

LIMIT = ReadMaxRows(NO_LIMIT)


@pytest.fixture
def reader(
    kafka: LocalKafka,
    topic: str,
    group_id: str,
    protocol: str,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Any]:
    """Make the planner's reader of a query, as Spark makes one for each run; stopped at the end."""
    monkeypatch.setattr(query_run, "stop_on_sigterm", lambda end: None)
    made: list[KafkaDeferredStreamReader] = []

    def make() -> KafkaDeferredStreamReader:
        options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "kafka.group.protocol": protocol,
            "subscribe": topic,
            "startingOffsets": "latest",
            "readers": "1",
        }
        parsed = SourceOptions.parse(options, default_readers=1)
        made.append(KafkaDeferredStreamReader(parsed.for_stream()))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.mark.parametrize("restarts", [False, True])
def test_records_that_come_before_the_query_has_a_partition_are_read(
    kafka: LocalKafka, topic: str, group_id: str, protocol: str, reader: Any, restarts: bool
) -> None:
    """Another consumer has the partition when the query starts, and never commits.

    Also if the query is restarted before it gets the partition, and finds no more in its checkpoint
    than a batch without records.
    """
    kafka.produce(topic, [b"before"] * 3)
    with DeferredRevokeConsumer(
        topic,
        group_id=group_id,
        group_protocol=protocol,
        bootstrap_servers=kafka.bootstrap_servers,
    ) as other:
        while not other.assignment():
            other.poll(timeout_ms=100)
        query = reader()
        logged = json.loads(json.dumps(query.latestOffset(query.initialOffset(), LIMIT)))
        assert parse_offset(logged).first_ends == {TopicPartition(topic, 0): 3}
        kafka.produce(topic, [b"since"] * 5)
        if restarts:
            query.stop()
            query = reader()
            kafka.produce(topic, [b"while it was down"] * 2)
    end = logged
    kafka.produce(topic, [b"a last one, so that there is a batch in any case"])
    while not parse_offset(end).ranges:
        end = query.latestOffset(end, LIMIT)
    (read,) = parse_offset(end).ranges.values()
    assert (read.start, read.end) == (3, 11 if restarts else 9)
