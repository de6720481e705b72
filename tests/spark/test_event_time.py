"""maxTaskIdleMs: what a watermark drops of skewed partitions, on real brokers and real Spark."""

from __future__ import annotations

import time
from functools import partial

import confluent_kafka
import pytest
from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import stop_gracefully

from . import waiting
from .conftest import built_in_source, many_batches

wait_until = partial(waiting.wait_until, patience_s=120.0)

#: An hour ago, to the second: what is in the future is a matter of its own.
SINCE_MS = (int(time.time()) - 3_600) * 1_000

MINUTE_MS = 60_000


def produce(kafka, topic, timestamps, partition=0, transactional_id=None, transaction=500):
    """Records of these times; each value says where it is from."""
    # Otherwise what is sent again, as on a busy machine, is written behind later records.
    config = {
        "bootstrap.servers": kafka.bootstrap_servers,
        "linger.ms": 20,
        "enable.idempotence": True,
    }
    if transactional_id is not None:
        config["transactional.id"] = transactional_id
    producer = confluent_kafka.Producer(config)
    refused = []
    if transactional_id is not None:
        producer.init_transactions(60)
    for number, timestamp in enumerate(timestamps):
        if transactional_id is not None and number % transaction == 0:
            if number:
                producer.commit_transaction(60)
            producer.begin_transaction()
        value = b"%s-%d-%d" % (topic.encode(), partition, number)
        while True:
            try:
                producer.produce(
                    topic,
                    value,
                    partition=partition,
                    timestamp=timestamp,
                    on_delivery=lambda error, _: refused.append(error) if error else None,
                )
                break
            except BufferError:
                producer.poll(0.1)
    if transactional_id is not None:
        producer.commit_transaction(60)
    assert producer.flush(60) == 0
    assert not refused
    if transactional_id is not None:
        wait_for_markers(kafka, TopicPartition(topic, partition))


def wait_for_markers(kafka, partition):
    """A transaction is committed before its marker is in the log: a run might end before that."""
    levels = ("read_committed", "read_uncommitted")
    consumers = [
        KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, isolation_level=level)
        for level in levels
    ]

    def stable():
        return len({consumer.end_offsets([partition])[partition] for consumer in consumers}) == 1

    wait_until(stable, "the last marker")
    for consumer in consumers:
        consumer.close()


def spread(count, begin_minute, minutes=30):
    """So many timestamps over these minutes."""
    begin = SINCE_MS + begin_minute * MINUTE_MS
    return [begin + minutes * MINUTE_MS * n // count for n in range(count)]


def dropped(query):
    return sum(
        operator["numRowsDroppedByWatermark"]
        for progress in query.recentProgress
        for operator in progress["stateOperators"]
    )


class Deduplicated:
    """A query with a 10 s watermark: what it has dropped, and what has come through."""

    def __init__(self, spark, frame, folder):
        self.values = []
        self.query = (
            frame.withWatermark("timestamp", "10 seconds")
            .dropDuplicates(["timestamp", "value"])
            .writeStream.option("checkpointLocation", str(folder))
            .foreachBatch(self._keep)
            .trigger(availableNow=True)
            .start()
        )
        assert self.query.awaitTermination(300)
        self.dropped = dropped(self.query)
        self.batches = sum(p["numInputRows"] > 0 for p in self.query.recentProgress)

    def _keep(self, batch, batch_id):
        rows = batch.select("topic", "partition", "offset").toArrow()
        self.values += zip(*(column.to_pylist() for column in rows.columns), strict=True)


@pytest.fixture
def skewed(kafka, topic_name):
    """Two topics of two partitions; one is 15 minutes behind, and its partitions two minutes."""
    behind, ahead = topic_name, f"{topic_name}-ahead"
    for topic, minute in ((behind, 0), (ahead, 15)):
        kafka.create_topic(topic, partitions=2)
        produce(kafka, topic, spread(8_000, minute), 0)
        produce(kafka, topic, spread(12_000, minute + 2), 1)
    return f"{behind},{ahead}"


@built_in_source
@many_batches
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_watermark_drops_nothing_of_a_skewed_backlog(
    spark, kafka, group_id, skewed, tmp_path, protocol
):
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": skewed,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": "4000",
    }
    ours = Deduplicated(
        spark,
        spark.readStream.format("kafka_deferred")
        .options(**options)
        .option("kafka.group.id", group_id)
        .option("kafka.group.protocol", protocol)
        .option("readers", "2")
        .option("maxTaskIdleMs", "0")
        .load(),
        tmp_path / "ours",
    )
    del options["maxOffsetsPerTrigger"]
    plain = spark.read.format("kafka").options(**options).load()
    rows = plain.dropDuplicates(["timestamp", "value"]).select("topic", "partition", "offset")
    expected = [tuple(row) for row in rows.collect()]
    assert len(expected) == 40_000
    assert ours.dropped == 0
    assert sorted(ours.values) == sorted(expected)
    assert 10 <= ours.batches <= 13
    if protocol == "classic":
        options["maxOffsetsPerTrigger"] = "4000"
        frame = spark.readStream.format("kafka").options(**options).load()
        built_in = Deduplicated(spark, frame, tmp_path / "built-in")
        assert built_in.dropped > 4_000


