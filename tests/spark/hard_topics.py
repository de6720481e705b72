"""Topics that are hard to read right, and what of their rows shows that they are what they say.

Each is small, but for the records of 5 MB. What a topic is hard for may depend on who wrote it, so
the producers are kafka-python, librdkafka (confluent-kafka), and Java's, through the sink of
Spark's own Kafka source.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import confluent_kafka
import pyarrow as pa
import pyarrow.compute as pc
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka

FIVE_MB = 5 * 1024 * 1024

#: As the attributes of a record batch of format 2 number them (KIP-98, KIP-110).
CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}

_PATIENCE_S = 60.0


@dataclass(frozen=True)
class Place:
    """Where topics are made. What is held open (a transaction) ends with ``held``."""

    kafka: LocalKafka
    spark: SparkSession
    held: ExitStack

    def librdkafka(self, **config: Any) -> confluent_kafka.Producer:
        return confluent_kafka.Producer(
            {"bootstrap.servers": self.kafka.bootstrap_servers}
            | {name.replace("_", "."): value for name, value in config.items()}
        )

    def admin(self) -> KafkaAdminClient:
        return KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers)


@dataclass(frozen=True)
class HardTopic:
    """How to make a topic, and whether these rows of it, under read_uncommitted, are hard."""

    make: Callable[[Place, str], None]
    is_hard: Callable[[pa.Table], bool]


def _values(count: int) -> list[bytes]:
    return [b"%d " % n + b"x" * (n % 90) for n in range(count)]


def _long_values(count: int) -> list[bytes]:
    """Each of which every codec makes smaller.

    A batch that its codec does not make smaller is stored as it is, such as one short record, of
    which a busy machine may make a batch.
    """
    return [value + b"x" * 100 for value in _values(count)]


# -- codecs ---------------------------------------------------------------------------------------


def _codec(codec: str) -> HardTopic:
    def make(place: Place, topic: str) -> None:
        place.kafka.create_topic(topic, partitions=3)
        compression = None if codec == "none" else codec
        place.kafka.produce(topic, _long_values(400), partition=0, compression=compression)
        producer = place.librdkafka(compression_type=codec, linger_ms=50, batch_num_messages=150)
        for value in _long_values(400):
            producer.produce(topic, value, key=value[:2], partition=1)
        _flush(producer)
        _produce_with_java(place, topic, partition=2, count=400, codec=codec)
        for partition in range(3):
            written = codecs_in_log(place.kafka, topic, partition)
            assert written == {CODECS[codec]}, f"{topic}-{partition} is written with {written}"

    return HardTopic(make, lambda rows: _count_by_partition(rows) == {0: 400, 1: 400, 2: 400})


def _produce_with_java(place: Place, topic: str, partition: int, count: int, codec: str) -> None:
    place.spark.range(count).selectExpr(
        "cast(id as string) as value", f"{partition} as partition"
    ).coalesce(1).write.format("kafka").options(
        **{
            "kafka.bootstrap.servers": place.kafka.bootstrap_servers,
            "topic": topic,
            "kafka.compression.type": codec,
            "kafka.linger.ms": "50",
        }
    ).save()


def _all_codecs_in_one_partition(place: Place, topic: str) -> None:
    place.kafka.create_topic(topic)
    for codec in (*CODECS, *reversed(CODECS)):
        compression = None if codec == "none" else codec
        place.kafka.produce(topic, _long_values(30), partition=0, compression=compression)
    assert codecs_in_log(place.kafka, topic, 0) == set(CODECS.values())


def codecs_in_log(kafka: LocalKafka, topic: str, partition: int) -> set[int]:
    """Numbers of the codecs of a partition's record batches, from the broker's files."""
    segments = kafka.folder.rglob(f"{topic}-{partition}/*.log")
    return {header[22] & 0b111 for path in segments for header in _batch_headers(path.read_bytes())}


# -- transactions ---------------------------------------------------------------------------------


def _transactions(place: Place, topic: str) -> None:
    """0: one after the other; 1: of two producers at once, beside plain records; 2: an open one;
    3: nothing but aborted ones."""
    place.kafka.create_topic(topic, partitions=4)
    first, second = (_transactional(place, f"{topic}-{n}") for n in range(2))
    for number, ending in enumerate("caaccaca"):
        first.begin_transaction()
        _send(first, topic, 0, f"{number} {ending}", 10 + number)
        if ending == "a":
            _send(first, topic, 3, "aborted", 5)
        _end(first, ending)
    plain = place.librdkafka()
    first.begin_transaction()
    second.begin_transaction()
    for turn, producer in enumerate((first, second, plain, first, second, first, plain, second)):
        _send(producer, topic, 1, f"turn {turn}", 7)
        if turn == 3:
            _end(second, "a")
            second.begin_transaction()
    _end(first, "a")
    _end(second, "c")
    _send(plain, topic, 1, "after all", 3)
    _send(plain, topic, 2, "before the open one", 20)
    held = _transactional(place, f"{topic}-open")
    held.begin_transaction()
    _send(held, topic, 2, "open", 10)
    place.held.callback(held.abort_transaction)
    _send(plain, topic, 2, "behind the open one", 20)


def _flush(producer: confluent_kafka.Producer) -> None:
    left = producer.flush(_PATIENCE_S)
    assert left == 0, f"{left} records are not written"


def _transactional(place: Place, transactional_id: str) -> confluent_kafka.Producer:
    producer = place.librdkafka(
        transactional_id=transactional_id, transaction_timeout_ms=600_000, linger_ms=0
    )
    producer.init_transactions()
    return producer


def _send(
    producer: confluent_kafka.Producer, topic: str, partition: int, text: str, count: int
) -> None:
    """In record batches of their own, since the next may be somebody else's."""
    for number in range(count):
        producer.produce(topic, f"{text} {number}".encode(), partition=partition)
    _flush(producer)


