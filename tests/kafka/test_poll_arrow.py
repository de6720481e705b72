"""poll_arrow: the same records as poll gives, as Arrow, with the same revokes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from group_members import PATIENCE_S, PROTOCOLS, members_of, owns
from kafka import KafkaProducer
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, OptionError
from pyspark_kafka_rebalance.fetch.columns import record_schema
from pyspark_kafka_rebalance.testing import LocalKafka

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]

MakeReader = Callable[..., DeferredRevokeConsumer]


@pytest.fixture
def reader(kafka: LocalKafka, group_id: str) -> Iterator[MakeReader]:
    """Make consumers that are in no group; to be assigned by hand."""
    made: list[DeferredRevokeConsumer] = []

    def make(*partitions: TopicPartition, **config: Any) -> DeferredRevokeConsumer:
        consumer = DeferredRevokeConsumer(
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            **config,
        )
        consumer.assign(partitions)
        made.append(consumer)
        return consumer

    yield make
    for consumer in made:
        consumer.close(timeout_ms=2_000)


def rows_until(
    consumer: DeferredRevokeConsumer, ends: dict[TopicPartition, int], **how: Any
) -> list[dict[str, Any]]:
    """Every row up to the ends (exclusive), by partition and in order."""
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, "the end was not reached"
        for partition, batches in consumer.poll_arrow(timeout_ms=100, **how).records.items():
            for batch in batches:
                assert batch.schema == record_schema(how.get("include_headers", False))
                rows += [{"partition": partition, **row} for row in batch.to_pylist()]
    return sorted(rows, key=lambda row: row["partition"])  # stable


def records_until(
    consumer: DeferredRevokeConsumer, ends: dict[TopicPartition, int]
) -> list[dict[str, Any]]:
    """The same by way of poll."""
    rows: list[dict[str, Any]] = []
    deadline = time.monotonic() + PATIENCE_S
    while any(consumer.position(partition) < end for partition, end in ends.items()):
        assert time.monotonic() < deadline, "the end was not reached"
        for partition, records in consumer.poll(timeout_ms=100).items():
            rows += [{"partition": partition, **as_row(record)} for record in records]
    return sorted(rows, key=lambda row: row["partition"])


def as_row(record: Any) -> dict[str, Any]:
    stamp = pa.scalar(record.timestamp * 1_000, record_schema(False).field("timestamp").type)
    return {
        "key": record.key,
        "value": record.value,
        "offset": record.offset,
        "timestamp": stamp.as_py(),
        "timestampType": record.timestamp_type,
        "headers": [{"key": key, "value": value} for key, value in record.headers] or None,
    }


@pytest.mark.parametrize("codec", CODECS)
def test_the_rows_are_those_of_poll(
    kafka: LocalKafka, reader: MakeReader, topic_name: str, codec: str | None
) -> None:
    kafka.create_topic(topic_name, partitions=2)
    count = 3_000
    partitions = [TopicPartition(topic_name, n) for n in range(2)]
    for partition in partitions:
        kafka.produce(
            topic_name,
            [None if n % 7 == 1 and n % 3 else b"%d" % n * (n % 20) for n in range(count)],
            partition=partition.partition,
            keys=[None if n % 3 == 0 else b"k%d" % n for n in range(count)],
            headers=[[("n", b"%d" % n), ("m", b"")] if n % 2 else [] for n in range(count)],
            timestamps_ms=[1_600_000_000_000 + n for n in range(count)],
            compression=codec,
        )
    ends = dict.fromkeys(partitions, count)
    small = {"max_partition_fetch_bytes": 20_000}  # many fetches, which end within a batch
    expected = records_until(reader(*partitions, **small), ends)
    assert rows_until(reader(*partitions, **small), ends, include_headers=True) == expected
    bare = [{name: row[name] for name in row if name != "headers"} for row in expected]
    assert rows_until(reader(*partitions), ends) == bare


def test_a_poll_has_at_most_max_records_rows(
    kafka: LocalKafka, reader: MakeReader, topic_name: str
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    ends = {}
    for n in range(3):
        kafka.produce(topic_name, [b"x"] * 100, partition=n)
        ends[TopicPartition(topic_name, n)] = 100
    consumer = reader(*ends)
    seen: Counter[tuple[TopicPartition, int]] = Counter()
    largest = 0
    while sum(seen.values()) < 300:
        result = consumer.poll_arrow(timeout_ms=1_000, max_records=7)
        rows = [
            (partition, offset)
            for partition, batches in result.records.items()
            for batch in batches
            for offset in batch.column("offset").to_pylist()
        ]
        assert rows, "nothing came"
        largest = max(largest, len(rows))
        seen.update(rows)
        for partition in result.records:
            assert consumer.position(partition) == max(o for p, o in seen if p == partition) + 1
    assert largest == 7
    assert seen == Counter((partition, n) for partition in ends for n in range(100))


def test_forms_may_take_turns(kafka: LocalKafka, reader: MakeReader, topic_name: str) -> None:
    """What one form has decoded and not handed out, another hands out, once and in order."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"%d" % n for n in range(500)], partition=0)
    partition = TopicPartition(topic_name, 0)
    consumer = reader(partition)
    read: list[int] = []
    while len(read) < 500:
        for headers in (False, True):
            found = consumer.poll_arrow(500, max_records=11, include_headers=headers)
            for batch in found.records.get(partition, ()):
                assert batch.schema == record_schema(headers)
                read += batch.column("offset").to_pylist()
        found = consumer.poll_with_rebalance(500, max_records=5)
        read += [record.offset for record in found.records.get(partition, ())]
        read += [record.offset for record in consumer.poll(500, 3).get(partition, ())]
    assert read == list(range(500))


