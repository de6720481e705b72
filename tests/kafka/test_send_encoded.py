"""`send_encoded` on real brokers: batches that somebody else has encoded."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest
from producer_groups import read_committed
from written import ENDS_SOON, VERSIONS, producer_of

from pyspark_kafka_rebalance import TransactionAbortedError
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture(scope="module", params=VERSIONS)
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=ENDS_SOON) as local:
        yield local


def rows_of(values: list[bytes], partition: int) -> pa.RecordBatch:
    return pa.record_batch({"value": values, "partition": [partition] * len(values)})


def encoded(
    topic: str,
    values: list[bytes],
    partition: int = 0,
    batch_bytes: int = 1_000_000,
    codec: int = 0,
) -> list[EncodedBatch]:
    """As they arrive from another process."""
    settings = EncoderSettings(batch_bytes=batch_bytes, max_request_bytes=2**28, codec=codec)
    batches = ArrowEncoder(topic, 2, settings).encode(rows_of(values, partition))
    received: list[EncodedBatch] = pickle.loads(pickle.dumps(batches, 5))
    return received


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%06d" % n for n in range(start, end)]


def test_encoded_batches_keep_their_order_among_rows_and_records(
    cluster: LocalKafka, topic_name: str
) -> None:
    cluster.create_topic(topic_name, 2)
    with producer_of(cluster, topic_name) as producer:
        with producer.transaction() as transaction:
            transaction.send(topic_name, b"first", partition=0)
            transaction.send_encoded(topic_name, encoded(topic_name, numbers(0, 500), 0, 300))
            transaction.send_batch(topic_name, rows_of([b"rows"], 0))
            transaction.send_encoded(topic_name, encoded(topic_name, numbers(500, 600), 0, codec=4))
            transaction.send_encoded(topic_name, encoded(topic_name, [b"other"], 1))
            transaction.send(topic_name, b"last", partition=0)
        aborted = producer.transaction()
        aborted.send_encoded(topic_name, encoded(topic_name, [b"never"]))
        aborted.abort()
        with pytest.raises(TransactionAbortedError):
            aborted.send_encoded(topic_name, encoded(topic_name, [b"too late"]))
    expected = [b"first", *numbers(0, 500), b"rows", *numbers(500, 600), b"last"]
    found = read_committed(cluster, topic_name)
    found.remove(b"other")  # of the other partition
    assert found == expected


def test_more_than_the_buffer_is_sent_as_room_allows(cluster: LocalKafka, topic_name: str) -> None:
    cluster.create_topic(topic_name, 2)
    values = numbers(0, 4_000)
    held = []

    def batches() -> Iterator[EncodedBatch]:
        for batch in encoded(topic_name, values, batch_bytes=1_000):
            held.append(producer._delivery.used)
            yield batch

    with (
        producer_of(cluster, topic_name, buffer_memory=10_000) as producer,
        producer.transaction() as transaction,
    ):
        transaction.send_encoded(topic_name, batches())
    assert read_committed(cluster, topic_name) == values
    assert len(held) > 20
    assert max(held) < 12_000


@pytest.mark.parametrize("codec", [0, 3])
def test_a_batch_that_is_too_large_for_the_topic_is_split(
    cluster: LocalKafka, topic_name: str, codec: int
) -> None:
    cluster.create_topic(topic_name, 2, config={"max.message.bytes": "2000"})
    values = [b"%06d" % (n * 7919 % 1_000_000) for n in range(2_000)]
    with producer_of(cluster, topic_name) as producer, producer.transaction() as transaction:
        transaction.send_encoded(topic_name, encoded(topic_name, values, codec=codec))
    assert read_committed(cluster, topic_name) == values


def test_outside_of_transactions_they_are_idempotent(cluster: LocalKafka, topic_name: str) -> None:
    cluster.create_topic(topic_name, 2)
    with producer_of(cluster) as producer:
        assert producer.topic_partitions(topic_name) == (2, [0, 1])
        producer.send_encoded(topic_name, encoded(topic_name, numbers(0, 100), 0, 500))
        producer.flush()
        assert read_committed(cluster, topic_name) == numbers(0, 100)
    with producer_of(cluster, topic_name) as producer, pytest.raises(RuntimeError, match="alone"):
        producer.send_encoded(topic_name, [])
