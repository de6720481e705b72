"""`Producer` without transactions on a real broker: order, bounds, and what cannot be delivered."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import nullcontext
from typing import Any

import numpy
import pyarrow as pa
import pytest
from flaky_network import FlakyNetwork
from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.producer import ProduceRequest
from kafka.structs import TopicPartition
from producer_groups import read_committed
from written import PATIENCE_MS, PATIENCE_S, producer_of

from pyspark_kafka_rebalance.errors import KafkaRebalanceError, RecordTooLargeError
from pyspark_kafka_rebalance.produce.encoder.partitioner import partition_of_key
from pyspark_kafka_rebalance.produce.producer import Producer, RecordPosition
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture
def rows(kafka: LocalKafka, topic_name: str) -> str:
    kafka.create_topic(topic_name, 2)
    return topic_name


@pytest.fixture
def producer(kafka: LocalKafka) -> Iterator[Producer]:
    with producer_of(kafka) as made:
        yield made


def test_records_are_where_their_keys_say(kafka: LocalKafka, rows: str, producer: Producer) -> None:
    sent = [producer.send(rows, b"v%d" % n, key=b"k%d" % n, future=True) for n in range(20)]
    producer.flush(PATIENCE_MS)
    for n, future in enumerate(sent):
        assert future is not None
        topic, partition, _ = future.result(PATIENCE_S)
        assert (topic, partition) == (rows, partition_of_key(b"k%d" % n, 2))
    positions = [future.result() for future in sent if future is not None]
    assert len(set(positions)) == 20


def test_records_and_rows_keep_the_order_of_the_calls(
    kafka: LocalKafka, rows: str, producer: Producer
) -> None:
    for n in range(0, 40, 4):
        producer.send(rows, b"%d" % n, partition=1)
        producer.send(rows, b"%d" % (n + 1), partition=1)
        table = pa.table({"value": [b"%d" % (n + 2), b"%d" % (n + 3)], "partition": [1, 1]})
        producer.send_batch(rows, table)
    producer.flush(PATIENCE_MS)
    assert read_committed(kafka, rows) == [b"%d" % n for n in range(40)]


def test_memory_is_bounded(kafka: LocalKafka, rows: str, network: FlakyNetwork) -> None:
    """A sender waits while nothing is acknowledged, and goes on when it is."""
    bound = 100_000
    with producer_of(
        kafka, buffer_memory=bound, batch_size=10_000, proxy_url=network.url
    ) as producer:
        producer.send(rows, b"first", future=True).result(PATIENCE_S)  # type: ignore[union-attr]
        network.stall()
        sent = 0

        def send() -> None:
            nonlocal sent
            for _ in range(500):
                producer.send(rows, b"x" * 1_000)
                sent += 1

        sending = threading.Thread(target=send)
        sending.start()
        sending.join(2)
        assert sending.is_alive()
        assert 50 <= sent <= 110
        assert producer._delivery.used <= bound + 2_000
        network.mend()
        sending.join(PATIENCE_S)
        producer.flush(PATIENCE_MS)
        assert producer._delivery.used == 0
    assert len(read_committed(kafka, rows)) == 501


def test_a_sender_does_not_wait_for_ever(
    kafka: LocalKafka, rows: str, network: FlakyNetwork
) -> None:
    config = {"buffer_memory": 1_000, "max_block_ms": 300, "delivery_timeout_ms": 2_000}
    with producer_of(kafka, proxy_url=network.url, **config) as producer:
        producer.send(rows, b"first", future=True).result(PATIENCE_S)  # type: ignore[union-attr]
        network.stall()
        producer.send(rows, b"x" * 2_000)
        with pytest.raises(kafka_errors.KafkaTimeoutError, match="buffer_memory"):
            producer.send(rows, b"y")
        with pytest.raises(kafka_errors.RequestTimedOutError):
            producer.flush(PATIENCE_MS)
        network.mend()


def test_what_a_broker_refuses_fails_alone(kafka: LocalKafka, topic_name: str) -> None:
    """Nobody asked for a future: flush says so."""
    kafka.create_topic(topic_name, config={"max.message.bytes": 1_000})
    with producer_of(kafka) as producer:
        producer.send(topic_name, b"a")
        producer.flush(PATIENCE_MS)
        producer.send(topic_name, b"x" * 5_000)
        producer.send(topic_name, b"b")
        with pytest.raises(kafka_errors.MessageSizeTooLargeError, match=topic_name):
            producer.flush(PATIENCE_MS)
        producer.send(topic_name, b"c")
        producer.flush(PATIENCE_MS)
        with pytest.raises(RecordTooLargeError):
            producer.send(topic_name, b"x" * 2_000_000)
    assert read_committed(kafka, topic_name)[-1] == b"c"


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_batches_that_are_too_large_for_their_topic_are_sent_in_parts(
    kafka: LocalKafka, topic_name: str, codec: str | None
) -> None:
    """KIP-126. KAFKA-8350: Java's split them to the size that they had, again and again."""
    kafka.create_topic(topic_name, config={"max.message.bytes": 2_000})
    values = [b"%d:" % n + random.Random(n).randbytes(150) for n in range(300)]
    with producer_of(kafka, compression_type=codec, linger_ms=200) as producer:
        sent = [producer.send(topic_name, value, future=True) for value in values]
        producer.flush(PATIENCE_MS)
        rows = [b"%d" % n * 40 for n in range(500)]
        producer.send_batch(topic_name, pa.table({"value": rows}))
        producer.flush(PATIENCE_MS)
        assert producer._delivery.used == 0
    offsets = [future.result(PATIENCE_S).offset for future in sent if future is not None]
    assert offsets == list(range(300))
    assert read_committed(kafka, topic_name) == values + rows


