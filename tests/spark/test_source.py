"""One query on a real broker and real Spark: options, columns, offsets, errors."""

from __future__ import annotations

import json
import os
import re
import tempfile
from functools import partial
from pathlib import Path

import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.errors import AnalysisException, StreamingQueryException

from pyspark_kafka_rebalance import progress
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL

from .conftest import many_batches, offsets_of
from .waiting import wait_until

both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


def shown_first(error: Exception) -> str:
    """What Spark shows of an error after what it says itself: without Python's stacks, our line."""
    said, ours, line = str(error).partition("pyspark_kafka_rebalance.errors.")
    assert ours, said
    assert "Traceback (most recent call last)" not in str(error)
    assert " File " not in str(error)
    return line


@both_protocols
def test_available_now_reads_what_is_there_once_and_commits_it(
    kafka, topic_name, stream, committed, protocol
):
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"%d" % n for n in range(300)])
    query = stream(kafka__group__protocol=protocol)
    first = query.run()
    assert offsets_of(first) == [(p, o) for p in range(3) for o in range(100)]
    assert sorted(first["value"].to_pylist()) == sorted(b"%d" % n for n in range(300))
    wait_until(
        lambda: committed() == {TopicPartition(topic_name, p): 100 for p in range(3)}, "committed"
    )
    kafka.produce(topic_name, [b"more"] * 30)
    second = query.run()
    assert offsets_of(second) == [(p, o) for p in range(3) for o in range(100, 110)]
    assert query.run().num_rows == 0
    wait_until(
        lambda: committed() == {TopicPartition(topic_name, p): 110 for p in range(3)}, "committed"
    )


