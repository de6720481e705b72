"""Streams of partitions that ``assign`` names, with offsets of a group that they do not join."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance import progress, stop_gracefully
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.testing import LocalKafka

from . import waiting
from .conftest import Stream, built_in_source, many_batches, offsets_of
from .dying_source import BEFORE_COMMIT_LOG, Death, DyingDataSource

PATIENCE_S = 120.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

Committed = Callable[[], dict[TopicPartition, int]]


@pytest.fixture
def assigned(stream: Callable[..., Stream], topic_name: str) -> Callable[..., Stream]:
    """Make streams of partitions 0 and 2, unless others are named."""

    def make(name: str = "query", partitions: tuple[int, ...] = (0, 2), **options: str) -> Stream:
        by_topic = json.dumps({topic_name: partitions})
        # No members, and no sessions that would need a time-out.
        given = {"subscribe": "", "kafka__session__timeout__ms": "", "assign": by_topic, **options}
        return stream(name, **given)

    return make


@contextmanager
def a_member(kafka: LocalKafka, group_id: str, topic: str) -> Iterator[None]:
    """Somebody else has joined the group."""
    consumer = KafkaConsumer(
        topic,
        group_id=group_id,
        client_id="somebody",
        enable_auto_commit=False,
        bootstrap_servers=kafka.bootstrap_servers,
    )
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def joined() -> bool:
        # Not what it is assigned: kafka-python may not know the new topic's partitions.
        consumer.poll(100)
        group = describe_group(admin, group_id)
        return group.state == "Stable" and len(group.members) == 1

    try:
        wait_until(joined, "it joins")
        yield
    finally:
        consumer.close()
        admin.close()


def wait_for_rows(query: Stream, count: int) -> None:
    """Until the query has read so many, or has failed."""
    running = query.query
    wait_until(
        lambda: query.rows().num_rows >= count or not running.isActive,
        lambda: f"{query.rows().num_rows} rows, {running.lastProgress}",
    )
    assert query.rows().num_rows == count, running.exception()


@pytest.mark.core
def test_only_these_partitions_are_read_and_a_restart_goes_on(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream], committed: Committed
) -> None:
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    query = assigned()
    for run in range(2):
        running = query.start(processingTime="200 milliseconds")
        for end in (20 * run + 10, 20 * run + 20):
            wait_for_rows(query, 2 * end)
            assert offsets_of(query.rows()) == [(p, o) for p in (0, 2) for o in range(end)]
            ends = {TopicPartition(topic_name, p): end for p in (0, 2)}
            wait_until(lambda e=ends: committed() == e, f"committed to {end}")
            kafka.produce(topic_name, [b"x"] * 40)
        told = [(p.partition, p.member.rpartition("-")[2], p.state) for p in progress(running)]
        assert told == [(0, "0", "assigned"), (2, "0", "assigned")]
        assert stop_gracefully(running)
        assert [p.state for p in progress(running)] == ["stopped", "stopped"]
    rows = query.rows().to_pylist()
    said = {(row["revoking"], row["lost"], row["generation"]) for row in rows}
    assert said == {(False, False, -1)}


@many_batches
def test_available_now_ends_when_the_group_has_its_offsets(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream], committed: Committed
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    for run in range(2):
        kafka.produce(topic_name, [b"x"] * 60)
        query = assigned(maxOffsetsPerTrigger="15", includeRebalanceEvents="true")
        rows = query.run()
        events = [row for row in rows.to_pylist() if row["event"] is not None]
        assert sorted((e["event"], e["partition"], e["generation"]) for e in events) == [
            ("assigned", 0, -1),
            ("assigned", 2, -1),
        ]
        records = rows.filter(pc.is_null(rows["event"]))
        assert offsets_of(records) == [(p, 20 * run + o) for p in (0, 2) for o in range(20)]
        assert committed() == {TopicPartition(topic_name, p): 20 * run + 20 for p in (0, 2)}


def test_it_starts_where_the_group_is_and_else_as_the_option_says(
    kafka: LocalKafka, topic_name: str, group_id: str, assigned: Callable[..., Stream]
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    consumer.commit({TopicPartition(topic_name, 0): OffsetAndMetadata(7, "", -1)})
    consumer.close()
    starts = json.dumps({topic_name: {"0": 1, "2": 4}})
    assert offsets_of(assigned(startingOffsets=starts).run()) == [
        *((0, o) for o in range(7, 10)),
        *((2, o) for o in range(4, 10)),
    ]
    # A partition that is named from now on is read from its first record, as one that is added.
    rows = assigned(partitions=(0, 1, 2), startingOffsets="latest").run()
    assert offsets_of(rows) == [(1, o) for o in range(10)]


def test_a_group_with_members_is_refused(
    kafka: LocalKafka, topic_name: str, group_id: str, assigned: Callable[..., Stream]
) -> None:
    """At the start, before anything is read, and while the query runs."""
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    query = assigned()
    with a_member(kafka, group_id, topic_name):
        with pytest.raises(StreamingQueryException) as caught:
            query.run()
        assert f"group '{group_id}' has active members (somebody)" in str(caught.value)
        assert f"{topic_name}-0, {topic_name}-2" in str(caught.value)
        assert query.rows().num_rows == 0
    running = query.start(processingTime="200 milliseconds")
    wait_for_rows(query, 20)
    with a_member(kafka, group_id, topic_name):
        kafka.produce(topic_name, [b"x"] * 30)
        with pytest.raises(StreamingQueryException) as caught:
            running.awaitTermination(PATIENCE_S)
    assert f"group '{group_id}' has active members (UnknownMemberIdError)" in str(caught.value)
    assert f"{topic_name}-0, {topic_name}-2" in str(caught.value)


@many_batches
def test_the_last_commit_of_a_run_is_not_refused_in_silence(
    kafka: LocalKafka, topic_name: str, group_id: str, assigned: Callable[..., Stream]
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    query = assigned()
    member = a_member(kafka, group_id, topic_name)

    def join(_: int, rows: pa.Table) -> None:
        if rows.num_rows:
            member.__enter__()

    query.on_batch = join
    try:
        with pytest.raises(StreamingQueryException, match="has active members"):
            query.run()
    finally:
        member.__exit__(None, None, None)


@pytest.mark.newest_spark
@pytest.mark.parametrize("fail", ["true", "false"])
def test_a_topic_is_deleted_while_it_is_read(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream], fail: str
) -> None:
    gone = f"{topic_name}.gone"
    kafka.create_topic(topic_name, partitions=1)
    kafka.create_topic(gone, partitions=1)
    partitions = json.dumps({topic_name: [0], gone: [0]})
    query = assigned(assign=partitions, failOnDataLoss=fail, kafka__metadata__max__age__ms="300")
    running = query.start(processingTime="200 milliseconds")
    kafka.produce(gone, [b"x"] * 5)
    wait_for_rows(query, 5)
    kafka.delete_topic(gone)
    if fail == "true":
        with pytest.raises(
            StreamingQueryException, match=f"DataLossError: .*{gone}-0: read to 5, deleted"
        ):
            running.awaitTermination(PATIENCE_S)
    else:
        kafka.produce(topic_name, [b"x"] * 5)
        wait_for_rows(query, 10)


@many_batches
def test_a_run_with_an_end_does_not_miss_a_deleted_topic_that_it_has_read(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream]
) -> None:
    gone = f"{topic_name}.gone"
    kafka.create_topic(topic_name, partitions=1)
    kafka.create_topic(gone, partitions=1)
    kafka.produce(gone, [b"x"])
    kafka.produce(topic_name, [b"x"] * 40)
    partitions = json.dumps({topic_name: [0], gone: [0]})
    query = assigned(
        assign=partitions, maxOffsetsPerTrigger="2", kafka__metadata__max__age__ms="300"
    )
    running = query.start(availableNow=True)
    wait_until(lambda: query.rows().num_rows >= 2, "the first batch, which reads of both")
    kafka.delete_topic(gone)
    assert running.awaitTermination(PATIENCE_S)
    assert query.rows().num_rows == 41


@pytest.mark.newest_spark
@pytest.mark.parametrize("starts", ["earliest", '{"%s":{"0":3},"%s.gone":{"0":3}}'])
@pytest.mark.parametrize("restarted", [True, False])
def test_a_topic_that_was_deleted_and_created_anew_is_read_from_its_first_record(
    kafka: LocalKafka,
    topic_name: str,
    assigned: Callable[..., Stream],
    starts: str,
    restarted: bool,
) -> None:
    """Its old position stayed in the checkpoint, or the option named one: what lies before."""
    gone = f"{topic_name}.gone"
    kafka.create_topic(topic_name, partitions=1)
    kafka.create_topic(gone, partitions=1)
    partitions = json.dumps({topic_name: [0], gone: [0]})
    query = assigned(
        assign=partitions,
        startingOffsets=starts.replace("%s", topic_name),
        failOnDataLoss="false",
        includeRebalanceEvents="true",
        kafka__metadata__max__age__ms="300",
    )
    running = query.start(processingTime="200 milliseconds")
    kafka.produce(gone, [b"old"] * 8)

    def told() -> list[str | None]:
        assert running.isActive, running.exception()
        return query.rows()["event"].to_pylist() if query.batches else []

    old = 8 if starts == "earliest" else 5
    wait_until(lambda: told().count(None) == old, "all is read")
    kafka.delete_topic(gone)
    wait_until(lambda: "lost" in told(), "the deletion is noticed")
    if restarted:
        assert stop_gracefully(running)
    kafka.create_topic(gone, partitions=1)
    kafka.produce(gone, [b"new"] * 10)  # past where the old one was read to
    if restarted:
        query.run()
    else:
        wait_until(lambda: told().count(None) >= old + 10, "the new one is read")
        assert stop_gracefully(running)
    rows = [row for row in query.rows().to_pylist() if row["value"] == b"new"]
    assert [row["offset"] for row in rows] == list(range(10))


def test_a_missing_partition_is_named(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream]
) -> None:
    """Spark's own source reads nothing of it, and says nothing."""
    kafka.create_topic(topic_name, partitions=2)
    with pytest.raises(StreamingQueryException, match=f"do not exist: {topic_name}-2"):
        assigned().run()