def lateness(batches):
    """By how many ms the latest row is older than one of a batch before it."""
    reached, most = None, 0
    for _, rows in sorted(batches.items()):
        times = [at.timestamp() for at in rows["timestamp"].to_pylist()] if rows.num_rows else []
        times = [at for at in times if at < time.time() + 3_600]  # but for those of the future
        if times and reached is not None:
            most = max(most, reached - min(times))
        reached = max([*times, *([] if reached is None else [reached])], default=None)
    return round(most * 1_000)


def counts(batches):
    return [rows.num_rows for _, rows in sorted(batches.items()) if rows.num_rows]


@many_batches
def test_copied_transactions_are_read_in_order(kafka, topic_name, stream):
    """Their markers have the time of the copy, which look-ups take for records."""
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, spread(3_000, 0), 0, transactional_id=f"{topic_name}-0")
    produce(kafka, topic_name, spread(3_000, 10), 1, transactional_id=f"{topic_name}-1")
    query = stream(
        maxTaskIdleMs="0", maxOffsetsPerTrigger="1000", kafka__isolation__level="read_committed"
    )
    assert query.run().num_rows == 6_000
    assert lateness(query.batches) == 0


@many_batches
@pytest.mark.parametrize("isolation_level", ["read_committed", "read_uncommitted"])
def test_transactions_that_commit_some_seconds_after_their_records_are_read_in_order(
    kafka, topic_name, stream, isolation_level
):
    """Their markers have the time of now, as late as the other partition's last records."""
    kafka.create_topic(topic_name, partitions=2)
    since_ms = int(time.time() * 1_000) - 30_000
    times = [since_ms + 10 * number for number in range(3_000)]
    produce(kafka, topic_name, times, 0, transactional_id=topic_name, transaction=100)
    produce(kafka, topic_name, times, 1)
    query = stream(
        maxTaskIdleMs="0", maxOffsetsPerTrigger="500", kafka__isolation__level=isolation_level
    )
    assert query.run().num_rows == 6_000
    assert lateness(query.batches) == 0


@many_batches
def test_a_record_of_the_future_changes_no_order(kafka, topic_name, stream):
    longest = {"message.timestamp.after.max.ms": str(2**63 - 1)}
    kafka.create_topic(topic_name, partitions=2, config=longest)
    behind = spread(3_000, 0)
    behind[500] = SINCE_MS + 10 * 365 * 24 * 60 * MINUTE_MS
    produce(kafka, topic_name, behind, 0)
    produce(kafka, topic_name, spread(3_000, 10), 1)
    query = stream(maxTaskIdleMs="0", maxOffsetsPerTrigger="1000")
    assert query.run().num_rows == 6_000
    assert lateness(query.batches) == 0
    assert len(counts(query.batches)) <= 9