def test_columns_are_those_of_sparks_source_and_the_state_of_the_group(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    producer.send(
        topic_name, key=b"k", value=b"v", timestamp_ms=1_700_000_000_123, headers=[("h", b"1")]
    )
    producer.send(topic_name, key=None, value=b"", timestamp_ms=1_700_000_000_456)
    producer.send(topic_name, key=b"", value=None, timestamp_ms=1_700_000_000_789)
    producer.close()
    query = stream(includeHeaders="true")
    rows = query.run().to_pylist()
    assert [row["key"] for row in rows] == [b"k", None, b""]
    assert [row["value"] for row in rows] == [b"v", b"", None]
    assert [row["headers"] for row in rows] == [[{"key": "h", "value": b"1"}], None, None]
    assert [int(row["timestamp"].timestamp() * 1000) for row in rows] == [
        1_700_000_000_123,
        1_700_000_000_456,
        1_700_000_000_789,
    ]
    assert {(row["topic"], row["partition"], row["timestampType"]) for row in rows} == {
        (topic_name, 0, 0)
    }
    assert {(row["revoking"], row["lost"]) for row in rows} == {(False, False)}
    assert all(row["generation"] >= 1 for row in rows)
    assert list(rows[0]) == [
        *("key", "value", "topic", "partition", "offset", "timestamp", "timestampType"),
        *("headers", "revoking", "lost", "generation"),
    ]


@many_batches
def test_once_reads_what_is_there(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    assert stream(maxOffsetsPerTrigger="5").run(once=True).num_rows == 20


@many_batches
def test_max_offsets_per_trigger_bounds_every_batch(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 300)
    query = stream(maxOffsetsPerTrigger="100")
    assert query.run().num_rows == 300
    sizes = [table.num_rows for table in query.batches.values()]
    assert max(sizes) <= 100
    assert len([size for size in sizes if size]) >= 3


@many_batches
def test_max_bytes_per_trigger_bounds_every_batch(kafka, topic_name, stream):
    """By what the brokers' logs take: partitions with small records, large ones, and none."""
    kafka.create_topic(topic_name, partitions=3)
    sizes = {0: 1_000, 1: 100}
    for partition, size in sizes.items():
        for _ in range(10):
            kafka.produce(topic_name, [os.urandom(size)] * 100, partition=partition)
    query = stream(maxBytesPerTrigger="200000")
    assert query.run().num_rows == 2_000
    batches = [table for table in query.batches.values() if table.num_rows]
    bytes_of = [sum(len(value) for value in table["value"].to_pylist()) for table in batches]
    # Records take some tens of bytes beside their values, and the whole is 1.2 MB.
    assert max(bytes_of) <= 200_000
    assert 5 <= len(batches) <= 12


@both_protocols
def test_each_reader_is_a_member_and_commits_follow_every_batch(
    kafka, topic_name, group_id, stream, committed, protocol
):
    kafka.create_topic(topic_name, partitions=12)
    kafka.produce(topic_name, [b"x"] * 120)
    query = stream(readers="4", kafka__group__protocol=protocol)
    query.start(processingTime="0 seconds")
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:

        def shares():
            return sorted(len(m.assigned) for m in describe_group(admin, group_id).members)

        wait_until(lambda: shares() == [3, 3, 3, 3], "four members with three partitions each")
        for end in (10, 20):
            wait_until(
                lambda end=end: (
                    committed() == {TopicPartition(topic_name, p): end for p in range(12)}
                ),
                f"all committed at {end}",
            )
            if end < 20:
                kafka.produce(topic_name, [b"x"] * 120)
    finally:
        admin.close()
    assert offsets_of(query.rows()) == [(p, o) for p in range(12) for o in range(20)]


@pytest.mark.core
def test_a_restart_goes_on_where_the_checkpoint_is(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    query = stream()
    running = query.start(processingTime="0 seconds")
    wait_until(lambda: query.rows().num_rows == 20, "the first 20")
    running.stop()
    kafka.produce(topic_name, [b"x"] * 20)
    running = query.start(processingTime="0 seconds")
    wait_until(lambda: query.rows().num_rows >= 40, "the next 20")
    running.stop()
    assert offsets_of(query.rows()) == [(p, o) for p in range(2) for o in range(20)]


def test_a_new_query_of_the_group_starts_at_its_committed_offsets(
    kafka, topic_name, group_id, stream
):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    consumer.commit({TopicPartition(topic_name, 1): OffsetAndMetadata(7, "", -1)})
    consumer.close()
    rows = stream(startingOffsets="group", kafka__auto__offset__reset="earliest").run()
    assert offsets_of(rows) == [(0, o) for o in range(10)] + [(1, o) for o in range(7, 10)]


def test_starting_offsets_by_partition(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    starts = json.dumps({topic_name: {"0": 4, "1": -2, "2": -1}})
    rows = stream(startingOffsets=starts).run()
    assert offsets_of(rows) == [(0, o) for o in range(4, 10)] + [(1, o) for o in range(10)]


def test_latest_is_committed_at_once_so_that_the_next_owner_loses_nothing(
    kafka, topic_name, stream, committed
):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"old"] * 10)
    assert stream("first", startingOffsets="latest").run().num_rows == 0
    wait_until(
        lambda: committed() == {TopicPartition(topic_name, p): 5 for p in range(2)}, "committed"
    )
    kafka.produce(topic_name, [b"new"] * 10)
    rows = stream("second", startingOffsets="latest").run()
    assert rows["value"].to_pylist() == [b"new"] * 10


@both_protocols
def test_a_pattern_finds_topics_that_come_later_and_none_of_kafkas_own(
    kafka, topic_name, stream, protocol
):
    kafka.create_topic(f"{topic_name}.a", partitions=1)
    kafka.produce(f"{topic_name}.a", [b"a"] * 3)
    query = stream(
        subscribe="",
        subscribePattern=f"{topic_name}.*|__consumer_offsets",
        kafka__group__protocol=protocol,
        kafka__metadata__max__age__ms="300",
    )
    query.start(processingTime="0 seconds")
    wait_until(lambda: query.rows().num_rows == 3, "the first topic")
    kafka.create_topic(f"{topic_name}.b", partitions=2)
    kafka.produce(f"{topic_name}.b", [b"b"] * 4)
    wait_until(lambda: query.rows().num_rows == 7, "the second topic")
    assert pc.unique(query.rows()["topic"]).to_pylist() == [f"{topic_name}.a", f"{topic_name}.b"]


@pytest.mark.parametrize("starting", ["latest", "group"])
def test_an_added_partition_is_read_from_its_first_record(
    kafka, topic_name, stream, committed, starting
):
    """By auto.offset.reset=latest, what it got before it was found would be passed over."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"before"] * 5)
    query = stream(startingOffsets=starting, kafka__metadata__max__age__ms="500", readers="1")
    query.start(processingTime="0 seconds")
    wait_until(lambda: committed() == {TopicPartition(topic_name, 0): 5}, "it starts at the end")
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.create_partitions({topic_name: 2})
    admin.close()
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, metadata_max_age_ms=200)
    wait_until(lambda: 1 in producer.partitions_for(topic_name), "the producer knows it")
    for _ in range(7):
        producer.send(topic_name, b"new", partition=1)
    producer.close()
    wait_until(lambda: query.rows().num_rows >= 7, "what the new partition has")
    assert offsets_of(query.rows()) == [(1, o) for o in range(7)]


def test_a_partition_that_is_new_to_the_group_is_not_skipped_by_a_newcomer(
    kafka, topic_name, stream, committed
):
    """By ``latest``, whatever it got before the newcomer was given it would be passed over."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"before"] * 10)
    # A member of the consumer protocol: in the classic one the group's leader, whose metadata are
    # minutes old, would not assign them yet.
    options = {"startingOffsets": "latest", "readers": "1", "kafka__group__protocol": "consumer"}
    first = stream("first", **options)
    first.start(processingTime="0 seconds")
    starts = {TopicPartition(topic_name, p): 5 for p in range(2)}
    wait_until(lambda: committed() == starts, "the group begins at the end")
    kafka.add_partitions(topic_name, 4)
    for partition in (2, 3):
        kafka.produce(topic_name, [b"new"] * 100, partition=partition)
    second = stream("second", **options)
    second.start(processingTime="0 seconds")
    wait_until(
        lambda: committed() == starts | {TopicPartition(topic_name, p): 100 for p in (2, 3)},
        lambda: f"the group has {committed()}",
    )
    read = [offset for q in (first, second) if q.batches for offset in offsets_of(q.rows())]
    assert sorted(read) == [(p, o) for p in (2, 3) for o in range(100)]


def test_a_start_at_a_time(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=3)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for partition in range(2):
        for n in range(10):
            at_ms = 1_700_000_000_000 + 1_000 * (n - partition)
            producer.send(topic_name, b"x", partition=partition, timestamp_ms=at_ms)
    producer.close()
    at = {"startingTimestamp": "1700000008500", "startingOffsets": "earliest"}
    rows = stream(**at, startingOffsetsByTimestampStrategy="latest").run()
    assert offsets_of(rows) == [(0, 9)], "nothing of partition 1 is as late, and 2 is empty"
    fails = stream("other", **at, kafka__group__id=f"{topic_name}-other")
    with pytest.raises(StreamingQueryException, match="has no record with timestamp 1700000008500"):
        fails.run()


def test_a_batch_waits_until_there_is_enough(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    query = stream(minOffsetsPerTrigger="30", maxTriggerDelay="1h", readers="1")
    query.start(processingTime="0 seconds")
    kafka.produce(topic_name, [b"x"] * 10)
    wait_until(lambda: query.rows().num_rows == 10, "the first batch waits for nothing")
    kafka.produce(topic_name, [b"x"] * 20)
    kafka.produce(topic_name, [b"x"] * 10)
    wait_until(lambda: query.rows().num_rows == 40, "all that is there")
    assert [table.num_rows for table in query.batches.values() if table.num_rows][-1] >= 30


@many_batches
def test_the_commit_log_of_sources_with_names_is_read(
    spark, kafka, topic_name, stream, committed, tmp_path
):
    """Once runs a single trigger, so that nothing but the commit log tells of its batch."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    setting = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
    spark.conf.set(setting, "true")
    try:
        orders = spark.readStream.format("kafka_deferred").options(**stream().options)
        rates = spark.readStream.format("rate").name("beside").load().selectExpr("null topic")
        frame = orders.name("orders").load().select("topic").union(rates)
        running = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", stream().options["checkpointLocation"])
            .trigger(once=True)
            .start()
        )
        assert running.awaitTermination(120)
    finally:
        spark.conf.unset(setting)
    logged = (tmp_path / "query" / "offsets" / "0").read_text("utf-8")
    assert logged.startswith("v2\n"), "Spark logs offsets by the sources' names"
    wait_until(
        lambda: committed() == {TopicPartition(topic_name, p): 10 for p in range(2)}, "committed"
    )


def test_a_batch_is_split_into_as_many_tasks_as_asked_for(spark, kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 100)
    counted = []
    frame = spark.readStream.format("kafka_deferred").options(
        **stream(minPartitions="5", readers="1").options
    )
    query = (
        frame.load()
        .writeStream.foreachBatch(lambda batch, _: counted.append(batch.rdd.glom().collect()))
        .trigger(availableNow=True)
        .option("checkpointLocation", stream().options["checkpointLocation"])
        .start()
    )
    query.awaitTermination()
    (tasks,) = [tasks for tasks in counted if sum(map(len, tasks))]
    assert [len(task) for task in tasks] == [20] * 5
    read = [(row.partition, row.offset) for task in tasks for row in task]
    assert read == [(p, o) for p in range(2) for o in range(50)]


def test_rebalance_events_are_rows_without_key_and_value(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 4)
    rows = stream(includeRebalanceEvents="true").run().to_pylist()
    events = [row for row in rows if row["event"] is not None]
    assert {(row["event"], row["partition"]) for row in events} >= {
        ("assigned", 0),
        ("assigned", 1),
    }
    assert all(row["key"] is None and row["value"] is None for row in events)
    assert len(rows) - len(events) == 4


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_deleted_before_they_were_read(kafka, topic_name, stream, fail):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    query = stream(failOnDataLoss=fail)
    query.run()
    kafka.produce(topic_name, [b"y"] * 10)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic_name, 0): 15})
    admin.close()
    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            query.run()
        assert "DataLossError" in str(caught.value)
        assert f"{topic_name}-0" in str(caught.value)
        assert "15" in str(caught.value)
    else:
        assert offsets_of(query.run()) == [(0, o) for o in range(15, 20)]


@pytest.fixture
def transactions(kafka, topic_name):
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers,
        transactional_id=topic_name,
        transaction_timeout_ms=600_000,  # it is open while a query runs
        linger_ms=0,
    )
    yield producer
    producer.close(timeout=1)


@pytest.mark.newest_spark
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_group_that_is_past_the_beginning_of_an_open_transaction_waits_for_its_end(
    kafka, topic_name, group_id, stream, committed, transactions, fail
):
    """Where somebody has read uncommitted records. It was data loss, or they came again."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 90)
    transactions.init_transactions()
    transactions.begin_transaction()
    for _ in range(10):
        transactions.send(topic_name, b"x", partition=0)
    transactions.flush()
    partition = TopicPartition(topic_name, 0)
    reader = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        group_id=group_id,
        isolation_level="read_committed",
    )
    reader.assign([partition])
    reader.commit({partition: OffsetAndMetadata(100, "", -1)})
    kafka.produce(topic_name, [b"y"] * 5)
    query = stream(kafka__isolation__level="read_committed", failOnDataLoss=fail)
    assert query.run().num_rows == 0
    assert committed() == {partition: 100}
    assert all((p.lag or 0) >= 0 for p in progress(query.query).partitions)
    transactions.commit_transaction()
    wait_until(lambda: reader.end_offsets([partition])[partition] == 106, "the transaction's end")
    reader.close()
    assert offsets_of(query.run()) == [(0, o) for o in range(100, 105)]


@pytest.mark.newest_spark
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_that_was_created_anew(kafka, topic_name, stream, fail):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    query = stream(failOnDataLoss=fail)
    query.run()
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"y"] * 4)
    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            query.run()
        assert "DataLossError" in str(caught.value)
        assert f"{topic_name}-0: position 10, end offset 4" in str(caught.value)
    else:
        running = query.start(processingTime="0 seconds")
        wait_until(lambda: running.lastProgress is not None, "a batch")
        wait_until(lambda: running.exception() is None and len(query.batches) >= 2, "a batch")
        running.stop()