def test_a_replay_reads_the_same_and_nothing_is_lost_to_anybody(
    spark: SparkSession,
    kafka: LocalKafka,
    topic_name: str,
    group_id: str,
    assigned: Callable[..., Stream],
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    spark.dataSource.register(DyingDataSource)
    query = assigned()
    query.source = DyingDataSource.name()
    death = Death(query.options["checkpointLocation"])
    attempts: list[tuple[int, list[tuple[int, int]], set[bool]]] = []

    def die(batch_id: int, rows: pa.Table) -> None:
        if rows.num_rows:
            attempts.append((batch_id, offsets_of(rows), set(rows["lost"].to_pylist())))
            if death.come(BEFORE_COMMIT_LOG):
                raise RuntimeError(BEFORE_COMMIT_LOG)

    query.on_batch = die
    death.arm(BEFORE_COMMIT_LOG)
    query.start(processingTime="200 milliseconds")
    wait_until(lambda: not query.query.isActive, "it dies")
    # As if another query read the same with the same group: neither knows of the other.
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers, group_id=group_id)
    consumer.commit({TopicPartition(topic_name, 0): OffsetAndMetadata(9, "", -1)})
    consumer.close()
    query.start(processingTime="200 milliseconds")
    wait_until(lambda: len(attempts) == 2, "the replay")
    assert attempts[0] == attempts[1]
    assert attempts[1][1:] == ([(p, o) for p in (0, 2) for o in range(10)], {False})


@built_in_source
def test_rows_are_those_of_the_built_in_source(
    kafka: LocalKafka, topic_name: str, assigned: Callable[..., Stream]
) -> None:
    """Of two runs; one partition starts in the middle, one at its end."""
    kafka.create_topic(topic_name, partitions=4)
    options = {"startingOffsets": json.dumps({topic_name: {"0": 3, "2": -1}})}
    ours = assigned("ours", **options)
    only_ours = {"readers": "", "kafka__group__id": "", "checkpointLocation": ""}
    theirs = assigned("theirs", **options, **only_ours)
    theirs.source = "kafka"
    for run in range(2):
        kafka.produce(topic_name, [b"%d of %d" % (n, run) for n in range(40)])
        read = [in_order(query.run()) for query in (ours, theirs)]
        assert read[0] == read[1]
        assert len(read[0]) == (20 if run else 7)


def in_order(rows: pa.Table) -> list[dict[str, object]]:
    """As delivered within a partition, without the columns that are ours alone."""
    own = [name for name in ("revoking", "lost", "generation") if name in rows.column_names]
    return sorted(rows.drop_columns(own).to_pylist(), key=lambda row: row["partition"])
