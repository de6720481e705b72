"""Batches of our encoder on a broker, read by Java's clients and kafka-python's."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaConsumer
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest
from kafka.structs import TopicPartition
from written import PATIENCE_S

from pyspark_kafka_rebalance.fetch.connections import ClusterConnections
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.batch_header import HEADER_SIZE, Stamp, stamped_header
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch
from pyspark_kafka_rebalance.produce.encoder.partitioner import partition_of_key
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import KAFKA_TOOLS, broker_jars, single_jars

PARTITIONS = 3
NOW_MS = 1_700_000_000_123
CODECS = range(5)
ROWS = 3_000  # of each codec: more than one block of lz4 and snappy

OUT_OF_ORDER_SEQUENCE = 45
COORDINATOR_LOAD_IN_PROGRESS = 14
NOT_LEADER_OR_FOLLOWER = 6
NOBODY = Stamp()


@pytest.fixture
def connections(kafka: LocalKafka) -> Iterator[ClusterConnections]:
    opened = ClusterConnections({"bootstrap_servers": kafka.bootstrap_servers}, 2**20)
    opened.bootstrap(30)
    yield opened
    opened.close()


def produce(
    connections: ClusterConnections, topic: str, batch: EncodedBatch, stamp: Stamp = NOBODY
) -> tuple[int, int]:
    """Send a batch and return the error code and the base offset.

    A leader that is elected may not know of it yet.
    """
    records = stamped_header(batch.data, stamp) + batch.data[HEADER_SIZE:]
    topics = ProduceRequest.TopicProduceData
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[
            topics(
                name=topic,
                partition_data=[
                    topics.PartitionProduceData(index=batch.partition, records=records)
                ],
            )
        ],
        min_version=3,
        max_version=9,
    )
    deadline = time.monotonic() + PATIENCE_S
    while True:
        (response,) = connections.send(request).wait().responses[0].partition_responses
        if response.error_code != NOT_LEADER_OR_FOLLOWER or time.monotonic() > deadline:
            return response.error_code, response.base_offset
        time.sleep(0.05)


def table_of(codec: int) -> pa.Table:
    """With nulls in each column, and all that Java may read otherwise than we write."""
    numbers = range(ROWS)
    return pa.table(
        {
            "key": [None if n % 7 == 0 else f"k{codec}-{n}" for n in numbers],
            "value": [None if n % 11 == 0 else f"v{codec}-{n}-{'x' * (n % 150)}" for n in numbers],
            "timestamp": pa.array([NOW_MS + n * n % 999 for n in numbers], pa.timestamp("ms")),
            "headers": pa.array(
                [[{"key": "n\u00e4", "value": b"%d" % n}] if n % 5 == 0 else None for n in numbers],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )


def test_java_and_kafka_python_read_what_was_encoded(
    kafka: LocalKafka, topic_name: str, connections: ClusterConnections
) -> None:
    kafka.create_topic(topic_name, partitions=PARTITIONS)
    offsets = [0] * PARTITIONS
    expected = []
    for codec in CODECS:
        encoder = ArrowEncoder(
            topic_name, PARTITIONS, EncoderSettings(batch_bytes=100_000, codec=codec)
        )
        batches = encoder.encode(table_of(codec))
        assert {batch.data[22] & 7 for batch in batches} == {codec}
        for batch in batches:
            assert produce(connections, topic_name, batch) == (0, offsets[batch.partition])
            offsets[batch.partition] += batch.records
        expected += [
            (
                row["key"],
                row["value"],
                int(row["timestamp"].timestamp() * 1_000 + 0.5),
                [(header["key"], header["value"]) for header in row["headers"] or []],
            )
            for row in table_of(codec).to_pylist()
        ]
    by_python = rows_of_kafka_python(kafka, topic_name, sum(offsets))
    assert sorted((row[1:] for row in by_python), key=repr) == sorted(expected, key=repr)
    assert all(
        row[0] == partition_of_key(row[1].encode(), PARTITIONS) for row in by_python if row[1]
    )
    assert sorted(rows_of_java(kafka, topic_name, sum(offsets))) == sorted(
        as_java_prints(row) for row in by_python
    )
    dumped = dump(kafka, topic_name).lower()
    assert "isvalid: true" in dumped
    assert "isvalid: false" not in dumped
    for name in ("none", "gzip", "snappy", "lz4", "zstd"):
        assert f"compresscodec: {name}" in dumped


def rows_of_kafka_python(kafka: LocalKafka, topic: str, count: int) -> list[Any]:
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        auto_offset_reset="earliest",
        consumer_timeout_ms=10_000,
    )
    consumer.assign([TopicPartition(topic, n) for n in range(PARTITIONS)])
    rows = []
    for record in consumer:
        key, value = (None if one is None else one.decode() for one in (record.key, record.value))
        rows.append((record.partition, key, value, record.timestamp, list(record.headers)))
        if len(rows) == count:
            break
    consumer.close()
    return rows


def java(main: str, *arguments: str) -> str:
    (tools,) = single_jars([KAFKA_TOOLS])
    command = [
        *(str(find_java().executable), "-Xmx256m", "-Dfile.encoding=UTF-8"),
        *("-Dstdout.encoding=UTF-8", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
        *("-cp", f"{tools}{os.pathsep}{broker_jars()}/*", main, *arguments),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of_java(kafka: LocalKafka, topic: str, rows: int) -> list[str]:
    prints = [f"print.{what}=true" for what in ("partition", "key", "headers", "timestamp")]
    printed = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", kafka.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--max-messages", str(rows), "--timeout-ms", "30000"),
        *(argument for one in prints for argument in ("--formatter-property", one)),
    )
    return printed.splitlines()


def as_java_prints(row: tuple[int, str | None, str | None, int, list[Any]]) -> str:
    partition, key, value, timestamp_ms, headers = row
    joined = ",".join(f"{name}:{content.decode()}" for name, content in headers)
    return "\t".join(
        [
            f"CreateTime:{timestamp_ms}",
            f"Partition:{partition}",
            joined or "NO_HEADERS",
            "null" if key is None else key,
            "null" if value is None else value,
        ]
    )


def dump(kafka: LocalKafka, topic: str) -> str:
    """What Kafka's own tool says of the segments."""
    segments = [str(path) for path in kafka.folder.rglob(f"{topic}-*/*.log")]
    assert segments
    return java(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--deep-iteration", "--files", ",".join(segments)),
    )