@both_protocols
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_is_deleted_under_a_running_query(
    kafka, topic_name, stream, committed, protocol, fail
):
    """With nothing unread, as Spark's own source."""
    kept = f"{topic_name}.kept"
    for topic in (topic_name, kept):
        kafka.create_topic(topic, partitions=2)
        kafka.produce(topic, [b"x"] * 20)
    query = stream(
        subscribe=f"{topic_name},{kept}", failOnDataLoss=fail, kafka__group__protocol=protocol
    )
    running = query.start(processingTime="0 seconds")
    wait_until(lambda: len(committed()) == 4 and set(committed().values()) == {10}, "all is read")
    kafka.delete_topic(topic_name)
    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            running.awaitTermination(60)
        assert shown_first(caught.value).startswith(
            f"DataLossError: records may be gone from Kafka ({topic_name}-0: read to 10, deleted, "
            f"{topic_name}-1: read to 10, deleted); "
        )
        return
    produced = 40

    def has_told():
        nonlocal produced
        if not HAS_ADMISSION_CONTROL:  # then only a batch tells
            kafka.produce(kept, [b"y"] * 2)
            produced += 2
        return {p.topic for p in progress(running) if p.state == "assigned"} == {kept}

    wait_until(has_told, "the deleted partitions are not the query's any more")
    kafka.produce(kept, [b"y"] * 4)
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"z"] * 12)
    wait_until(
        lambda: query.rows().num_rows == produced + 16, "reads on, and the new topic from its start"
    )
    assert running.exception() is None