def test_a_record_that_is_too_large_among_others_fails_alone(
    kafka: LocalKafka, topic_name: str
) -> None:
    kafka.create_topic(topic_name, config={"max.message.bytes": 1_000})
    with producer_of(kafka, linger_ms=500) as producer:
        for n in range(20):
            producer.send(topic_name, b"%d" % n)
            if n == 11:
                large = producer.send(topic_name, b"x" * 5_000, future=True)
        with pytest.raises(
            kafka_errors.MessageSizeTooLargeError,
            match=f"a record for {topic_name}-0 is larger than the topic's max.message.bytes",
        ):
            producer.flush(PATIENCE_MS)
        assert large is not None
        assert isinstance(large.exception(), kafka_errors.MessageSizeTooLargeError)
        producer.flush(PATIENCE_MS)
    assert read_committed(kafka, topic_name) == [b"%d" % n for n in range(20)]


def test_a_topic_that_is_not_there(kafka: LocalKafka, topic_name: str) -> None:
    with (
        producer_of(kafka, max_block_ms=500) as producer,
        pytest.raises(kafka_errors.KafkaTimeoutError, match=f"metadata of topic {topic_name}"),
    ):
        producer.send(topic_name, b"a")


def test_a_partition_that_is_not_there(rows: str, producer: Producer) -> None:
    with pytest.raises(ValueError, match="no partition 2"):
        producer.send(rows, b"a", partition=2)
    with pytest.raises(ValueError, match="no partition 5"):
        producer.send_batch(rows, pa.table({"value": [b"a"], "partition": [5]}))


