from __future__ import annotations

import multiprocessing
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition
from kafka.protocol.consumer import FetchRequest
from kafka.record import MemoryRecords

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import CorruptRecordError, DataLossError, KafkaRebalanceError
from pyspark_kafka_rebalance.fetch import connections
from pyspark_kafka_rebalance.fetch.connections import ClusterConnections
from pyspark_kafka_rebalance.fetch.fetcher import RangeFetcher
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.testing import LocalKafka

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(autouse=True, scope="module")
def _close_connections() -> Iterator[None]:
    yield
    connections.close_all()


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[LocalKafka]:
    """A broker to stop and to compact with."""
    with LocalKafka(broker_config={"log.cleaner.backoff.ms": 100}) as local:
        yield local


@pytest.fixture
def fetcher(kafka: LocalKafka) -> Iterator[Callable[..., RangeFetcher]]:
    made: list[RangeFetcher] = []

    def make(servers: str | None = None, **options: Any) -> RangeFetcher:
        config = {"bootstrap_servers": servers or kafka.bootstrap_servers}
        made.append(RangeFetcher(config, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def rows_of(fetcher: RangeFetcher, *ranges: OffsetRange) -> list[dict[str, Any]]:
    return [
        {"topic": found.topic, "partition": found.partition, **row}
        for found, batch in fetcher.read(ranges)
        for row in batch.to_pylist()
    ]


def offsets(rows: Sequence[dict[str, Any]]) -> list[int]:
    return [row["offset"] for row in rows]


def values(count: int, size: int = 20) -> list[bytes]:
    return [b"%d " % n + b"x" * (n % size) for n in range(count)]


@pytest.mark.parametrize("codec", CODECS)
def test_what_kafka_python_produced(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str, codec: str | None
) -> None:
    kafka.create_topic(topic_name)
    if codec in ("snappy", "lz4", "zstd"):
        pytest.importorskip({"zstd": "zstandard"}.get(codec, codec))
    sent = values(5_000)
    keys = [None if n % 3 == 0 else b"k%d" % n for n in range(len(sent))]
    headers = [[("n", b"%d" % n), ("n", b"")] if n % 2 else [] for n in range(len(sent))]
    stamps = [1_600_000_000_000 + n for n in range(len(sent))]
    kafka.produce(
        topic_name,
        sent,
        partition=0,
        keys=keys,
        headers=headers,
        timestamps_ms=stamps,
        compression=codec,
    )
    read = rows_of(fetcher(include_headers=True), OffsetRange(topic_name, 0, 10, 4_990))
    assert [row["value"] for row in read] == sent[10:4_990]
    assert [row["key"] for row in read] == keys[10:4_990]
    assert offsets(read) == list(range(10, 4_990))
    assert [round(row["timestamp"].timestamp() * 1000) for row in read] == stamps[10:4_990]
    assert {row["timestampType"] for row in read} == {0}
    assert [
        None if row["headers"] is None else [(h["key"], h["value"]) for h in row["headers"]]
        for row in read
    ] == [header or None for header in headers[10:4_990]]


@pytest.mark.parametrize("codec", [codec or "none" for codec in CODECS])
def test_what_librdkafka_produced(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str, codec: str
) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    kafka.create_topic(topic_name, config={"message.timestamp.type": "LogAppendTime"})
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "compression.type": codec, "linger.ms": 50}
    )
    sent = values(5_000)
    for value in sent:
        producer.produce(topic_name, value, partition=0, headers=[("n", None), ("n", b"1")])
    producer.flush()
    read = rows_of(fetcher(include_headers=True), OffsetRange(topic_name, 0, 0, len(sent)))
    assert [row["value"] for row in read] == sent
    assert all(
        row["headers"] == [{"key": "n", "value": None}, {"key": "n", "value": b"1"}] for row in read
    )
    assert {row["timestampType"] for row in read} == {1}


