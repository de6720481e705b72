"""What users of other clients have reported of idempotent producers, tried with `Producer`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from flaky_network import FlakyNetwork
from group_members import wait_until
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.protocol.producer import ProduceRequest
from kafka.structs import TopicPartition
from producer_groups import read_committed
from written import PATIENCE_MS, PATIENCE_S, producer_of

from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture(scope="module")
def forgetful() -> Iterator[LocalKafka]:
    """Leaders that forget a producer after a second of silence."""
    config = {"producer.id.expiration.ms": 1_000, "producer.id.expiration.check.interval.ms": 100}
    with LocalKafka(broker_config=config) as local:
        yield local


def test_a_leader_that_has_forgotten_a_silent_producer(
    forgetful: LocalKafka, topic_name: str
) -> None:
    """redpanda#22670, confluent-kafka-python#654: out of order, or a fatal UNKNOWN_PRODUCER_ID."""
    forgetful.create_topic(topic_name)
    values = [b"%d" % n for n in range(40)]
    with producer_of(forgetful, batch_size=80, linger_ms=0) as producer:
        for first in range(0, 40, 10):
            for value in values[first : first + 10]:
                producer.send(topic_name, value)
            producer.flush(PATIENCE_MS)
            time.sleep(3)
    assert read_committed(forgetful, topic_name) == values


def test_all_records_of_a_producer_are_deleted(kafka: LocalKafka, topic_name: str) -> None:
    """KAFKA-7190: retention had taken what a leader knew of the producer."""
    kafka.create_topic(topic_name)
    where = TopicPartition(topic_name, 0)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    with producer_of(kafka) as producer:
        for n in range(3):
            producer.send(topic_name, b"%d" % n)
            producer.flush(PATIENCE_MS)
            if n < 2:
                admin.delete_records({where: n + 1})
    admin.close()
    assert read_committed(kafka, topic_name) == [b"2"]


def test_the_first_of_many_answers_is_lost(
    kafka: LocalKafka, topic_name: str, network: FlakyNetwork
) -> None:
    """apache/fluss#2826: those behind were acknowledged, and the repetition refused for ever."""
    kafka.create_topic(topic_name)
    values = [b"%d" % n for n in range(60)]
    with producer_of(kafka, proxy_url=network.url, batch_size=80, linger_ms=0) as producer:
        producer.send(topic_name, b"first")
        producer.flush(PATIENCE_MS)
        held = network.stop_at(ProduceRequest, answer=True)
        for value in values:
            producer.send(topic_name, value)
        assert held.wait(PATIENCE_S)
        network.cut()
        network.mend()
        producer.flush(PATIENCE_MS)
    assert read_committed(kafka, topic_name) == [b"first", *values]


def test_batches_expire_while_they_are_under_way(
    kafka: LocalKafka, topic_name: str, network: FlakyNetwork
) -> None:
    """librdkafka#2163, confluent-kafka-dotnet#2519: the producer did not recover."""
    kafka.create_topic(topic_name)
    config = {"delivery_timeout_ms": 1_500, "batch_size": 80, "linger_ms": 0}
    with producer_of(kafka, proxy_url=network.url, **config) as producer:
        producer.send(topic_name, b"first")
        producer.flush(PATIENCE_MS)
        network.stall()
        for n in range(10):
            producer.send(topic_name, b"lost %d" % n)
        with pytest.raises(kafka_errors.RequestTimedOutError):
            producer.flush(PATIENCE_MS)
        network.mend()  # what was under way arrives now
        deadline = time.monotonic() + PATIENCE_S
        later = [b"later %d" % n for n in range(10)]
        for value in later:
            while True:  # a machine that is busy may take longer than the timeout
                producer.send(topic_name, value)
                try:
                    producer.flush(PATIENCE_MS)
                    break
                except kafka_errors.RequestTimedOutError:
                    assert time.monotonic() < deadline
    found = read_committed(kafka, topic_name)
    assert found[0] == b"first"
    lost = [value for value in found if value.startswith(b"lost")]
    assert lost == [b"lost %d" % n for n in range(len(lost))]
    assert list(dict.fromkeys(v for v in found if v.startswith(b"later"))) == later


def test_a_flush_ends_when_its_topic_is_deleted(kafka: LocalKafka, topic_name: str) -> None:
    """confluent-kafka-dotnet#1027: it hung. Other topics are not concerned."""
    other = f"{topic_name}-other"
    kafka.create_topic(topic_name)
    kafka.create_topic(other)
    with producer_of(kafka, delivery_timeout_ms=2_000) as producer:
        producer.send(topic_name, b"first")
        producer.send(other, b"first")
        producer.flush(PATIENCE_MS)
        kafka.delete_topic(topic_name)
        producer.send(topic_name, b"lost")
        future = producer.send(other, b"second", future=True)
        flushing = threading.Thread(target=_flush_in_vain, args=[producer])
        flushing.start()
        flushing.join(PATIENCE_S)
        assert not flushing.is_alive()
        assert future is not None
        future.result(PATIENCE_S)
    assert read_committed(kafka, other) == [b"first", b"second"]


def _flush_in_vain(producer: object) -> None:
    with pytest.raises(kafka_errors.KafkaError):
        producer.flush(PATIENCE_MS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("transactional", [False, True], ids=["plain", "transactions"])
def test_a_topic_is_created_again_with_fewer_partitions(
    kafka: LocalKafka, topic_name: str, transactional: bool
) -> None:
    """KAFKA-13488, kafka4beam/wolff#89: records went to partitions that were not there any more."""
    kafka.create_topic(topic_name, 4)
    name = topic_name if transactional else None
    values = [b"%d" % n for n in range(20)]
    with producer_of(kafka, name, metadata_max_age_ms=200) as producer:

        def write(to: set[int]) -> None:
            if transactional:
                with producer.transaction() as one:
                    sent = [one.send(topic_name, v, key=v, future=True) for v in values]
            else:
                sent = [producer.send(topic_name, v, key=v, future=True) for v in values]
                producer.flush(PATIENCE_MS)
            assert {f.result(PATIENCE_S).partition for f in sent if f is not None} == to

        write({0, 1, 2, 3})
        kafka.delete_topic(topic_name)
        kafka.create_topic(topic_name, 1)
        wait_until(lambda: _partitions_in(producer, topic_name) == 1, "the new topic's metadata")
        write({0})
        write({0})
    assert read_committed(kafka, topic_name) == 2 * values


def _partitions_in(producer: object, topic: str) -> int:
    batches = producer._delivery.open.get(topic)  # type: ignore[attr-defined]
    return 0 if batches is None else int(batches.partitions)