def test_read_committed(kafka: LocalKafka, reader: MakeReader, topic_name: str) -> None:
    kafka.create_topic(topic_name)
    partition = TopicPartition(topic_name, 0)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_name, linger_ms=0
    )
    producer.init_transactions()
    for fate in "caaca":
        producer.begin_transaction()
        for n in range(10):
            producer.send(topic_name, fate.encode() + b"%d" % n, partition=0)
        producer.flush()
        (producer.commit_transaction if fate == "c" else producer.abort_transaction)()
    producer.close()
    end = {partition: 55}  # behind the marker of the last
    committed = rows_until(reader(partition, isolation_level="read_committed"), end)
    assert [row["offset"] for row in committed] == [*range(10), *range(33, 43)]
    everything = rows_until(reader(partition), end)
    assert [row["offset"] for row in everything] == [n for n in range(55) if n % 11 != 10]


def test_what_is_fetched_tells_of_the_end_and_the_lag(
    kafka: LocalKafka, reader: MakeReader, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 20, partition=0)
    partition = TopicPartition(topic_name, 0)
    consumer = reader(partition)
    deadline = time.monotonic() + PATIENCE_S
    while partition not in (result := consumer.poll_arrow(500, max_records=5)).records:
        assert time.monotonic() < deadline
    told = result.metadata[partition]
    assert (told.position, told.end_offset, told.lag) == (5, 20, 15)


class Reversed(Deserializer):  # type: ignore[misc]
    def deserialize(self, topic: str, headers: Any, data: bytes) -> bytes:
        return data[::-1]


def test_deserializers_are_refused(reader: MakeReader) -> None:
    consumer = reader(value_deserializer=Reversed())
    with pytest.raises(OptionError, match="value_deserializer"):
        consumer.poll_arrow()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_revoke_waits_for_rows_that_are_not_processed(
    kafka: LocalKafka, topic_name: str, group_id: str, protocol: str
) -> None:
    """Two members share by and by; every row is handed out once, in processing for two polls."""
    kafka.create_topic(topic_name, partitions=6)
    partitions = [TopicPartition(topic_name, n) for n in range(6)]
    handed_out: Counter[tuple[TopicPartition, int]] = Counter()
    produced = 0
    with members_of(kafka, group_id, protocol, 6_000) as make:
        members = [make(topic_name)]
        in_processing: dict[DeferredRevokeConsumer, list[dict[TopicPartition, list[int]]]] = {}
        deadline = time.monotonic() + PATIENCE_S

        def turn() -> None:
            for member in members:
                result = member.poll_arrow(timeout_ms=20, max_records=40)
                assert not result.lost
                assert not result.records.keys() & result.to_be_revoked
                rows = {
                    partition: [o for batch in found for o in batch.column("offset").to_pylist()]
                    for partition, found in result.records.items()
                }
                handed_out.update((p, o) for p, offsets in rows.items() for o in offsets)
                queue = in_processing.setdefault(member, [])
                queue.append(rows)
                if len(queue) > 2:
                    for partition, offsets in queue.pop(0).items():
                        member.processed(partition, *offsets)
                member.delay_revoke(result.to_be_revoked & member.unprocessed())

        def produce() -> None:
            nonlocal produced
            for partition in partitions:
                kafka.produce(topic_name, [b"x"] * 50, partition=partition.partition)
            produced += 50

        produce()
        while not (owns(members[0], 6)() and sum(handed_out.values()) > 100):
            assert time.monotonic() < deadline
            turn()
        members.append(make(topic_name))
        while not all(owns(member, 3)() for member in members):
            assert time.monotonic() < deadline, "the group did not get there"
            produce()
            turn()
        while sum(handed_out.values()) < 6 * produced:
            assert time.monotonic() < deadline, "rows are missing"
            turn()
        for _ in range(3):
            turn()
    assert handed_out == Counter((p, n) for p in partitions for n in range(produced))
