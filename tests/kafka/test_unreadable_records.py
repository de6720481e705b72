"""Records that cannot be read: each poll that gets there says so, the other partitions go on."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pytest
from group_members import PATIENCE_S, owns, poll_until
from kafka import KafkaProducer
from kafka.errors import UnsupportedCodecError
from kafka.record import default_records
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import (
    AsyncDeferredRevokeConsumer,
    CorruptRecordError,
    DeferredRevokeConsumer,
    RecordDeserializationError,
    UnreadableRecordError,
)
from pyspark_kafka_rebalance.fetch import compression
from pyspark_kafka_rebalance.testing import LocalKafka

classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)

Polled = list[tuple[int, int] | UnreadableRecordError]


class Numbers(Deserializer):
    """Of what is no number it says so."""

    def deserialize(self, topic: str, headers: Any, data: bytes) -> int:
        return int(data)


def poll_objects(consumer: DeferredRevokeConsumer) -> Polled:
    """Partition and offset of each record, or the error."""
    return _or_error(
        lambda: [
            (partition.partition, record.offset)
            for partition, found in consumer.poll(timeout_ms=500).items()
            for record in found
        ]
    )


def poll_arrow(consumer: DeferredRevokeConsumer) -> Polled:
    return _or_error(
        lambda: [
            (partition.partition, offset)
            for partition, batches in consumer.poll_arrow(timeout_ms=500).records.items()
            for batch in batches
            for offset in batch.column("offset").to_pylist()
        ]
    )


def iterate(consumer: DeferredRevokeConsumer) -> Polled:
    """The next record; nothing when ``consumer_timeout_ms`` has passed."""
    return _or_error(lambda: [(r.partition, r.offset) for r in (next(consumer, None),) if r])


def _or_error(poll: Callable[[], Any]) -> Polled:
    try:
        found: Polled = poll()
    except UnreadableRecordError as error:
        return [error]
    return found


def polled_until(
    consumer: DeferredRevokeConsumer,
    poll: Callable[[DeferredRevokeConsumer], Polled],
    done: Callable[[Polled], bool],
) -> Polled:
    polled: Polled = []
    deadline = time.monotonic() + PATIENCE_S
    while not done(polled):
        assert time.monotonic() < deadline, f"not there after {polled[-5:]}"
        polled += poll(consumer)
    return polled


def records(polled: Polled, partition: int) -> list[int]:
    return [
        one[1]
        for one in polled
        if not isinstance(one, UnreadableRecordError) and one[0] == partition
    ]


def errors(polled: Polled) -> list[UnreadableRecordError]:
    return [one for one in polled if isinstance(one, UnreadableRecordError)]


def meets(
    consumer: DeferredRevokeConsumer,
    kafka: LocalKafka,
    topic: str,
    poll: Callable[[DeferredRevokeConsumer], Polled],
    readable: int,
) -> UnreadableRecordError:
    """Check all that holds while partition 0 has ``readable`` records before an unreadable one."""
    before = list(range(readable))
    polled = polled_until(
        consumer,
        poll,
        lambda p: len(errors(p)) >= 3 and records(p, 0) == before and len(records(p, 1)) == 10,
    )
    # New records of the other partition come between the errors, and errors between them.
    kafka.produce(topic, [b"1"] * 10, partition=1)
    polled += polled_until(
        consumer, poll, lambda p: len(errors(p)) >= 3 and len(records(p, 1)) == 10
    )
    assert records(polled, 0) == before
    assert records(polled, 1) == list(range(20))
    assert consumer.position(TopicPartition(topic, 0)) == readable
    error = errors(polled)[-1]
    assert {(type(e), e.topic, e.partition, e.offset) for e in errors(polled)} == {
        (type(error), topic, 0, error.offset)
    }
    return error


@classic_only
@pytest.mark.parametrize("poll", [poll_objects, iterate])
def test_a_record_that_a_deserializer_refuses(kafka, topic_name, consumers, poll):
    """kafka-python's poll raised once or twice and never returned again."""
    kafka.create_topic(topic_name, partitions=2)
    produce_one_batch(kafka, topic_name, [b"1"] * 4 + [b"four"] + [b"1"] * 5)
    kafka.produce(topic_name, [b"1"] * 10, partition=1)
    consumer = consumers(topic_name, value_deserializer=Numbers(), consumer_timeout_ms=500)
    error = meets(consumer, kafka, topic_name, poll, readable=4)
    assert isinstance(error, RecordDeserializationError)
    assert error.offset == 4
    assert isinstance(error.__cause__, ValueError)
    assert "four" in str(error)
    consumer.seek(TopicPartition(error.topic, error.partition), error.next_offset)
    polled = polled_until(consumer, poll, lambda p: len(records(p, 0)) == 5)
    assert polled == [(0, offset) for offset in range(5, 10)]