@both_protocols
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_is_created_anew_under_a_running_query(
    kafka, topic_name, stream, committed, protocol, fail
):
    """With as many records as were read, or more, it was read at the old position."""
    kept = f"{topic_name}.kept"
    for topic in (topic_name, kept):
        kafka.create_topic(topic, partitions=1)
        kafka.produce(topic, [b"x"] * 10)
    query = stream(
        subscribe=f"{topic_name},{kept}", failOnDataLoss=fail, kafka__group__protocol=protocol
    )
    running = query.start(processingTime="0 seconds")
    wait_until(lambda: len(committed()) == 2 and set(committed().values()) == {10}, "all is read")
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"y"] * 40)

    def new_offsets():
        rows = query.rows()
        return rows.filter(pc.equal(rows["value"], b"y"))["offset"].to_pylist()

    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            running.awaitTermination(60)
        assert "DataLossError" in str(caught.value)
        assert new_offsets() == []
        return
    wait_until(lambda: len(new_offsets()) >= 40, "the new one is read")
    kafka.produce(topic_name, [b"y"] * 2)
    wait_until(lambda: len(new_offsets()) >= 42, "and goes on being read")
    assert sorted(new_offsets()) == [*range(42)]
    assert running.exception() is None


def test_the_planners_of_two_loads_of_one_query_find_each_other(
    spark, kafka, topic_name, stream, tmp_path
):
    kafka.create_topic(topic_name, partitions=2)
    options = stream(checkpointLocation="").options
    loads = [spark.readStream.format("kafka_deferred").options(**options).load() for _ in range(2)]
    jvm = spark._jvm.java.lang.ProcessHandle.current().pid()
    found = partial(Path(tempfile.gettempdir()).glob, f"pyspark-kafka-rebalance-{jvm}-*.source")
    killed = {*found()}  # planners of other tests leave theirs

    def entries():
        return {*found()} - killed

    query = (
        loads[0]
        .union(loads[1])
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "union"))
        .start()
    )
    try:
        wait_until(lambda: len(entries()) == 2, "both are entered")
        groups = {path.name.rpartition("-")[0] for path in entries()}
        assert len(groups) == 1, "beside each other"
    finally:
        query.stop()
    wait_until(lambda: not entries(), "both have left")