def _end(producer: confluent_kafka.Producer, ending: str) -> None:
    (producer.commit_transaction if ending == "c" else producer.abort_transaction)()


# -- logs with gaps -------------------------------------------------------------------------------


def _compacted(place: Place, topic: str) -> None:
    """36 keys written many times, 5 of them deleted, and keys written once between them; the log
    cleaner has been at work."""
    place.kafka.create_topic(
        topic,
        config={
            "cleanup.policy": "compact",
            "segment.ms": 100,
            "min.cleanable.dirty.ratio": 0.001,
            "delete.retention.ms": 600_000,
        },
    )
    for segment in range(3):
        keys = [b"%d %d" % (segment, n) if n % 10 == 9 else b"%d" % (n % 40) for n in range(400)]
        values = [None if n % 40 < 5 else b"%d %d" % (segment, n) for n in range(400)]
        place.kafka.produce(topic, values, keys=keys, partition=0)
        time.sleep(0.15)  # older than segment.ms: the next record rolls the log
    # Of the active segment nothing is ever removed: let it have one record.
    place.kafka.produce(topic, [b"last"], keys=[b"last"], partition=0)
    _wait_until(
        lambda: _records_in_log(place.kafka, topic) == _COMPACTED, f"{topic} is not compacted yet"
    )


_COMPACTED = 36 + 3 * 40 + 1


def _records_in_log(kafka: LocalKafka, topic: str) -> int:
    """What the record batches of partition 0 count, from the broker's files; -1: being swapped."""
    try:
        segments = [path.read_bytes() for path in kafka.folder.rglob(f"{topic}-0/*.log")]
    except FileNotFoundError:
        return -1
    headers = (header for segment in segments for header in _batch_headers(segment))
    return sum(int.from_bytes(header[57:61], "big") for header in headers)


def _batch_headers(segment: bytes) -> Iterator[bytes]:
    """The header of each record batch of format 2: 61 bytes."""
    at = 0
    while at + 61 <= len(segment):
        yield segment[at : at + 61]
        at += 12 + int.from_bytes(segment[at + 8 : at + 12], "big")


def _deleted_head(place: Place, topic: str) -> None:
    """0: up to the middle of a compressed record batch; 1: all of it; 2: nothing."""
    place.kafka.create_topic(topic, partitions=3)
    for partition in range(3):
        place.kafka.produce(topic, _long_values(100), partition=partition, compression="lz4")
    admin = place.admin()
    try:
        admin.delete_records({TopicPartition(topic, 0): 37, TopicPartition(topic, 1): 100})
    finally:
        admin.close()


def _grown(place: Place, topic: str) -> None:
    place.kafka.create_topic(topic, partitions=2)
    place.kafka.produce(topic, _values(20))
    place.kafka.add_partitions(topic, 4)
    producer = place.librdkafka()
    for partition in (1, 2, 3):
        _send(producer, topic, partition, "grown", 10)


# -- what a record may hold -----------------------------------------------------------------------


def _nulls(place: Place, topic: str) -> None:
    place.kafka.create_topic(topic)
    producer = place.librdkafka()
    for key in (None, b"", b"key"):
        for value in (None, b"", b"value"):
            producer.produce(topic, value, key=key, partition=0)
            producer.produce(topic, value, key=key, partition=0, headers=[("h", b"")])
    _flush(producer)


def _headers(place: Place, topic: str) -> None:
    place.kafka.create_topic(topic)
    producer = place.librdkafka()
    sets: list[list[tuple[str, bytes | None]]] = [
        [],
        [("null", None)],
        [("empty", b"")],
        [("twice", b"1"), ("twice", b"2"), ("once", None), ("twice", None)],
        [("", b"no name")],
        [("Grüße 🎉", "Grüße 🎉".encode())],
        [("bytes", bytes(range(256)))],
        [(f"h{n}", b"%d" % n) for n in range(300)],
    ]
    for headers in sets * 2:
        producer.produce(topic, b"v", headers=headers, partition=0)
    _flush(producer)