@many_batches
def test_a_drift_bytes_and_named_partitions(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=3)
    produce(kafka, topic_name, spread(4_000, 0), 0)
    produce(kafka, topic_name, spread(4_000, 20), 2)
    query = stream(
        subscribe="",
        assign=f'{{"{topic_name}":[0,2]}}',
        maxTaskIdleMs="0",
        maxTimestampDrift="5m",
        maxBytesPerTrigger="50000",
    )
    assert query.run().num_rows == 8_000
    assert lateness(query.batches) <= 5 * MINUTE_MS
    assert len(counts(query.batches)) > 5


@many_batches
def test_the_next_run_goes_on_in_order(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, spread(4_000, 0), 0)
    produce(kafka, topic_name, spread(4_000, 10), 1)
    query = stream(maxTaskIdleMs="0", maxOffsetsPerTrigger="100")
    query.start(processingTime="0 seconds")
    wait_until(lambda: len(counts(query.batches)) > 4, "it reads")
    query.query.stop()
    wait_until(lambda: not query.query.isActive, "it stops")
    read = sum(counts(query.batches))
    assert read < 8_000
    query.options["maxOffsetsPerTrigger"] = "500"
    query.run()
    assert sum(counts(query.batches)) == 8_000
    assert lateness(query.batches) == 0


def test_what_may_still_come_is_waited_for(kafka, topic_name, stream):
    """With a partition that is behind, one that stops for longer than allowed, and its return."""
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, spread(100, 0, 10), 0)
    produce(kafka, topic_name, spread(100, 0, 20), 1)
    query = stream(maxTaskIdleMs="3600000")

    def batches_of(partition):
        """Of each of its records, the number of the batch."""
        return [
            number
            for number, rows in sorted(query.batches.items())
            if rows.num_rows
            for p in rows["partition"].to_pylist()
            if p == partition
        ]

    def read(partition):
        return len(batches_of(partition))

    query.start(processingTime="100 milliseconds")
    wait_until(lambda: read(0) == 100, "the one that is behind is read")
    assert read(1) == 50, "the other no further"
    produce(kafka, topic_name, spread(50, 10, 5), 0)
    wait_until(lambda: read(0) == 150, "its records are not late")
    assert 73 <= read(1) <= 76
    assert stop_gracefully(query.query)

    query.options["maxTaskIdleMs"] = "4000"
    began_at = time.monotonic()
    query.start(processingTime="100 milliseconds")
    wait_until(lambda: read(1) == 100, "in the end nobody waits")
    assert time.monotonic() - began_at > 3.5
    began_at = time.monotonic()
    produce(kafka, topic_name, spread(10, 20, 5), 0)
    produce(kafka, topic_name, spread(10, 30, 5), 1)
    wait_until(lambda: read(1) == 110, "it is waited for as long")
    assert time.monotonic() - began_at > 3.5, "it is back, and holds the other back again"
    assert batches_of(0)[-1] < batches_of(1)[100]
    assert read(0) == 160
    assert lateness(query.batches) == 0


def test_a_partition_is_waited_for_from_its_last_record_on_and_not_from_its_commit(
    kafka, topic_name, stream
):
    kafka.create_topic(topic_name, partitions=2)
    since_ms = int(time.time() * 1_000) - 40_000
    times = [since_ms + 10 * number for number in range(4_000)]
    produce(kafka, topic_name, times[:1_000], 0, transactional_id=topic_name, transaction=100)
    produce(kafka, topic_name, times, 1)
    query = stream(maxTaskIdleMs="3600000")

    def read(partition):
        batches = [rows for _, rows in sorted(query.batches.items()) if rows.num_rows]
        return sum(rows["partition"].to_pylist().count(partition) for rows in batches)

    query.start(processingTime="100 milliseconds")
    wait_until(lambda: read(0) == 1_000, "what is there is read")
    produce(kafka, topic_name, times[1_000:], 0, transactional_id=topic_name, transaction=100)
    wait_until(lambda: read(0) == read(1) == 4_000, "the rest is read")
    assert lateness(query.batches) == 0