def test_a_stamp_is_what_the_broker_goes_by(
    kafka: LocalKafka, topic_name: str, connections: ClusterConnections
) -> None:
    """Sequences: in order, repeated, with a gap; one batch that is built once is sent by two."""
    kafka.create_topic(topic_name)
    first, second = (producer_id(connections) for _ in range(2))
    builder = BatchBuilder(topic_name, 0, EncoderSettings(codec=3))
    for n in range(10):
        builder.append(None, b"value %d" % n, None, NOW_MS)
    batch = builder.close()
    assert produce(connections, topic_name, batch, Stamp(*first, 0)) == (0, 0)
    assert produce(connections, topic_name, batch, Stamp(*first, 10)) == (0, 10)
    assert produce(connections, topic_name, batch, Stamp(*first, 10)) == (0, 10), "a retry"
    error, _ = produce(connections, topic_name, batch, Stamp(*first, 30))
    assert error == OUT_OF_ORDER_SEQUENCE
    assert produce(connections, topic_name, batch, Stamp(*second, 0)) == (0, 20)
    assert produce(connections, topic_name, batch) == (0, 30)
    assert produce(connections, topic_name, batch) == (0, 40)


def producer_id(connections: ClusterConnections) -> tuple[int, int]:
    """From a broker that may still have to get its first ids."""
    request = InitProducerIdRequest(
        transactional_id=None, transaction_timeout_ms=60_000, min_version=0, max_version=4
    )
    for _ in range(100):
        answer = connections.send(request).wait()
        if answer.error_code != COORDINATOR_LOAD_IN_PROGRESS:
            break
        time.sleep(0.1)
    assert answer.error_code == 0
    return answer.producer_id, answer.producer_epoch