def test_a_lost_answer_to_records(kafka: LocalKafka, rows: str, network: FlakyNetwork) -> None:
    with producer_of(kafka, proxy_url=network.url) as producer:
        producer.send(rows, b"a", partition=0)
        producer.flush(PATIENCE_MS)
        held = network.stop_at(ProduceRequest, answer=True)
        for n in range(4):
            producer.send(rows, b"%d" % n, partition=0)
        flushing = threading.Thread(target=producer.flush, args=[PATIENCE_MS])
        flushing.start()
        assert held.wait(PATIENCE_S)
        network.cut()
        network.mend()
        flushing.join(PATIENCE_S)
        assert not flushing.is_alive()
    assert read_committed(kafka, rows) == [b"a", b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(kafka: LocalKafka, rows: str, codec: str) -> None:
    values = [b"%d" % n for n in range(1_000)]
    with producer_of(kafka, compression_type=codec, batch_size=1_000) as producer:
        for value in values:
            producer.send(rows, value, partition=0)
    assert read_committed(kafka, rows) == values


def test_a_topic_grows(kafka: LocalKafka, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    with producer_of(kafka, metadata_max_age_ms=100) as producer:
        producer.send(topic_name, b"a")
        producer.flush(PATIENCE_MS)
        kafka.add_partitions(topic_name, 3)
        positions = {
            producer.send(topic_name, key=b"%d" % n, future=True).result(PATIENCE_S)[1]  # type: ignore[union-attr]
            for n in range(100)
        }
    assert positions == {0, 1, 2}


def test_it_ends_with_what_waits(kafka: LocalKafka, rows: str) -> None:
    producer = producer_of(kafka, linger_ms=60_000)
    producer.send(rows, b"a")
    producer.close()
    producer.close()
    assert read_committed(kafka, rows) == [b"a"]
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    assert consumer.end_offsets([TopicPartition(rows, 0)])
    consumer.close()


def test_it_is_closed_while_another_thread_sends(kafka: LocalKafka, rows: str) -> None:
    """What was accepted is in the log; the next call says that it was not."""
    producer = producer_of(kafka)
    accepted: list[Future[RecordPosition] | None] = []
    refusals: list[BaseException] = []

    def send() -> None:
        try:
            while True:
                accepted.append(
                    producer.send(rows, b"%d" % len(accepted), partition=0, future=True)
                )
        except BaseException as error:
            refusals.append(error)

    sending = threading.Thread(target=send)
    sending.start()
    while len(accepted) < 1_000:
        sending.join(0.01)
    producer.close(PATIENCE_MS)
    sending.join(PATIENCE_S)
    (refusal,) = refusals
    assert isinstance(refusal, KafkaRebalanceError)
    assert "closed" in str(refusal)
    assert read_committed(kafka, rows) == [b"%d" % n for n in range(len(accepted))]
    positions = [future.result(0).offset for future in accepted if future is not None]
    assert positions == list(range(len(accepted)))


@pytest.mark.parametrize("transactional", [False, True])
def test_it_is_closed_while_no_broker_answers(
    kafka: LocalKafka, rows: str, network: FlakyNetwork, transactional: bool
) -> None:
    """A future would be waited for without end."""
    name = f"{rows}-id" if transactional else None
    producer = producer_of(kafka, name, proxy_url=network.url)
    to = producer.transaction() if transactional else producer
    to.send(rows, b"a", future=True).result(PATIENCE_S)  # type: ignore[union-attr]
    network.stall()
    future = to.send(rows, b"b", future=True)
    assert future is not None
    if transactional:
        producer.close(500)
    else:
        with pytest.raises(kafka_errors.KafkaTimeoutError):
            producer.close(500)
    assert isinstance(future.exception(0), KafkaRebalanceError)
    network.mend()


def test_rows_that_share_a_value_take_no_more_memory(kafka: LocalKafka, rows: str) -> None:
    bound = 2_000_000
    shared = pa.DictionaryArray.from_arrays(pa.array([0] * 50_000), pa.array([b"x" * 1_000]))
    with producer_of(kafka, buffer_memory=bound, batch_size=100_000) as producer:
        most = 0
        end_rows = producer._delivery.end_rows

        def look(*arguments: Any) -> None:
            nonlocal most
            end_rows(*arguments)
            most = max(most, producer._delivery.used)

        producer._delivery.end_rows = look  # type: ignore[method-assign]
        producer.send_batch(rows, pa.record_batch({"value": shared}))
        producer.flush(PATIENCE_MS)
    assert 0 < most <= 2 * bound
    assert len(read_committed(kafka, rows)) == 50_000


def test_partitions_are_integers(rows: str, producer: Producer) -> None:
    """Pandas makes floats of them, and 0.0 is a key of its own from then on."""
    for wrong in (0.0, 0.5, True, "0"):
        with pytest.raises(TypeError, match=rows):
            producer.send(rows, b"a", partition=wrong)  # type: ignore[arg-type]
    sent = producer.send(rows, b"a", partition=numpy.int64(1), future=True)  # type: ignore[arg-type]
    assert sent is not None
    assert sent.result(PATIENCE_S) == (rows, 1, 0)


@pytest.mark.parametrize("name", [None, "etl"])
def test_a_topic_created_anew_with_fewer_partitions(
    kafka: LocalKafka, topic_name: str, name: str | None
) -> None:
    kafka.create_topic(topic_name, 4)
    with producer_of(kafka, name and f"{topic_name}-{name}", metadata_max_age_ms=500) as producer:

        def send(first: int) -> None:
            with producer.transaction() if name else nullcontext(producer) as to:
                for n in range(first, first + 40):
                    to.send(topic_name, b"%d" % n, key=b"%d" % n)
                to.flush(PATIENCE_MS)

        send(0)
        kafka.delete_topic(topic_name)
        kafka.create_topic(topic_name, 1)
        deadline = time.monotonic() + PATIENCE_S
        while producer.partitions_for(topic_name) != 1:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        send(40)
    assert len(read_committed(kafka, topic_name)) == 40