@pytest.mark.newest_spark
def test_a_corrupt_record_batch_is_named(spark, kafka, topic_name, stream, tmp_path):
    kafka.create_topic(topic_name, partitions=1)
    for first in (0, 10, 20):
        kafka.produce(topic_name, [b"marked-%d" % first] * 10, partition=0)
    (segment,) = kafka.folder.rglob(f"{topic_name}-0/*.log")
    position = segment.read_bytes().index(b"marked-10")
    with segment.open("r+b") as log:  # in place: the broker goes on reading this file
        log.seek(position)
        log.write(b"M")
    # In a sink of Python's, Spark shows that sink's stack as well.
    frame = spark.readStream.format("kafka_deferred").options(**stream("noop").options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "noop"))
    with pytest.raises(StreamingQueryException) as caught:
        writer.trigger(availableNow=True).start().awaitTermination()
    assert shown_first(caught.value).startswith(
        f"CorruptRecordError: corrupt record batch in {topic_name}-0 at offset 10"
    )


def test_a_missing_topic_is_named(topic_name, stream):
    with pytest.raises(StreamingQueryException, match=f"do not exist.*{topic_name}"):
        stream().run()


def test_an_unreachable_broker_is_named(stream):
    query = stream(kafka__bootstrap__servers="127.0.0.1:1", kafka__request__timeout__ms="3000")
    with pytest.raises(StreamingQueryException) as caught:
        query.run()
    assert re.match(
        r"KafkaRebalanceError: no broker of kafka\.bootstrap\.servers=127\.0\.0\.1:1 can be used: "
        r"none accepted this client within [0-9.]+ s with security_protocol=PLAINTEXT "
        r"\(127\.0\.0\.1:1: 111 ECONNREFUSED\)\n",
        shown_first(caught.value),
    )