@classic_only
@pytest.mark.parametrize("poll", [poll_objects, iterate, poll_arrow])
def test_a_damaged_record_batch(kafka, topic_name, consumers, poll):
    kafka.create_topic(topic_name, partitions=2)
    for first in (0, 10, 20):
        produce_one_batch(kafka, topic_name, [b"marked-%d" % first] * 10)
    kafka.produce(topic_name, [b"x"] * 10, partition=1)
    damage(kafka, topic_name, b"marked-10")
    consumer = consumers(topic_name, consumer_timeout_ms=500)
    error = meets(consumer, kafka, topic_name, poll, readable=10)
    assert isinstance(error, CorruptRecordError)
    assert (error.offset, error.next_offset) == (10, 20)
    consumer.seek(TopicPartition(error.topic, error.partition), error.next_offset)
    polled = polled_until(consumer, poll, lambda p: len(records(p, 0)) == 10)
    assert polled == [(0, offset) for offset in range(20, 30)]


def produce_one_batch(
    kafka: LocalKafka,
    topic: str,
    values: list[bytes],
    compression: str | None = None,
    timestamps: Mapping[int, int] = MappingProxyType({}),
) -> None:
    """To partition 0; with timestamps by number."""
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, linger_ms=60_000, compression_type=compression
    )
    for number, value in enumerate(values):
        producer.send(topic, value, partition=0, timestamp_ms=timestamps.get(number))
    producer.flush()
    producer.close()


def damage(kafka: LocalKafka, topic: str, value: bytes) -> None:
    """Flip a bit of the first record with this value in partition 0, on the broker's disk."""
    (segment,) = kafka.folder.rglob(f"{topic}-0/*.log")
    at = segment.read_bytes().index(value)
    with segment.open("r+b") as log:
        log.seek(at)
        log.write(bytes([value[0] ^ 1]))


NANOSECONDS = 1_700_000_000_123_456_789


