"""Batch reads, ``spark.read.format("kafka_deferred")``, on a real broker and real Spark."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.errors import AnalysisException, PythonException, StreamingQueryException

from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL

from .conftest import built_in_source

BEGIN_MS = 1_700_000_000_000


@pytest.fixture
def topic(kafka, topic_name):
    """Three partitions: ten records, a second apart, in the first; four; none."""
    kafka.create_topic(topic_name, partitions=3)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for partition, count in ((0, 10), (1, 4)):
        for n in range(count):
            producer.send(
                topic_name, b"%d" % n, partition=partition, timestamp_ms=BEGIN_MS + n * 1_000
            )
    producer.close()
    return topic_name


@pytest.fixture
def read(spark, kafka, topic):
    """Read a batch; sorted (partition, offset)."""

    def frame(**options):
        given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
        given |= {name.replace("__", "."): value for name, value in options.items()}
        given = {name: value for name, value in given.items() if value}
        return spark.read.format("kafka_deferred").options(**given).load()

    def offsets(**options):
        rows = frame(**options).select("partition", "offset").collect()
        return sorted((row.partition, row.offset) for row in rows)

    offsets.frame = frame
    return offsets


def ranges(*bounds):
    """(partition, start, end), with the end excluded."""
    return [(partition, o) for partition, start, end in bounds for o in range(start, end)]


ALL = ranges((0, 0, 10), (1, 0, 4))


def test_all_there_is_without_a_group(kafka, topic, read):
    assert read() == ALL
    rows = read.frame(includeHeaders="true").orderBy("partition", "offset").collect()
    assert rows[3].asDict() | {"timestamp": None} == {
        **{"key": None, "value": b"3", "topic": topic, "partition": 0, "offset": 3},
        **{"timestamp": None, "timestampType": 0, "headers": None},
        **{"revoking": False, "lost": False, "generation": None},
    }
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    assert not [g for g in admin.list_groups() if topic in str(g)]
    admin.close()


def test_a_frame_reads_the_same_again_and_the_next_load_what_came_since(kafka, topic, read):
    frame = read.frame()
    assert frame.count() == 14
    kafka.produce(topic, [b"more"] * 3)
    # Spark 4.2 plans a Python source once for each load(), 4.0 once for each action.
    assert frame.count() == (14 if HAS_ADMISSION_CONTROL else 17)
    assert read.frame().count() == 17


def test_offsets_by_partition(topic, read):
    starts = json.dumps({topic: {"0": 3, "1": -2, "2": 0}})
    ends = json.dumps({topic: {"0": 5, "1": -1, "2": -1}})
    assert read(startingOffsets=starts) == ranges((0, 3, 10), (1, 0, 4))
    assert read(startingOffsets=starts, endingOffsets=ends) == ranges((0, 3, 5), (1, 0, 4))
    assert read(endingOffsets=json.dumps({topic: {"0": 2, "1": 0, "2": 0}})) == ranges((0, 0, 2))


def test_offsets_must_be_given_for_every_partition(topic, read):
    for option in ("startingOffsets", "endingOffsets"):
        missing = f"'{option}' leaves out partitions: {topic}-1, {topic}-2;"
        with pytest.raises(AnalysisException, match=missing):
            read(**{option: json.dumps({topic: {"0": 3}})})
        every = {"0": 0, "1": 0, "2": 0, "3": 0}
        unknown = f"'{option}' names partitions that do not exist: {topic}-3;"
        with pytest.raises(AnalysisException, match=unknown):
            read(**{option: json.dumps({topic: every})})


def test_bounds_by_timestamp(topic, read):
    second = str(BEGIN_MS + 2_000)
    assert read(endingTimestamp=second) == ranges((0, 0, 2), (1, 0, 2))
    starting = {"startingTimestamp": second, "startingOffsetsByTimestampStrategy": "latest"}
    assert read(**starting) == ranges((0, 2, 10), (1, 2, 4))
    between = read(**starting, endingTimestamp=str(BEGIN_MS + 3_500))
    assert between == ranges((0, 2, 4), (1, 2, 4))
    with pytest.raises(AnalysisException, match=f"{topic}-2 has no record with timestamp {second}"):
        read(startingTimestamp=second)


def test_bounds_by_timestamp_of_each_partition(topic, read):
    starts = {topic: {"0": BEGIN_MS + 4_000, "1": BEGIN_MS + 3_000, "2": 0}}
    ends = {topic: {"0": BEGIN_MS + 5_000, "1": BEGIN_MS + 99_000, "2": 0}}
    found = read(
        startingOffsetsByTimestamp=json.dumps(starts),
        startingOffsetsByTimestampStrategy="latest",
        endingOffsetsByTimestamp=json.dumps(ends),
    )
    assert found == ranges((0, 4, 5), (1, 3, 4))


def test_assigned_partitions(topic, read):
    one = json.dumps({topic: [1]})
    assert read(subscribe=None, assign=one) == ranges((1, 0, 4))
    starts = json.dumps({topic: {"1": 1}})
    assert read(subscribe=None, assign=one, startingOffsets=starts) == ranges((1, 1, 4))


def test_a_pattern_finds_topics(kafka, topic, read):
    kafka.create_topic(f"{topic}-b", partitions=1)
    kafka.produce(f"{topic}-b", [b"x"])
    frame = read.frame(subscribe=None, subscribePattern=f"{topic}.*")
    assert {(row.topic, row["count"]) for row in frame.groupBy("topic").count().collect()} == {
        (topic, 14),
        (f"{topic}-b", 1),
    }
    assert read(subscribe=None, subscribePattern="no-such-topic") == []


def test_from_the_committed_offsets_of_a_group(kafka, topic, group_id, read):
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(7, "", -1)})
    consumer.close()
    group = {"kafka__group__id": group_id, "startingOffsets": "group"}
    assert read(**group, kafka__auto__offset__reset="earliest") == ranges((0, 7, 10), (1, 0, 4))
    assert read(**group) == ranges((0, 7, 10))
    assert read(kafka__group__id=group_id) == ALL, "earliest by default, as with Spark's source"
    assert kafka.committed(group_id) == {TopicPartition(topic, 0): 7}


@pytest.mark.parametrize(
    ("options", "tasks"),
    [({}, 2), ({"minPartitions": "7"}, 7), ({"maxRecordsPerPartition": "3"}, 6)],
)
def test_tasks(read, options, tasks):
    frame = read.frame(**options)
    assert frame.rdd.getNumPartitions() == tasks
    assert sorted((row.partition, row.offset) for row in frame.collect()) == ALL


@pytest.mark.parametrize("fail", [True, False])
def test_records_deleted_before_they_were_read(kafka, topic, read, fail):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, 0): 6})
    admin.close()
    assert read() == ranges((0, 6, 10), (1, 0, 4)), "earliest is what is there"
    starts = json.dumps({topic: {"0": 2, "1": 0, "2": 0}})
    if fail:
        with pytest.raises(PythonException, match=rf"DataLossError.*{topic}-0"):
            read(startingOffsets=starts)
    else:
        left = read(startingOffsets=starts, failOnDataLoss="false")
        assert left == ranges((0, 6, 10), (1, 0, 4))


def test_errors_are_named(topic, read):
    with pytest.raises(AnalysisException, match="'no-such-topic' cannot be read"):
        read(subscribe="no-such-topic")
    with pytest.raises(AnalysisException, match="'startingOffsets' has the value 'latest'"):
        read(startingOffsets="latest", kafka__group__id="g")
    neither = "'kafka.group.id' is missing.*not possible either: option 'startingOffsets'"
    with pytest.raises(AnalysisException, match=neither):
        read(startingOffsets="latest")
    unreachable = r"no broker of kafka.bootstrap.servers=127.0.0.1:1 can be used.*ECONNREFUSED"
    with pytest.raises(AnalysisException, match=unreachable):
        read(
            kafka__bootstrap__servers="127.0.0.1:1",
            kafka__request__timeout__ms="600",
        )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kafka__group__id": ""}, "'kafka.group.id' is missing"),
        ({"endingOffsets": '{"TOPIC": {"0": 5}}'}, "'endingOffsets'.*a stream has no end"),
    ],
)
def test_a_stream_with_a_batchs_options_is_told_at_its_start(stream, topic, change, named):
    query = stream(**{option: value.replace("TOPIC", topic) for option, value in change.items()})
    with pytest.raises(StreamingQueryException, match=named):
        query.run()


NANOSECONDS = 1_700_000_000_123_456_789


@pytest.fixture
def with_nanoseconds(kafka, topic_name):
    """One producer batch of five records, of which the one at offset 2 is in nanoseconds."""
    kafka.create_topic(topic_name, config={"message.timestamp.after.max.ms": str(2**63 - 1)})
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=60_000)
    for n in range(5):
        at = NANOSECONDS if n == 2 else BEGIN_MS + n * 1_000
        producer.send(topic_name, b"%d" % n, timestamp_ms=at)
    producer.close()
    return topic_name


@built_in_source
def test_a_timestamp_in_nanoseconds(kafka, spark, with_nanoseconds):
    """Spark's own source reads around such a record and dies of it, on every run."""

    def frame(source, start, end):
        bounds = {"starting": start, "ending": end}
        options = {
            f"{name}Offsets": json.dumps({with_nanoseconds: {"0": at}})
            for name, at in bounds.items()
        }
        reader = spark.read.format(source).options(**options)
        reader = reader.option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        return reader.option("subscribe", with_nanoseconds).load()

    def rows(source, start, end):
        chosen = frame(source, start, end).select("offset", "value", "timestamp", "timestampType")
        return [tuple(row) for row in chosen.orderBy("offset").collect()]

    for start, end in ((0, 2), (3, 5)):
        assert rows("kafka_deferred", start, end) == rows("kafka", start, end)
    with pytest.raises(Exception, match="overflow"):
        rows("kafka", 0, 5)
    found = rows("kafka_deferred", 0, 5)
    assert [(row[0], row[1], row[2] is None) for row in found] == [
        (n, b"%d" % n, n == 2) for n in range(5)
    ]


@pytest.mark.parametrize("idle", [{}, {"maxTaskIdleMs": "0", "maxOffsetsPerTrigger": "2"}])
def test_a_stream_with_a_timestamp_in_nanoseconds(kafka, with_nanoseconds, stream, idle):
    """Also in the order of timestamps, where it counts with that of the record before it."""
    query = stream(with_nanoseconds, startingOffsets="earliest", **idle)
    query.start(availableNow=True).awaitTermination(120)
    rows = pa.concat_tables([query.batches[n] for n in sorted(query.batches)]).to_pylist()
    assert [row["offset"] for row in rows] == [0, 1, 2, 3, 4]
    assert [row["offset"] for row in rows if row["timestamp"] is None] == [2]
