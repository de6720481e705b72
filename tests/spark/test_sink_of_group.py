"""Exactly once from this package's source: the group's offsets are in the sink's transaction."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import MemberToRemove
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from pyspark_kafka_rebalance import stop_gracefully
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transport.secured_clients import admin_client

from .test_sink import options_of
from .test_sink_once import run_the_last_batch_again, values_in
from .waiting import wait_until

Copy = Callable[..., Any]


def _slowly(value: Any) -> Any:
    """So that something can happen amid a batch."""
    time.sleep(0.02)
    return value


@pytest.fixture
def target(kafka: LocalKafka, topic_name: str) -> str:
    kafka.create_topic(topic_name, 2)
    kafka.create_topic(f"{topic_name}-copy", 2)
    return f"{topic_name}-copy"


@pytest.fixture
def copy(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    target: str,
    group_id: str,
    tmp_path: Path,
) -> Iterator[Copy]:
    """Start a query of the group that copies the topic."""
    queries = []

    def start(
        name: str = "one",
        sink: dict[str, str] | None = None,
        of: Callable[[DataFrame], DataFrame] = lambda rows: rows,
        **options: str,
    ) -> Any:
        trigger = (
            {"availableNow": True} if options.pop("ends", None) else {"processingTime": "0 seconds"}
        )
        rows = (
            spark.readStream.format("kafka_deferred")
            .options(**options_of(kafka), startingOffsets="earliest", subscribe=topic_name)
            .option("kafka.group.id", group_id)
            .option("kafka.session.timeout.ms", "6000")
            .options(**options)
            .load()
            .select(sf.udf(lambda value: _slowly(value), "binary")("value").alias("value"))
        )
        query = (
            of(rows)
            .writeStream.format("kafka_deferred")
            .options(**options_of(kafka, target, **(sink or {})))
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(**trigger)
            .start()
        )
        queries.append(query)
        return query

    yield start
    for query in queries:
        query.stop()


def numbers(start: int, end: int) -> list[bytes]:
    return [b"%04d" % n for n in range(start, end)]


def texts(start: int, end: int) -> list[str]:
    return [value.decode() for value in numbers(start, end)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_runs_that_end_copy_each_record_once_and_the_group_has_them(
    kafka: LocalKafka,
    topic_name: str,
    target: str,
    group_id: str,
    copy: Copy,
    tmp_path: Path,
    protocol: str,
) -> None:
    kafka.produce(topic_name, numbers(0, 100))
    assert copy(ends="yes", **{"kafka.group.protocol": protocol}).awaitTermination(120)
    assert sum(kafka.committed(group_id).values()) == 100
    kafka.produce(topic_name, numbers(100, 150))
    assert copy(ends="yes", **{"kafka.group.protocol": protocol}).awaitTermination(120)
    assert sum(kafka.committed(group_id).values()) == 150
    run_the_last_batch_again(tmp_path / "one")
    kafka.produce(topic_name, numbers(150, 160))
    assert copy(ends="yes", **{"kafka.group.protocol": protocol}).awaitTermination(120)
    assert values_in(kafka, target) == texts(0, 160)


def test_queries_that_join_and_leave_copy_each_record_once(
    kafka: LocalKafka, topic_name: str, target: str, group_id: str, copy: Copy
) -> None:
    """A hand-over waits for the batch's decision, and the next owner starts behind it."""
    written = 0

    def more(count: int) -> None:
        nonlocal written
        kafka.produce(topic_name, numbers(written, written + count))
        written += count

    def has_all() -> bool:
        assert all(query.exception() is None for query in running)
        return sum(kafka.committed(group_id).values()) == written

    more(50)
    running = [copy("one")]
    wait_until(has_all, "the first records")
    running.append(copy("two"))
    for _ in range(20):
        more(10)
        time.sleep(0.2)  # the producer's pace, while partitions move
    wait_until(has_all, "the records of both")
    assert stop_gracefully(running.pop(0))
    for _ in range(5):
        more(10)
        time.sleep(0.2)
    wait_until(has_all, "the records after the first has left")
    assert stop_gracefully(running.pop())
    assert values_in(kafka, target) == texts(0, written)


@pytest.mark.parametrize("protocol", ["classic"])
def test_batches_whose_partitions_are_lost_are_dropped_and_read_again(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    target: str,
    group_id: str,
    copy: Copy,
    protocol: str,
) -> None:
    """An administrator removes the members again and again, amid slow batches of both queries."""
    written = 0

    def more(count: int) -> None:
        nonlocal written
        kafka.produce(topic_name, numbers(written, written + count))
        written += count

    def has_all() -> bool:
        assert all(query.exception() is None for query in running)
        return sum(kafka.committed(group_id).values()) == written

    more(20)
    running = [copy("one"), copy("two")]
    wait_until(has_all, "the first records")
    with closing(admin_client({"bootstrap_servers": kafka.bootstrap_servers})) as admin:
        for _ in range(6):
            more(60)
            time.sleep(0.3)  # somewhere amid a batch
            members = admin.describe_groups([group_id])[group_id]["members"]
            gone = [MemberToRemove(member_id=member["member_id"]) for member in members]
            admin.remove_group_members(group_id, gone)
    wait_until(has_all, "all records", 90)
    for query in running:
        assert stop_gracefully(query)
    assert values_in(kafka, target) == texts(0, written)


def test_an_older_checkpoint_writes_nothing_that_is_visible(
    kafka: LocalKafka, topic_name: str, target: str, group_id: str, copy: Copy, tmp_path: Path
) -> None:
    """The group is where the output ends, and wins over the checkpoint."""
    kafka.produce(topic_name, numbers(0, 40))
    assert copy(ends="yes").awaitTermination(120)
    shutil.copytree(tmp_path / "one", tmp_path / "backup")
    kafka.produce(topic_name, numbers(40, 70))
    assert copy(ends="yes").awaitTermination(120)
    kafka.produce(topic_name, numbers(70, 76))
    assert copy("backup", ends="yes").awaitTermination(120)
    assert values_in(kafka, target) == texts(0, 76)
    assert sum(kafka.committed(group_id).values()) == 76