def test_another_checkpoint_than_the_querys_is_refused_at_the_start(
    kafka, topic_name, stream, tmp_path
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"])
    assert stream().run().num_rows == 1
    for name, problem in (
        ("nowhere", "where no query has its checkpoint"),
        ("query", "the checkpoint of another query"),
    ):
        with pytest.raises(StreamingQueryException) as caught:
            stream("new", checkpointLocation=str(tmp_path / name)).run()
        assert shown_first(caught.value).startswith(
            f"OptionError: option 'checkpointLocation' names {tmp_path / name}, {problem}: "
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"subscribe": ""}, ["'subscribe'", "subscribePattern"]),
        ({"subscribePattern": "a.*"}, ["exactly one"]),
        ({"assign": '{"t":[0]}'}, ["'subscribe'", "exactly one", "assign"]),
        ({"kafka__group__id": "", "startingOffsets": "latest"}, ["'kafka.group.id'", "is missing"]),
        ({"kafka__bootstrap__servers": ""}, ["'kafka.bootstrap.servers'", "is missing"]),
        ({"startingOfsets": "earliest"}, ["startingofsets", "startingOffsets"]),
        ({"startingOffsets": '{"t":'}, ["'startingOffsets'"]),
        ({"kafka__enable__auto__commit": "true"}, ["'kafka.enable.auto.commit'"]),
        ({"kafka__isolation_level": "1"}, ["'kafka.isolation_level'", "kafka.isolation.level"]),
        ({"readers": "none"}, ["'readers'", "'none'"]),
        ({"checkpointLocation": __file__}, ["'checkpointLocation'", "not a folder"]),
    ],
)
def test_bad_options_are_named_at_load(spark, stream, change, named):
    query = stream(**change)
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("kafka_deferred").options(**query.options).load()
    message = str(caught.value)
    assert shown_first(caught.value).startswith("OptionError: option ")
    for text in named:
        assert text in message


def test_all_that_is_wrong_is_one_error_at_load(spark, stream):
    query = stream(readers="0", startingOfsets="earliest", kafka__isolation_level="x", path="/x")
    with pytest.raises(AnalysisException) as caught:
        spark.readStream.format("kafka_deferred").options(**query.options).load()
    shown = shown_first(caught.value)
    assert shown.startswith("SeveralOptionsError: 3 problems: (1) option 'startingofsets' is unkn")
    assert "'kafka.isolation_level'" in shown
    assert "'readers'" in shown


def test_a_schema_of_the_users_own_is_refused(spark, stream, tmp_path):
    # Spark does not ask the source at load() when the user gives the schema.
    frame = (
        spark.readStream.format("kafka_deferred")
        .options(**stream().options)
        .schema("value STRING")
        .load()
    )
    with pytest.raises(Exception, match=r"schema.*the schema is fixed"):
        frame.writeStream.format("noop").option(
            "checkpointLocation", str(tmp_path / "c")
        ).start().awaitTermination()