@classic_only
def test_a_timestamp_that_arrow_cannot_hold(kafka, topic_name, consumers):
    """In nanoseconds. It made all records of its batch unreadable for poll_arrow."""
    kafka.create_topic(topic_name, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    produce_one_batch(kafka, topic_name, [b"%d" % n for n in range(5)], "lz4", {2: NANOSECONDS})
    consumer = consumers(topic_name)
    polled: list[Any] = []
    while len(polled) < 5:
        for found in consumer.poll(timeout_ms=500).values():
            polled += found
    assert [record.timestamp == NANOSECONDS for record in polled] == [n == 2 for n in range(5)]
    for start in (0, 3):
        consumer.seek(TopicPartition(topic_name, 0), start)
        rows: list[dict[str, Any]] = []
        while len(rows) < 5 - start:
            for batches in consumer.poll_arrow(timeout_ms=500).records.values():
                rows += [row for batch in batches for row in batch.to_pylist()]
        assert [row["value"] for row in rows] == [b"%d" % n for n in range(start, 5)]
        assert [row["offset"] for row in rows if row["timestamp"] is None] == [2][start:]


@classic_only
@pytest.mark.parametrize("poll", [poll_objects, iterate])
def test_a_codec_without_its_library_skips_nothing(kafka, topic_name, consumers, poll, monkeypatch):
    """Each poll raises, names no offset to go on at, and the records come once it is there."""
    kafka.create_topic(topic_name)
    produce_one_batch(kafka, topic_name, [b"1"] * 50, "zstd")
    consumer = consumers(topic_name, consumer_timeout_ms=500)
    with monkeypatch.context() as patch:
        patch.setattr("kafka.codec.zstd", None)
        raised = []
        while len(raised) < 3:
            try:
                assert records(poll(consumer), 0) == []
            except UnsupportedCodecError as error:
                raised.append(error)
        assert "zstd" in str(raised[-1])
        assert not isinstance(raised[-1], UnreadableRecordError)
        assert consumer.position(TopicPartition(topic_name, 0)) == 0
        consumer.commit()
    polled = polled_until(consumer, poll, lambda p: len(p) == 50)
    assert records(polled, 0) == list(range(50))


class OutOfTimeError(OSError):
    """As a job queue raises in a signal handler."""


@classic_only
@pytest.mark.parametrize("poll", [poll_objects, iterate, poll_arrow])
def test_a_signal_in_the_decoder_skips_nothing(kafka, topic_name, consumers, poll, monkeypatch):
    """Whatever type of error its handler raises, and wherever in the decoder."""
    kafka.create_topic(topic_name)
    produce_one_batch(kafka, topic_name, [b"1"] * 50, "gzip")
    consumer = consumers(topic_name, consumer_timeout_ms=500)

    def raise_it(*_: Any) -> None:
        raise OutOfTimeError

    def interrupted(decode: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            signal.raise_signal(signal.SIGUSR1)
            return decode(*args, **kwargs)

        return call

    before = signal.signal(signal.SIGUSR1, raise_it)
    try:
        with monkeypatch.context() as patch:
            for module, name in ((default_records, "gzip_decode"), (compression, "_stream")):
                patch.setattr(module, name, interrupted(getattr(module, name)))
            raised = 0
            while raised < 3:
                try:
                    assert records(poll(consumer), 0) == []
                except OutOfTimeError:
                    raised += 1
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert consumer.position(TopicPartition(topic_name, 0)) == 0
    polled = polled_until(consumer, poll, lambda p: len(p) == 50)
    assert records(polled, 0) == list(range(50))


@classic_only
def test_a_deserializer_that_works_again_needs_no_seek(kafka, topic_name, consumers):
    """It asks a schema registry, say, that was away."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"1"] * 3, partition=0)
    failing = [True]

    class Registry(Deserializer):
        def deserialize(self, topic: str, headers: Any, data: bytes) -> int:
            if failing[0]:
                raise ConnectionError("the registry is away")
            return int(data)

    consumer = consumers(topic_name, value_deserializer=Registry())
    polled_until(consumer, poll_objects, lambda p: len(errors(p)) == 2)
    failing.clear()
    failing.append(False)
    polled = polled_until(consumer, poll_objects, lambda p: len(records(p, 0)) == 3)
    assert polled == [(0, 0), (0, 1), (0, 2)]


@classic_only
def test_a_requested_revoke_is_told_although_the_next_record_cannot_be_read(
    kafka, topic_name, consumers
):
    kafka.create_topic(topic_name, partitions=2)
    for partition in range(2):
        kafka.produce(topic_name, [b"one"], partition=partition)
    first = consumers(topic_name, value_deserializer=Numbers())
    polled_until(first, poll_objects, lambda p: {e.partition for e in errors(p)} == {0, 1})
    second = consumers(topic_name)
    told: list[Any] = []

    def both() -> bool:
        with contextlib.suppress(RecordDeserializationError):
            told.append(first.poll_with_rebalance(timeout_ms=20).to_be_revoked)
        return owns(second, 1)()

    poll_until(both, second)
    assert frozenset().union(*told) == second.assignment()


def test_the_asyncio_face_goes_on_after_the_error(kafka, topic_name, group_id):
    kafka.create_topic(topic_name, partitions=1)
    produce_one_batch(kafka, topic_name, [b"0", b"one", b"2"])

    async def main() -> list[int | None]:
        read: list[int | None] = []
        async with AsyncDeferredRevokeConsumer(
            topic_name,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            value_deserializer=Numbers(),
        ) as consumer:
            while len(read) < 4:
                try:
                    async for record in consumer:
                        read.append(record.offset)
                        if record.offset == 2:
                            break
                except RecordDeserializationError as error:
                    read.append(None)
                    if read.count(None) == 2:
                        await consumer.seek(
                            TopicPartition(error.topic, error.partition), error.next_offset
                        )
        return read

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE_S)) == [0, None, None, 2]