def test_exact_ranges_of_several_partitions_and_topics(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    other = topic_name + "-other"
    for name in (topic_name, other):
        kafka.create_topic(name, partitions=3)
        for partition in range(3):
            kafka.produce(name, [b"%d" % n for n in range(1_000)], partition=partition)
    ranges = [
        OffsetRange(topic_name, 2, 100, 900),
        OffsetRange(other, 0, 0, 1_000),
        OffsetRange(topic_name, 0, 5, 5),
        OffsetRange(topic_name, 1, 999, 1_000),
        OffsetRange(topic_name, 2, 900, 901),
    ]
    read = fetcher(batch_rows=300, max_partition_fetch_bytes=2_000).read(ranges)
    assert by_range(read) == {one: list(range(one.start, one.end)) for one in ranges if len(one)}


def test_a_live_range_and_gaps_below_it_of_one_partition(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    """A partition may have any number of ranges in one read, each with rows of its own."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(1_000, size=400))
    bounds = [(800, 1_000), (0, 100), (100, 120), (500, 700)]
    ranges = [OffsetRange(topic_name, 0, start, end) for start, end in bounds]
    found = by_range(fetcher(max_partition_fetch_bytes=2_000).read(ranges))
    assert found == {one: list(range(one.start, one.end)) for one in ranges}


def by_range(read: Iterator[tuple[OffsetRange, pa.RecordBatch]]) -> dict[OffsetRange, list[int]]:
    """The offsets of each range, in the order in which they came; the values are the offsets."""
    found: dict[OffsetRange, list[int]] = {}
    for one, batch in read:
        offsets = batch.column("offset").to_pylist()
        assert [int(value.split()[0]) for value in batch.column("value").to_pylist()] == offsets
        found.setdefault(one, []).extend(offsets)
    return found


def test_a_record_larger_than_the_fetch(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    kafka.create_topic(topic_name, config={"max.message.bytes": 10_000_000})
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, max_request_size=10_000_000, linger_ms=0
    )
    large = bytes(range(256)) * 20_000
    for value in (b"before", large, b"after"):
        producer.send(topic_name, value).get(30)
    producer.close()
    read = rows_of(fetcher(max_partition_fetch_bytes=100_000), OffsetRange(topic_name, 0, 0, 3))
    assert [row["value"] for row in read] == [b"before", large, b"after"]


# Fetches on their way


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[int, int]]]:
    """The fetches as they are sent: to which broker, and which offset of which partition."""
    seen: list[tuple[int, dict[int, int]]] = []
    send = ClusterConnections.send

    def noted(self: ClusterConnections, request: Any, node_id: int | None = None) -> Any:
        if isinstance(request, FetchRequest):
            assert node_id is not None
            asked = {
                partition.partition: partition.fetch_offset
                for topic in request.topics
                for partition in topic.partitions
            }
            seen.append((node_id, asked))
        return send(self, request, node_id)

    monkeypatch.setattr(ClusterConnections, "send", noted)
    return seen


def test_the_next_fetches_are_on_their_way_while_one_is_decoded(
    kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    sent: list[tuple[int, dict[int, int]]],
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    for partition in range(3):
        kafka.produce(topic_name, [bytes(1_000)] * 2_000, partition=partition)
    ranges = [OffsetRange(topic_name, partition, 0, 2_000) for partition in range(3)]
    read: dict[int, int] = {}
    for found, batch in fetcher(batch_rows=10, max_partition_fetch_bytes=200_000).read(ranges):
        read[found.partition] = batch.column("offset")[-1].as_py()
        asked = {partition: offset for _, one in sent for partition, offset in one.items()}
        if read[found.partition] < 1_500:
            assert asked[found.partition] > read[found.partition], "no fetch is ahead"
        assert asked[found.partition] - read[found.partition] <= 400, "more than one is ahead"
        unread = sum(offset > read.get(partition, -1) for partition, offset in asked.items())
        assert unread <= 3
    assert read == {0: 1_999, 1: 1_999, 2: 1_999}
    every = [(partition, offset) for _, one in sent for partition, offset in one.items()]
    assert len(set(every)) == len(every), "something was asked for twice"
    # Two at a time: the third begins when the first is read.
    assert next(i for i, (_, one) in enumerate(sent) if 2 in one) >= 5


def test_small_ranges_are_asked_for_together(
    kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    sent: list[tuple[int, dict[int, int]]],
) -> None:
    kafka.create_topic(topic_name, partitions=40)
    for partition in range(40):
        kafka.produce(topic_name, values(10), partition=partition)
    ranges = [OffsetRange(topic_name, partition, partition % 10, 10) for partition in range(40)]
    expected = {one: list(range(one.start, one.end)) for one in ranges}
    assert by_range(fetcher().read(ranges)) == expected
    assert len(sent) == 1


def test_what_found_no_room_in_an_answer_is_not_taken_for_a_gap(
    kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    sent: list[tuple[int, dict[int, int]]],
) -> None:
    """An answer is cut where it is full: the partitions behind are answered as if empty."""
    kafka.create_topic(topic_name, partitions=20)
    for partition in range(20):
        kafka.produce(
            topic_name, [b"%d " % n + bytes(70_000) for n in range(5)], partition=partition
        )
    reader = fetcher(max_partition_fetch_bytes=300_000)
    reader._bytes_per_offset[topic_name] = 1.0  # far too little
    ranges = [OffsetRange(topic_name, partition, 0, 5) for partition in range(20)]
    assert by_range(reader.read(ranges)) == {one: [0, 1, 2, 3, 4] for one in ranges}
    assert len(sent[0][1]) == 4
    assert len({len(one) for _, one in sent}) > 1


# Replicas nearby (KIP-392)


def id_of(kafka: LocalKafka, topic: str) -> UUID:
    with DeferredRevokeConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id="ids") as asked:
        return asked.topic_ids_now([topic], 10_000)[topic]


@pytest.mark.parametrize(
    "by_id", [pytest.param(False, marks=pytest.mark.long), True], ids=["by name", "by id"]
)
def test_the_nearest_replica_is_read_and_the_leader_when_it_is_gone(
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    sent: list[tuple[int, dict[int, int]]],
    by_id: bool,
) -> None:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with LocalKafka(brokers=3, broker_config={"replica.selector.class": selector}) as local:
        local.create_topic(topic_name, partitions=1, replication_factor=3)
        many = values(3_000, size=200)
        for at in range(0, len(many), 100):  # many fetches: one is answered before the kill
            local.produce(topic_name, many[at : at + 100], partition=0)
        plain = fetcher(local.bootstrap_servers)
        whole = OffsetRange(topic_name, 0, 0, 3_000)
        ids = {whole: id_of(local, topic_name)} if by_id else {}
        assert len(rows_of(plain, whole)) == 3_000
        ((leader, _),) = sent
        near = next(broker for broker in local.broker_ids if broker != leader)
        sent.clear()
        reader = fetcher(
            local.bootstrap_servers, client_rack=f"rack-{near}", max_partition_fetch_bytes=20_000
        )
        read: list[int] = []
        for _, batch in reader.read([whole], ids):
            read += batch.column("offset").to_pylist()
        assert read == list(range(3_000))
        brokers = [broker for broker, _ in sent]
        assert brokers[0] == leader
        assert set(brokers[1:]) == {near}
        sent.clear()
        read = []
        reader = fetcher(
            local.bootstrap_servers,
            client_rack=f"rack-{near}",
            max_partition_fetch_bytes=20_000,
            batch_rows=100,
        )
        for _, batch in reader.read([whole], ids):
            read += batch.column("offset").to_pylist()
            if near in local.running:
                local.kill(near)
        assert read == list(range(3_000))
        assert {broker for broker, _ in sent} >= {near, leader}
        assert sent[-1][0] != near


# Transactions


@pytest.fixture
def transactions(kafka: LocalKafka, topic_name: str) -> Iterator[KafkaProducer]:
    kafka.create_topic(topic_name)
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_name, linger_ms=0
    )
    producer.init_transactions()
    yield producer
    producer.close(timeout=1)


def produce_transactions(producer: KafkaProducer, topic: str, fates: str) -> None:
    """Ten records and a marker (c, a), or ten records left open (o)."""
    for fate in fates:
        producer.begin_transaction()
        for n in range(10):
            producer.send(topic, fate.encode() + b"%d" % n, partition=0)
        producer.flush()
        if fate == "c":
            producer.commit_transaction()
        elif fate == "a":
            producer.abort_transaction()


def test_read_committed_leaves_out_exactly_what_was_aborted(
    transactions: KafkaProducer, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    produce_transactions(transactions, topic_name, "caacac")
    everything = OffsetRange(topic_name, 0, 0, 66)
    for size in (1, 4 * 1024 * 1024):  # every batch in a fetch of its own, or all in one
        small = {"max_partition_fetch_bytes": size}
        committed = rows_of(fetcher(isolation_level="read_committed", **small), everything)
        assert offsets(committed) == [*range(10), *range(33, 43), *range(55, 65)]
        assert {row["value"][:1] for row in committed} == {b"c"}
        read = rows_of(fetcher(**small), everything)
        assert offsets(read) == [n for n in range(66) if n % 11 != 10]
    inside = OffsetRange(topic_name, 0, 15, 38)
    read = rows_of(fetcher(isolation_level="read_committed"), inside)
    assert offsets(read) == [*range(33, 38)]


def test_an_open_transaction_is_waited_for(
    transactions: KafkaProducer, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    produce_transactions(transactions, topic_name, "co")
    whole = OffsetRange(topic_name, 0, 0, 21)
    assert len(rows_of(fetcher(), whole)) == 20
    impatient = fetcher(
        isolation_level="read_committed", retry_timeout_ms=300, fetch_max_wait_ms=50
    )
    with pytest.raises(KafkaRebalanceError, match=r"open transaction .* at 11") as caught:
        rows_of(impatient, whole)
    assert str(whole) in str(caught.value)
    assert not isinstance(caught.value, DataLossError)
    read: list[dict[str, Any]] = []
    patient = fetcher(isolation_level="read_committed", fetch_max_wait_ms=50)
    reading = threading.Thread(target=lambda: read.extend(rows_of(patient, whole)))
    reading.start()
    transactions.commit_transaction()
    reading.join(60)
    assert offsets(read) == [*range(10), *range(11, 21)]


# Gaps and losses


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


#: As eagerly as a broker does it.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.ms": 100,
    "min.cleanable.dirty.ratio": 0.001,
    "delete.retention.ms": 0,
}


def test_a_compacted_topic(
    own_kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    own_kafka.create_topic(topic_name, config=COMPACTED)
    for _ in range(3):
        keys = [b"k%d" % (n % 50) for n in range(500)]
        own_kafka.produce(topic_name, values(500), keys=keys, partition=0)
        time.sleep(0.3)
    own_kafka.produce(topic_name, [b"last"], keys=[b"last"], partition=0)
    whole = OffsetRange(topic_name, 0, 0, 1_501)
    reader = fetcher(own_kafka.bootstrap_servers)
    wait_until(lambda: len(rows_of(reader, whole)) < 600)
    read = rows_of(reader, whole)
    assert offsets(read) == sorted(set(offsets(read)))
    # The last of every key is always there, and a range may begin and end inside a gap.
    assert {row["key"]: row["offset"] for row in read} == {
        **{b"k%d" % n: 1_450 + n for n in range(50)},
        b"last": 1_500,
    }
    assert rows_of(reader, OffsetRange(topic_name, 0, 3, 7)) == []
    assert offsets(rows_of(reader, OffsetRange(topic_name, 0, 600, 1_452)))[-2:] == [1_450, 1_451]


def test_markers_that_compaction_has_emptied(
    own_kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    group_id: str,
) -> None:
    """The last marker of a producer stays, with no record in its batch: it was called corrupt."""
    own_kafka.create_topic(topic_name, config=COMPACTED)
    partition = TopicPartition(topic_name, 0)
    # The marker that ends a transaction for its fenced producer is of a new epoch, of which the log
    # has nothing else. (With transactions v2 every marker is such a one.)
    for transactional_id in (f"{topic_name}-0", f"{topic_name}-1"):
        fenced, fencing = (
            KafkaProducer(
                bootstrap_servers=own_kafka.bootstrap_servers, transactional_id=transactional_id
            )
            for _ in range(2)
        )
        fenced.init_transactions()
        fenced.begin_transaction()
        fenced.send(topic_name, b"old", key=b"k", partition=0)
        fenced.flush()
        fencing.init_transactions()
        for producer in (fencing, fenced):
            producer.close(timeout=1)
    emptied: set[int] = set()

    def cleaned() -> bool:
        own_kafka.produce(topic_name, [b"new"], keys=[b"k"], partition=0)  # rolls the segment
        try:
            segments = [
                path.read_bytes() for path in own_kafka.folder.rglob(f"{topic_name}-0/*.log")
            ]
        except FileNotFoundError:  # being swapped
            return False
        emptied.update(
            batch.base_offset
            for segment in segments
            for batch in MemoryRecords(segment)
            if batch.is_control_batch and not batch.records_count
        )
        return len(emptied) == 2

    wait_until(cleaned)
    producer = KafkaProducer(
        bootstrap_servers=own_kafka.bootstrap_servers, transactional_id=f"{topic_name}-last"
    )
    producer.init_transactions()
    produce_transactions(producer, topic_name, "a")  # without it markers need not be looked at
    producer.close()
    own_kafka.produce(topic_name, [b"the end"], keys=[b"end"], partition=0)
    for level in ("read_committed", "read_uncommitted"):
        consumer = DeferredRevokeConsumer(
            bootstrap_servers=own_kafka.bootstrap_servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            isolation_level=level,
        )
        try:
            consumer.assign([partition])
            (end,) = consumer.end_offsets([partition]).values()
            reader = fetcher(own_kafka.bootstrap_servers, isolation_level=level)
            assert rows_of(reader, OffsetRange(topic_name, 0, 0, end))[-1]["value"] == b"the end"

            def objects(consumer: DeferredRevokeConsumer = consumer) -> list[bytes]:
                return [r.value for found in consumer.poll(100).values() for r in found]

            def arrow(consumer: DeferredRevokeConsumer = consumer) -> list[bytes]:
                found = consumer.poll_arrow(100).records.values()
                return [
                    v for batches in found for b in batches for v in b.column("value").to_pylist()
                ]

            for poll in (objects, arrow):
                consumer.seek_to_beginning(partition)
                wait_until(lambda poll=poll: b"the end" in poll())
        finally:
            consumer.close()


def delete_before(kafka: LocalKafka, topic: str, offset: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, 0): offset})
    admin.close()


def test_deleted_records(
    kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(100), partition=0)
    delete_before(kafka, topic_name, 40)
    half_gone = OffsetRange(topic_name, 0, 20, 60)
    with pytest.raises(DataLossError) as caught:
        rows_of(fetcher(), half_gone)
    assert str(half_gone) in str(caught.value)
    assert "begins at offset 40" in str(caught.value)
    lenient = fetcher(fail_on_data_loss=False)
    assert offsets(rows_of(lenient, half_gone)) == list(range(40, 60))
    assert "begins at offset 40" in caplog.text
    gone = OffsetRange(topic_name, 0, 0, 20)
    assert offsets(rows_of(lenient, gone, OffsetRange(topic_name, 0, 98, 100))) == [98, 99]
    assert offsets(rows_of(fetcher(), OffsetRange(topic_name, 0, 40, 100))) == [*range(40, 100)]


def test_an_end_or_a_start_past_the_log(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(100), partition=0)
    for start in (90, 100, 150):
        past = OffsetRange(topic_name, 0, start, 200)
        with pytest.raises(DataLossError, match="log ends at offset 100") as caught:
            rows_of(fetcher(fetch_max_wait_ms=50), past)
        assert str(past) in str(caught.value)
        lenient = fetcher(fail_on_data_loss=False, fetch_max_wait_ms=50)
        assert offsets(rows_of(lenient, past)) == [*range(start, 100)]


def test_a_missing_topic_or_partition(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(3), partition=0)
    there = OffsetRange(topic_name, 0, 0, 3)
    for missing in (OffsetRange("no-such-topic", 0, 0, 10), OffsetRange(topic_name, 9, 0, 10)):
        with pytest.raises(DataLossError, match="does not exist") as caught:
            rows_of(fetcher(retry_timeout_ms=200), missing, there)
        assert str(missing) in str(caught.value)
        lenient = fetcher(retry_timeout_ms=200, fail_on_data_loss=False)
        assert offsets(rows_of(lenient, missing, there)) == [0, 1, 2]


def test_a_topic_that_was_created_anew_is_not_read_in_the_place_of_the_one_that_is_meant(
    kafka: LocalKafka,
    fetcher: Callable[..., RangeFetcher],
    topic_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    other = f"{topic_name}-other"
    for topic in (topic_name, other):
        kafka.create_topic(topic)
        kafka.produce(topic, values(10), partition=0)
    one, two = OffsetRange(topic_name, 0, 5, 10), OffsetRange(other, 0, 0, 10)
    old = {one: id_of(kafka, topic_name), two: id_of(kafka, other)}
    for ids in (old, {one: old[one]}, {}):  # by ids, by names where some are not known
        read = [(r, offsets(b.to_pylist())) for r, b in fetcher().read([one, two], ids)]
        assert sorted(read) == [(one, [*range(5, 10)]), (two, [*range(10)])]
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(20), partition=0)
    for ids in (old, {one: old[one]}):
        with pytest.raises(DataLossError, match="deleted and created again") as caught:
            list(fetcher().read([one, two], ids))
        assert str(one) in str(caught.value)
        lenient = fetcher(fail_on_data_loss=False)
        assert [r for r, _ in lenient.read([one, two], ids)] == [two]
    assert f"{one}: the topic was deleted and created again" in caplog.text
    new = id_of(kafka, topic_name)
    assert [r for r, _ in fetcher().read([one], {one: new})] == [one]


def test_a_damaged_segment(
    own_kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    own_kafka.create_topic(topic_name)
    for first in (0, 10, 20):
        own_kafka.produce(topic_name, [b"marked-%d" % first] * 10, partition=0)
    own_kafka.stop()
    (segment,) = own_kafka.folder.rglob(f"{topic_name}-0/*.log")
    content = bytearray(segment.read_bytes())
    content[content.index(b"marked-10")] ^= 1
    segment.write_bytes(content)
    own_kafka.restart()
    reader = fetcher(own_kafka.bootstrap_servers)
    with pytest.raises(CorruptRecordError, match="CRC-32C") as caught:
        rows_of(reader, OffsetRange(topic_name, 0, 0, 30))
    error = caught.value
    assert (error.topic, error.partition, error.offset) == (topic_name, 0, 10)
    # What is not read is not checked.
    assert len(rows_of(reader, OffsetRange(topic_name, 0, 0, 10))) == 10
    assert len(rows_of(reader, OffsetRange(topic_name, 0, 20, 30))) == 10


# Brokers that go


def test_leaders_killed_in_the_middle_of_their_ranges(
    kafka3: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    kafka3.create_topic(topic_name, partitions=6, replication_factor=3)
    for partition in range(6):
        kafka3.produce(topic_name, [b"%d" % n * 50 for n in range(3_000)], partition=partition)
    ranges = [OffsetRange(topic_name, partition, 0, 3_000) for partition in range(6)]
    reader = fetcher(kafka3.bootstrap_servers, batch_rows=100, max_partition_fetch_bytes=20_000)
    read: dict[OffsetRange, list[int]] = {one: [] for one in ranges}
    killed = False
    for found, batch in reader.read(ranges):
        read[found] += batch.column("offset").to_pylist()
        if not killed and len(read[ranges[0]]) > 1_000:
            kafka3.kill(leader_of(reader, topic_name))
            killed = True
    assert read == {one: list(range(3_000)) for one in ranges}
    kafka3.restart(next(n for n in kafka3.broker_ids if n not in kafka3.running))
    assert len(rows_of(reader, ranges[0])) == 3_000


def leader_of(reader: RangeFetcher, topic: str) -> int:
    from pyspark_kafka_rebalance.fetch.leaders import PartitionLeaders

    assert reader._connections is not None
    return PartitionLeaders(reader._connections, [topic]).locate(topic, 0).node_id


def test_a_broker_that_is_restarted_between_two_reads(
    own_kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    own_kafka.create_topic(topic_name)
    own_kafka.produce(topic_name, values(10), partition=0)
    reader = fetcher(own_kafka.bootstrap_servers)
    assert len(rows_of(reader, OffsetRange(topic_name, 0, 0, 10))) == 10
    own_kafka.restart()
    assert len(rows_of(reader, OffsetRange(topic_name, 0, 0, 10))) == 10


def test_a_broker_that_is_gone_for_good(fetcher: Callable[..., RangeFetcher]) -> None:
    with LocalKafka() as local:
        local.create_topic("orders")
        for _ in range(20):  # a record batch each: more than the two fetches that run ahead bring
            local.produce("orders", [bytes(1_000)] * 25, partition=0)
        reading = fetcher(
            local.bootstrap_servers,
            retry_timeout_ms=1_000,
            batch_rows=10,
            max_partition_fetch_bytes=65_536,
        ).read([OffsetRange("orders", 0, 0, 500)])
        next(reading)
        local.kill()
        with pytest.raises(KafkaRebalanceError, match=r"orders-0 \[0, 500\).*at offset \d+"):
            list(reading)
    with socket.socket() as unheard:  # bound, so that no other broker comes to listen there
        unheard.bind(("127.0.0.1", 0))
        nobody = fetcher(f"127.0.0.1:{unheard.getsockname()[1]}", retry_timeout_ms=500)
        with pytest.raises(KafkaRebalanceError, match="no broker of"):
            nobody.connect()


# Connections


def test_fetchers_of_one_cluster_share_connections(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher]
) -> None:
    first, second, other = fetcher(), fetcher(), fetcher(kafka.bootstrap_servers + ",")
    config = {"bootstrap_servers": kafka.bootstrap_servers, "client_id": "another"}
    other = RangeFetcher(config)
    for one in (first, second, other):
        one.connect()
    assert first._connections is second._connections
    assert first._connections is not other._connections
    kept = first._connections
    for one in (first, second, other):
        one.close()
    third = fetcher()
    third.connect()
    assert third._connections is kept


def test_connections_that_nobody_uses_are_few(kafka: LocalKafka) -> None:
    before = threading.active_count()
    for n in range(10):
        config = {"bootstrap_servers": kafka.bootstrap_servers, "client_id": f"client-{n}"}
        one = RangeFetcher(config)
        one.connect()
        one.close()
    assert threading.active_count() <= before + 4


def _read_in_child(servers: str, topic: str, answers: Any) -> None:
    reader = RangeFetcher({"bootstrap_servers": servers})
    rows = len(rows_of(reader, OffsetRange(topic, 0, 0, 100)))
    reader.close()
    connections.close_all()
    # Collecting what belongs to the parent would unregister its sockets from the selector that
    # both processes share.
    answers.put((rows, [pid for pid, _ in connections._cache if pid != os.getpid()]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_leaves_its_parents_connections_alone(
    kafka: LocalKafka, fetcher: Callable[..., RangeFetcher], topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, values(100), partition=0)
    parent = fetcher(batch_rows=10)
    reading = parent.read([OffsetRange(topic_name, 0, 0, 100)])
    next(reading)
    used = parent._connections
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    arguments = (kafka.bootstrap_servers, topic_name, answers)
    child = context.Process(target=_read_in_child, args=arguments)
    child.start()
    rows, kept = answers.get(timeout=60)
    assert rows == 100
    assert os.getpid() in kept
    child.join(60)
    assert child.exitcode == 0
    assert sum(batch.num_rows for _, batch in reading) < 100
    assert len(rows_of(parent, OffsetRange(topic_name, 0, 0, 100))) == 100
    assert parent._connections is used


def test_what_is_no_kafka_broker_is_said(fetcher: Callable[..., RangeFetcher]) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        stop = threading.Event()

        def answer() -> None:
            server.settimeout(0.1)
            while not stop.is_set():
                try:
                    client, _ = server.accept()
                except TimeoutError:
                    continue
                with client:
                    client.recv(100)
                    client.sendall(struct.pack(">i", 2**31 - 1))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            port = server.getsockname()[1]
            with pytest.raises(KafkaRebalanceError, match="could be reached"):
                fetcher(f"127.0.0.1:{port}", retry_timeout_ms=500).connect()
        finally:
            stop.set()
            thread.join()
