"""Exactly once from sources that are not this package's: the number of a batch tells it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka

from .test_sink import options_of, records_in

Run = Callable[..., Any]


@pytest.fixture
def copies(spark: SparkSession, kafka: LocalKafka, topic_name: str, tmp_path: Path) -> Run:
    """Add a file of values, and copy all that is new to the topic."""
    kafka.create_topic(topic_name, 2)
    files = tmp_path / "files"
    files.mkdir()

    def run(*values: str, checkpoint: str = "checkpoint", **options: str) -> Any:
        if values:
            (files / f"{len(list(files.iterdir())):04}.txt").write_text("\n".join(values))
        query = (
            spark.readStream.text(str(files))
            .writeStream.format("kafka_deferred")
            .options(**options_of(kafka, topic_name, **options))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        return query

    return run


def values_in(kafka: LocalKafka, topic: str) -> list[str]:
    return sorted(record.value.decode() for record in records_in(kafka, topic))


def run_the_last_batch_again(checkpoint: Path) -> None:
    """As if Spark had died between the sink's commit and its own."""
    last = max((f for f in (checkpoint / "commits").iterdir() if f.name.isdigit()), key=number_of)
    last.unlink()
    last.with_name(f".{last.name}.crc").unlink(missing_ok=True)


def number_of(file: Path) -> int:
    return int(file.name)


def test_a_replayed_batch_writes_nothing_that_is_visible(
    kafka: LocalKafka, topic_name: str, tmp_path: Path, copies: Run
) -> None:
    copies("a", "b")
    run_the_last_batch_again(tmp_path / "checkpoint")
    copies("c")
    assert values_in(kafka, topic_name) == ["a", "b", "c"]


def test_a_restored_checkpoint_is_refused(
    kafka: LocalKafka, topic_name: str, tmp_path: Path, copies: Run
) -> None:
    copies("a")
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "backup")
    copies("b")
    copies("c")
    with pytest.raises(StreamingQueryException, match=r"has written (up to batch 2|another batch)"):
        copies("d", checkpoint="backup")
    copies()  # the one with the newest checkpoint goes on
    assert values_in(kafka, topic_name) == ["a", "b", "c", "d"]


def test_a_batch_without_rows_is_committed(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, tmp_path: Path, copies: Run
) -> None:
    copies("")
    copies("a")
    assert values_in(kafka, topic_name) == ["a"]


def test_the_checkpoint_is_found_by_the_sessions_setting(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, 1)
    (tmp_path / "files").mkdir()
    (tmp_path / "files/one.txt").write_text("a")
    setting = "spark.sql.streaming.checkpointLocation"
    spark.conf.set(setting, str(tmp_path / "checkpoints"))
    try:
        query = (
            spark.readStream.text(str(tmp_path / "files"))
            .writeStream.format("kafka_deferred")
            .options(**options_of(kafka, topic_name))
            .queryName(f"copies_{topic_name.replace('-', '_')}")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
    finally:
        spark.conf.unset(setting)
    assert values_in(kafka, topic_name) == ["a"]


@pytest.fixture
def each_batch(spark: SparkSession, tmp_path: Path) -> Run:
    """Run foreachBatch over a file with these values, until all is read."""
    files = tmp_path / "each"
    files.mkdir()

    def run(write: Callable[[DataFrame, int], None], *values: str) -> None:
        if values:
            (files / f"{len(list(files.iterdir())):04}.txt").write_text("\n".join(values))
        query = (
            spark.readStream.text(str(files))
            .writeStream.foreachBatch(write)
            .option("checkpointLocation", str(tmp_path / "each-checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    return run


def test_a_write_in_foreach_batch_is_written_once_by_its_number(
    kafka: LocalKafka, topic_name: str, tmp_path: Path, each_batch: Run
) -> None:
    kafka.create_topic(topic_name, 2)

    def write(batch: DataFrame, batch_id: int) -> None:
        options = options_of(kafka, topic_name, batchId=str(batch_id))
        batch.write.format("kafka_deferred").options(**options).mode("append").save()

    each_batch(write, "a", "b")
    run_the_last_batch_again(tmp_path / "each-checkpoint")
    each_batch(write, "c")
    assert values_in(kafka, topic_name) == ["a", "b", "c"]


def test_a_restored_checkpoint_is_refused_in_foreach_batch_too(
    kafka: LocalKafka, topic_name: str, tmp_path: Path, each_batch: Run
) -> None:
    """Its batches have other rows than those of the same numbers had: to skip them loses rows."""
    kafka.create_topic(topic_name, 2)

    def write(batch: DataFrame, batch_id: int) -> None:
        options = options_of(kafka, topic_name, batchId=str(batch_id))
        batch.write.format("kafka_deferred").options(**options).mode("append").save()

    each_batch(write, "a")
    shutil.copytree(tmp_path / "each-checkpoint", tmp_path / "backup")
    each_batch(write, "b")
    each_batch(write, "c")
    shutil.rmtree(tmp_path / "each-checkpoint")
    shutil.move(tmp_path / "backup", tmp_path / "each-checkpoint")
    with pytest.raises(StreamingQueryException, match="has written up to batch 2"):
        each_batch(write, "d")
    assert values_in(kafka, topic_name) == ["a", "b", "c"]


def test_a_second_write_of_a_batch_is_refused_and_not_taken_for_a_repetition(
    kafka: LocalKafka, topic_name: str, each_batch: Run
) -> None:
    kafka.create_topic(topic_name, 2)

    def write_twice(batch: DataFrame, batch_id: int) -> None:
        options = options_of(kafka, topic_name, batchId=str(batch_id))
        for _ in range(2):
            batch.write.format("kafka_deferred").options(**options).mode("append").save()

    with pytest.raises(StreamingQueryException, match="this run has written that batch"):
        each_batch(write_twice, "a")


def test_a_batch_number_outside_of_a_query_is_refused(
    spark: SparkSession, kafka: LocalKafka, topic_name: str
) -> None:
    kafka.create_topic(topic_name, 1)
    rows = spark.createDataFrame([("a",)], "value string")
    options = options_of(kafka, topic_name, batchId="0")
    with pytest.raises(Exception, match="batchId is for writes in foreachBatch"):
        rows.write.format("kafka_deferred").options(**options).mode("append").save()
    assert values_in(kafka, topic_name) == []


def test_a_source_of_a_group_is_refused_until_its_offsets_are_in_the_transaction(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path
) -> None:
    kafka.create_topic(topic_name, 1)
    kafka.create_topic(f"{topic_name}-copy", 1)
    kafka.produce(topic_name, [b"a", b"b"])
    reading = {**options_of(kafka), "kafka.group.id": group_id, "subscribe": topic_name}

    def copy(delivery: str) -> None:
        query = (
            spark.readStream.format("kafka_deferred")
            .options(**reading, startingOffsets="earliest")
            .load()
            .writeStream.format("kafka_deferred")
            .options(**options_of(kafka, f"{topic_name}-copy", delivery=delivery))
            .option("checkpointLocation", str(tmp_path / delivery))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    with pytest.raises(StreamingQueryException, match="at_least_once while the query reads from"):
        copy("exactly_once")
    assert values_in(kafka, f"{topic_name}-copy") == []
    copy("at_least_once")
    assert values_in(kafka, f"{topic_name}-copy") == ["a", "b"]