def test_a_query_that_dies_in_its_first_batch_starts_again(
    kafka: LocalKafka, topic_name: str, target: str, group_id: str, copy: Copy, tmp_path: Path
) -> None:
    """Its offset log has the batch, and neither the group nor the marker has it."""
    kafka.produce(topic_name, numbers(0, 40))
    query = copy()
    wait_until(lambda: bool(list((tmp_path / "one/offsets").glob("[0-9]*"))), "a batch")
    query.stop()  # amid it, as a rule
    assert copy(ends="yes").awaitTermination(120)
    assert values_in(kafka, target) == texts(0, 40)


def test_a_sink_on_another_cluster_is_refused(
    kafka: LocalKafka, kafka3: LocalKafka, topic_name: str, target: str, copy: Copy
) -> None:
    kafka3.create_topic(target, 1)
    kafka.produce(topic_name, numbers(0, 10))
    elsewhere = {"kafka.bootstrap.servers": kafka3.bootstrap_servers}
    with pytest.raises(StreamingQueryException, match="which a transaction cannot span"):
        copy(ends="yes", sink=elsewhere).awaitTermination(120)
    assert values_in(kafka3, target) == []


def test_two_sources_of_a_query_are_in_one_transaction(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    target: str,
    group_id: str,
    tmp_path: Path,
) -> None:
    """Also of a batch that has something of one of them only, and that is run again."""
    kafka.create_topic(f"{topic_name}-more", 1)
    reading = {**options_of(kafka), "startingOffsets": "earliest"}

    def source(topic: str) -> DataFrame:
        group = {"kafka.group.id": f"{group_id}-{topic}", "subscribe": topic}
        return spark.readStream.format("kafka_deferred").options(**reading, **group).load()

    def run() -> None:
        both = source(topic_name).union(source(f"{topic_name}-more"))
        query = (
            both.select("value")
            .writeStream.format("kafka_deferred")
            .options(**options_of(kafka, target))
            .option("checkpointLocation", str(tmp_path / "both"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)

    kafka.produce(topic_name, numbers(0, 10))
    kafka.produce(f"{topic_name}-more", numbers(10, 20))
    run()
    kafka.produce(topic_name, numbers(20, 30))
    run()
    run_the_last_batch_again(tmp_path / "both")
    kafka.produce(f"{topic_name}-more", numbers(30, 40))
    run()
    assert values_in(kafka, target) == texts(0, 40)
    for topic in (topic_name, f"{topic_name}-more"):
        assert sum(kafka.committed(f"{group_id}-{topic}").values()) == 20


def test_what_a_batch_without_data_emits_is_written(
    kafka: LocalKafka, topic_name: str, target: str, copy: Copy, tmp_path: Path
) -> None:
    """A watermark that has moved closes windows in a batch of its own, with unchanged sources."""

    def by_ten(rows: DataFrame) -> DataFrame:
        number = sf.col("value").cast("string").cast("int")
        at = sf.timestamp_seconds(number)
        timed = rows.select(at.alias("at")).withWatermark("at", "0 seconds")
        counts = timed.groupBy(sf.window("at", "10 seconds")).count()
        return counts.select(
            sf.concat_ws(":", sf.unix_timestamp("window.start"), "count").alias("value")
        )

    kafka.produce(topic_name, numbers(0, 41))
    assert copy(of=by_ten, ends="yes").awaitTermination(120)
    assert values_in(kafka, target) == ["0:10", "10:10", "20:10", "30:10"]
    run_the_last_batch_again(tmp_path / "one")
    kafka.produce(topic_name, numbers(41, 61))
    assert copy(of=by_ten, ends="yes").awaitTermination(120)
    closed = ["0:10", "10:10", "20:10", "30:10", "40:10", "50:10"]
    assert values_in(kafka, target) == closed


def test_stateful_queries_that_lose_batches_fail_and_their_restarts_write_them_once(
    kafka: LocalKafka, topic_name: str, target: str, group_id: str, copy: Copy
) -> None:
    """Their state has seen the rows: a batch is run again, without what the other has read."""
    written = 0
    running: dict[str, Any] = {}

    def more(count: int) -> None:
        nonlocal written
        kafka.produce(topic_name, numbers(written, written + count))
        written += count

    def start(name: str) -> None:
        running[name] = copy(name, of=lambda rows: rows.dropDuplicates(["value"]))

    def goes_on(name: str) -> bool:
        failure = running[name].exception()
        if failure is not None:
            assert "its state has seen rows of it. Restart" in str(failure)
            start(name)
        return failure is None

    def has_all() -> bool:
        return all(map(goes_on, running)) and sum(kafka.committed(group_id).values()) == written

    more(20)
    for name in ("one", "two"):
        start(name)
    wait_until(has_all, "the first records")
    with closing(admin_client({"bootstrap_servers": kafka.bootstrap_servers})) as admin:
        for _ in range(4):
            more(60)
            time.sleep(0.3)  # somewhere amid a batch
            members = admin.describe_groups([group_id])[group_id]["members"]
            gone = [MemberToRemove(member_id=member["member_id"]) for member in members]
            admin.remove_group_members(group_id, gone)
    wait_until(has_all, "all records", 120)
    for name in running:  # one may fail yet, whose batch the other has read by now
        wait_until(lambda name=name: goes_on(name) and stop_gracefully(running[name]), name)
    assert values_in(kafka, target) == texts(0, written)
