"""The sink's write path in Spark: what rows become records, beside Spark's own sink."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer
from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_kafka_rebalance.sink.collected_batches import MOST_INLINE_BYTES
from pyspark_kafka_rebalance.testing import LocalKafka

from .conftest import built_in_source

HEADERS = "array<struct<key:string,value:binary>>"


def records_in(kafka: LocalKafka, topic: str) -> list[ConsumerRecord]:
    """All records that are committed, by partition and offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers,
        isolation_level="read_committed",
        enable_auto_commit=False,
    )
    try:
        parts = [TopicPartition(topic, p) for p in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        ends = consumer.end_offsets(parts)
        found: list[Any] = []
        while any(consumer.position(part) < ends[part] for part in parts):
            for records in consumer.poll(timeout_ms=500).values():
                found += records
        return sorted(found, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def options_of(kafka: LocalKafka, topic: str | None = None, **others: str) -> dict[str, str]:
    named = {"topic": topic} if topic else {}
    return {"kafka.bootstrap.servers": kafka.bootstrap_servers, **named, **others}


def write(rows: DataFrame, options: dict[str, str], sink: str = "kafka_deferred") -> None:
    rows.write.format(sink).options(**options).mode("append").save()


@pytest.fixture
def run_stream(spark: SparkSession, tmp_path: Path) -> Callable[..., Any]:
    """Write files of rows as a stream, with AvailableNow; the query, when it has ended."""

    def run(rows: DataFrame, options: dict[str, str], name: str = "query", **limits: str) -> Any:
        folder = tmp_path / f"{name}-rows"
        rows.write.mode("append").parquet(str(folder))
        read = spark.readStream.schema(rows.schema).options(**limits).parquet(str(folder))
        query = (
            read.writeStream.format("kafka_deferred")
            .options(**options)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return query

    return run


def hard_rows(spark: SparkSession) -> DataFrame:
    rows = [
        ("k1", "v1", [("h", b"1"), ("h", b"2"), ("ä", None)], 0),
        ("k2", None, [], 1),  # a tombstone
        (None, "no key", None, 2),
        ("", "", [("", b"")], 2),
        ("k1", "ü€𝄞", None, None),  # by its key, as Java's producer chooses
        *((f"key-{n}", f"value-{n}", None, None) for n in range(200)),
    ]
    schema = f"key string, value string, headers {HEADERS}, partition int"
    return spark.createDataFrame(rows, schema).coalesce(1)


def shape(record: Any) -> tuple[Any, ...]:
    return record.partition, record.key, record.value, tuple(record.headers)


@built_in_source
@pytest.mark.parametrize("kind", ["string", "binary"])
def test_records_are_those_of_sparks_own_sink(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, kind: str
) -> None:
    ours, theirs = f"{topic_name}-ours", f"{topic_name}-theirs"
    for topic in (ours, theirs):
        kafka.create_topic(topic, 3)
    rows = hard_rows(spark).withColumn("ignored", sf.lit(1))
    rows = rows.withColumn("key", rows.key.cast(kind)).withColumn("value", rows.value.cast(kind))
    write(rows, options_of(kafka, ours))
    write(rows, options_of(kafka, theirs), "kafka")
    assert [*map(shape, records_in(kafka, ours))] == [*map(shape, records_in(kafka, theirs))]
    assert len(records_in(kafka, ours)) == 205


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_a_stream_writes_each_row_to_the_topic_of_its_column(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    delivery: str,
    run_stream: Callable[..., Any],
) -> None:
    topics = [f"{topic_name}-{n}" for n in range(5)]
    for topic in topics:
        kafka.create_topic(topic, 2)
    rows = spark.range(1_000).selectExpr(
        "cast(id as string) key",
        "cast(id as string) value",
        f"concat('{topic_name}-', cast(id % 5 as string)) topic",
        "timestamp_millis(1700000000000 + id) timestamp",
    )
    run_stream(rows.repartition(3), options_of(kafka, delivery=delivery))
    for n, topic in enumerate(topics):
        found = records_in(kafka, topic)
        assert sorted(int(record.value) for record in found) == list(range(n, 1_000, 5))
        assert all(r.timestamp == 1_700_000_000_000 + int(r.value) for r in found)
        assert all(r.timestamp_type == 0 for r in found)


def test_the_option_names_the_topic_whatever_the_column_says(
    spark: SparkSession, kafka: LocalKafka, topic_name: str
) -> None:
    kafka.create_topic(topic_name)
    rows = spark.createDataFrame([("v", "elsewhere"), ("w", None)], "value string, topic string")
    write(rows, options_of(kafka, topic_name))
    assert sorted(record.value for record in records_in(kafka, topic_name)) == [b"v", b"w"]


@pytest.mark.parametrize("delivery", ["at_least_once", "exactly_once"])
def test_large_output_is_written_whole_and_leaves_no_files(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    delivery: str,
    run_stream: Callable[..., Any],
    tmp_path: Path,
) -> None:
    """Each of two tasks has several times more than a message takes."""
    kafka.create_topic(topic_name, 3)
    size = 4_000
    count = 4 * 2 * MOST_INLINE_BYTES // size
    rows = spark.range(count).selectExpr(
        "cast(id as string) key",
        f"concat(lpad(cast(id as string), 8, '0'), repeat('x', {size})) value",
    )
    run_stream(rows.repartition(2), options_of(kafka, topic_name, delivery=delivery))
    found = records_in(kafka, topic_name)
    assert sorted(int(record.value[:8]) for record in found) == list(range(count))
    assert not [path for path in (tmp_path / "query").rglob("spill/**/*") if path.is_file()]


def test_a_failed_and_retried_task_doubles_nothing_exactly_once(
    kafka: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    """In a Spark that tries a task twice: attempt 0 fails at its last row."""
    kafka.create_topic(topic_name, 2)
    (tmp_path / "retry.py").write_text(_RETRIES)
    arguments = [kafka.bootstrap_servers, topic_name, str(tmp_path / "work")]
    subprocess.run([sys.executable, tmp_path / "retry.py", *arguments], check=True, timeout=180)
    found = [int(record.value[:5]) for record in records_in(kafka, topic_name)]
    assert sorted(found) == list(range(2_000))
    left = [path for path in (tmp_path / "work").rglob("spill/**/*") if path.is_file()]
    assert left == []


_RETRIES = """
import sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql.functions import udf
from pyspark_kafka_rebalance.testing.local_spark import local_spark

servers, topic, work = sys.argv[1:]
spark = local_spark("retries", master="local[2,2]")

@udf("string")
def fail_once(value):
    if int(value) % 1000 == 999 and TaskContext.get().attemptNumber() == 0:
        raise ValueError("attempt 0")
    return f"{int(value):05d}" + "x" * 3000

spark.range(0, 2000, 1, 2).selectExpr("cast(id as string) value").write.parquet(f"{work}/rows")
read = spark.readStream.schema("value string").parquet(f"{work}/rows")
query = (
    read.select(fail_once("value").alias("value")).writeStream.format("kafka_deferred")
    .option("kafka.bootstrap.servers", servers).option("topic", topic)
    .option("checkpointLocation", f"{work}/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("id", "Required attribute 'value' not found"),
        ("id value", "value attribute unsupported type bigint"),
        ("'v' value, id key", "key attribute unsupported type bigint"),
    ],
)
def test_wrong_columns_are_refused_with_our_line(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, columns: str, said: str
) -> None:
    rows = spark.range(1).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException, match=said) as raised:
        write(rows, options_of(kafka, topic_name))
    assert "Traceback" not in str(raised.value)


def test_a_write_without_a_topic_is_refused(spark: SparkSession, kafka: LocalKafka) -> None:
    rows = spark.createDataFrame([("v", None)], "value string, topic string")
    with pytest.raises(PySparkException, match="topic option required when no 'topic'"):
        write(rows.select("value"), options_of(kafka))
    with pytest.raises(PySparkException, match="null topic present in the data"):
        write(rows, options_of(kafka))


def test_bad_options_are_refused_and_modes_other_than_append(
    spark: SparkSession, kafka: LocalKafka, topic_name: str
) -> None:
    rows = spark.createDataFrame([("v",)], "value string")
    with pytest.raises(PySparkException, match="'delivry' is unknown: the nearest is delivery"):
        write(rows, options_of(kafka, topic_name, delivry="exactly_once"))
    with pytest.raises(PySparkException, match="allowed: append"):
        rows.write.format("kafka_deferred").options(**options_of(kafka, topic_name)).mode(
            "overwrite"
        ).save()


def test_a_stream_with_bad_options_fails_before_its_first_batch_is_written(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, run_stream: Callable[..., Any]
) -> None:
    """Spark makes the sink for the first batch."""
    kafka.create_topic(topic_name)
    rows = spark.createDataFrame([("v",)], "value string")
    options = options_of(kafka, topic_name, **{"kafka.transactional.id": "mine"})
    with pytest.raises(
        PySparkException, match=r"kafka.transactional.id' is refused.*it is derived"
    ):
        run_stream(rows, options)
    assert records_in(kafka, topic_name) == []


def test_rows_of_spark_4_0_are_the_same_records(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    run_stream: Callable[..., Any],
) -> None:
    """Its writer gets rows; here they are made into Arrow data and back."""
    from pyspark_kafka_rebalance.sink.row_writer import arrow_batches

    moment = datetime.datetime(2026, 3, 29, 1, 30, 0, 123_456)
    rows = hard_rows(spark).withColumn("timestamp", sf.lit(moment)).withColumn("other", sf.rand())
    batches = list(arrow_batches(iter(rows.collect()), rows.schema, most_rows=100))
    assert [batch.num_rows for batch in batches] == [100, 100, 5]
    back = [row for batch in batches for row in batch.to_pylist()]
    assert [row["value"] for row in back] == [row.value for row in rows.collect()]
    assert [row["partition"] for row in back] == [row.partition for row in rows.collect()]
    assert back[0]["headers"][2] == {"key": "ä", "value": None}
    collected = rows.collect()[0].timestamp
    assert back[0]["timestamp"] == collected.astimezone(datetime.timezone.utc)
    assert back[0]["other"] is None