def _timestamps(place: Place, topic: str) -> None:
    """Not in order, none at all (-1), the epoch, and the year 9999."""
    place.kafka.create_topic(topic, config={"message.timestamp.after.max.ms": 2**63 - 1})
    stamps = [
        1_700_000_000_123,
        1_600_000_000_999,
        0,
        1,
        253_402_300_799_999,
        -1,
        1_700_000_000_000,
    ]
    place.kafka.produce(topic, _values(len(stamps)), partition=0, timestamps_ms=stamps)
    # One batch each: the first timestamp of a batch is stored in another way than the others.
    for stamp in stamps:
        place.kafka.produce(topic, [b"alone"], partition=0, timestamps_ms=[stamp])


def _append_time(place: Place, topic: str) -> None:
    config = {"message.timestamp.type": "LogAppendTime"}
    place.kafka.create_topic(topic, partitions=2, config=config)
    place.kafka.produce(topic, _values(50), partition=0, timestamps_ms=[1_500_000_000_000] * 50)
    place.kafka.produce(topic, _values(50), partition=1, compression="zstd")


def _sizes(place: Place, topic: str) -> None:
    """0 B and 5 MB side by side, as they are and compressed; a fetch asks for less."""
    place.kafka.create_topic(topic, partitions=2, config={"max.message.bytes": FIVE_MB + 4096})
    chance = random.Random(5)
    sizes = (0, 1, FIVE_MB, 0, 100, FIVE_MB, 0)
    for partition, codec in enumerate(("none", "zstd")):
        producer = place.librdkafka(
            message_max_bytes=FIVE_MB + 4096, compression_type=codec, linger_ms=0
        )
        for size in sizes:
            producer.produce(topic, chance.randbytes(size), key=b"", partition=partition)
        _flush(producer)


# -- how many partitions --------------------------------------------------------------------------


def _partitions(count: int, filled: int) -> HardTopic:
    """Two records each in so many of the partitions; the others stay empty."""

    def make(place: Place, topic: str) -> None:
        place.kafka.create_topic(topic, partitions=count)
        producer = place.librdkafka(linger_ms=20)
        for number in range(2 * filled):
            # The last partition first: their numbers have one, two and three digits.
            producer.produce(topic, b"%d" % number, partition=count - 1 - number % filled * step)
        _flush(producer)

    step = count // filled
    made = {count - 1 - number * step: 2 for number in range(filled)}
    return HardTopic(make, lambda rows: _count_by_partition(rows) == made)


# -- all of them ----------------------------------------------------------------------------------


def _count_by_partition(rows: pa.Table) -> dict[int, int]:
    counted = pc.value_counts(rows["partition"]).to_pylist()
    return {one["values"]: one["counts"] for one in counted}


def _has_gaps(rows: pa.Table) -> bool:
    offsets = rows["offset"].to_pylist()
    return bool(offsets) and offsets[-1] - offsets[0] + 1 > len(offsets)


HARD_TOPICS: dict[str, HardTopic] = {
    **{f"codec-{codec}": _codec(codec) for codec in CODECS},
    "codecs-in-one-partition": HardTopic(
        _all_codecs_in_one_partition, lambda rows: rows.num_rows == 300
    ),
    "transactions": HardTopic(
        _transactions,
        lambda rows: {b"open 0", b"aborted 0", b"turn 7 6"} <= set(rows["value"].to_pylist()),
    ),
    "compacted": HardTopic(
        _compacted,
        lambda rows: (
            rows.num_rows == _COMPACTED and rows["value"].null_count == 5 and _has_gaps(rows)
        ),
    ),
    "deleted-head": HardTopic(
        _deleted_head, lambda rows: _count_by_partition(rows) == {0: 63, 2: 100}
    ),
    "grown": HardTopic(_grown, lambda rows: len(_count_by_partition(rows)) == 4),
    "nulls": HardTopic(
        _nulls, lambda rows: rows["key"].null_count == rows["value"].null_count == 6
    ),
    "headers": HardTopic(
        _headers, lambda rows: rows.num_rows == 16 and rows["headers"].null_count == 2
    ),
    "timestamps": HardTopic(_timestamps, lambda rows: rows.num_rows == 14),
    "append-time": HardTopic(
        _append_time, lambda rows: set(rows["timestampType"].to_pylist()) == {1}
    ),
    "sizes": HardTopic(
        _sizes, lambda rows: pc.max(pc.binary_length(rows["value"])).as_py() == FIVE_MB
    ),
    "empty": HardTopic(
        lambda place, topic: place.kafka.create_topic(topic, partitions=2),
        lambda rows: rows.num_rows == 0,
    ),
    # Spark's own source has a task for each filled partition, which takes its time.
    "partitions-1": _partitions(1, filled=1),
    "partitions-7": _partitions(7, filled=7),
    "partitions-200": _partitions(200, filled=40),
}


def make_topics(place: Place, names: Iterable[str], prefix: str) -> dict[str, str]:
    """Make the hard topics of these names; the Kafka topic of each."""
    made = {name: f"{prefix}-{name}" for name in names}
    for name, topic in made.items():
        HARD_TOPICS[name].make(place, topic)
    return made


def _wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
