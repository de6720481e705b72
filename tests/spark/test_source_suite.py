"""The categories of the suites of Spark's own Kafka source, where no other test has them.

Which test covers which category is listed in ``docs/testing.md``.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from pyspark_kafka_rebalance.source.offsets.offset_json import OURS
from pyspark_kafka_rebalance.testing import LocalKafka

from . import waiting
from .conftest import Stream, many_batches

PATIENCE_S = 120.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

#: Of several queries at once: without a pause the idle ones would take all the time there is.
IDLING = {"processingTime": "200 milliseconds"}

QUICK = {"kafka__metadata__max__age__ms": "300"}


# -- where a query starts -------------------------------------------------------------------------

#: Every pair of a start, a way to subscribe and failOnDataLoss occurs.
STARTS = [
    ("earliest", "subscribe", "true"),
    ("earliest", "subscribePattern", "false"),
    ("latest", "subscribe", "false"),
    ("latest", "subscribePattern", "true"),
    ("offsets", "subscribe", "false"),
    ("offsets", "subscribePattern", "true"),
    ("earliest", "assign", "true"),
    ("latest", "assign", "false"),
    ("offsets", "assign", "true"),
]


@pytest.mark.newest_spark
def test_start_positions_restarts_and_partitions_that_are_added(
    kafka: LocalKafka, topic_name: str, group_id: str, stream: Callable[..., Stream]
) -> None:
    """One query for each of STARTS, all of one topic, to which everything happens once."""
    kafka.create_topic(topic_name, partitions=5)

    def produce(text: str, partitions: range) -> None:
        for partition in partitions:
            values = [b"%s %d %d" % (text.encode(), partition, n) for n in range(3)]
            kafka.produce(topic_name, values, partition=partition)

    produce("before", range(5))
    offsets = json.dumps({topic_name: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}})
    assigned = json.dumps({topic_name: list(range(5))})  # but none that is added
    queries: dict[tuple[str, str, str], Stream] = {}
    expected: dict[tuple[str, str, str], Counter[str]] = {}
    for number, (start, way, fail) in enumerate(STARTS):
        seen = {
            "earliest": [(p, n) for p in range(5) for n in range(3)],
            "latest": [],
            "offsets": [
                (p, n) for p, first in ((0, 0), (2, 0), (3, 1), (4, 2)) for n in range(first, 3)
            ],
        }[start]
        case = (start, way, fail)
        expected[case] = Counter(f"before {p} {n}" for p, n in seen)
        queries[case] = stream(
            str(number),
            **{"subscribe": "", way: assigned if way == "assign" else topic_name},
            kafka__group__id=f"{group_id}-{number}",
            startingOffsets=offsets if start == "offsets" else start,
            failOnDataLoss=fail,
            readers="1",
            **QUICK,
        )

    def wait_for(*cases: tuple[str, str, str]) -> None:
        def read(case: tuple[str, str, str]) -> Counter[str]:
            rows = queries[case].rows()
            return Counter(v.decode() for v in rows["value"].to_pylist()) if rows else Counter()

        def wrong() -> dict[Any, Any]:
            return {
                case: {"missing": expected[case] - read(case), "twice": read(case) - expected[case]}
                for case in cases
                if read(case) != expected[case]
            }

        wait_until(lambda: not wrong(), lambda: str(wrong()))

    def expect(text: str, partitions: range) -> None:
        produce(text, partitions)
        for case in STARTS:
            read = [p for p in partitions if p < 5 or case[1] != "assign"]
            expected[case].update(f"{text} {p} {n}" for p in read for n in range(3))

    def start_is_known(number: int) -> bool:
        try:
            return len(kafka.committed(f"{group_id}-{number}")) == 5
        except kafka_errors.KafkaError:  # no group has ever committed on this broker
            return False

    # One after the other: Spark waits no longer than 10 s for the start of a planner.
    for number, query in enumerate(queries.values()):
        query.start(**IDLING)
        wait_until(lambda number=number: start_is_known(number), lambda: "no start is known")
    expect("while running", range(5))
    wait_for(*STARTS)
    kafka.add_partitions(topic_name, 6)
    expect("added while running", range(5, 6))
    wait_for(*STARTS)
    for query in queries.values():
        query.stop()
    kafka.add_partitions(topic_name, 7)
    expect("added while stopped", range(7))
    for case, query in queries.items():
        query.start(**IDLING)
        wait_for(case)


@pytest.mark.parametrize("trigger", [{"availableNow": True}, IDLING], ids=["ends", "goes on"])
def test_partitions_added_while_a_query_is_stopped_that_has_read_nothing(
    kafka: LocalKafka,
    topic_name: str,
    stream: Callable[..., Stream],
    committed: Any,
    trigger: dict[str, Any],
) -> None:
    """As with Spark's own source, which logs where a query began."""
    kafka.create_topic(topic_name, partitions=2)
    for partition in range(2):
        kafka.produce(topic_name, [b"before"] * 3, partition=partition)
    query = stream(startingOffsets="latest")
    started = query.start(**trigger)
    starts = {TopicPartition(topic_name, p): 3 for p in range(2)}
    wait_until(lambda: committed() == starts, lambda: f"starts at {committed()}")
    if "availableNow" in trigger:
        assert started.awaitTermination(PATIENCE_S)
    else:  # Spark 4.0 asks for a batch when the members have joined, later ones before
        wait_until(lambda: bool(query.batches), "where the query began is logged")
    query.stop()
    assert sum(rows.num_rows for rows in query.batches.values()) == 0
    kafka.add_partitions(topic_name, 3)
    expected = Counter()
    for partition in range(3):
        values = [b"after %d %d" % (partition, n) for n in range(3)]
        kafka.produce(topic_name, values, partition=partition)
        expected.update(values)
    started = query.start(**trigger)
    if "availableNow" in trigger:
        assert started.awaitTermination(PATIENCE_S)
    wait_until(lambda: query.rows().num_rows >= 9, lambda: f"read: {query.rows()}")
    assert Counter(query.rows()["value"].to_pylist()) == expected


# -- partitions and topics that go ----------------------------------------------------------------


@many_batches
@pytest.mark.parametrize(
    ("partitions", "records", "fail"), [(3, 20, "true"), (5, 2, "true"), (3, 20, "false")]
)
def test_available_now_ends_when_the_topic_is_another_one_meanwhile(
    kafka: LocalKafka,
    topic_name: str,
    stream: Callable[..., Stream],
    partitions: int,
    records: int,
    fail: str,
) -> None:
    """With fewer partitions, or fewer records, than there were when the run began."""
    kafka.create_topic(topic_name, partitions=5)
    for partition in range(5):
        kafka.produce(topic_name, [b"old"] * 10, partition=partition)
    query = stream(maxOffsetsPerTrigger="10", failOnDataLoss=fail, **QUICK)

    def replace(_: int, rows: Any) -> None:
        if rows.num_rows:
            query.on_batch = lambda _, rows: None
            kafka.delete_topic(topic_name)
            kafka.create_topic(topic_name, partitions=partitions)
            for partition in range(partitions):
                kafka.produce(topic_name, [b"new"] * records, partition=partition)

    query.on_batch = replace
    if fail == "true":
        with pytest.raises(StreamingQueryException) as caught:
            query.run()
        assert "DataLossError" in str(caught.value)
        assert f"{topic_name}-" in str(caught.value)
    else:
        rows = query.run()
        places = Counter(
            zip(
                rows["value"].to_pylist(),
                rows["partition"].to_pylist(),
                rows["offset"].to_pylist(),
                strict=True,
            )
        )
        assert max(places.values()) == 1


@pytest.mark.newest_spark
def test_topics_of_a_pattern_are_deleted_and_made_again_while_the_query_runs(
    kafka: LocalKafka, topic_name: str, stream: Callable[..., Stream], committed: Any
) -> None:
    """Of a topic that the query sees while it is empty every record arrives, and of any other new
    topic what lies behind the old one's positions, as with Spark's own source."""
    stays, goes = f"{topic_name}.stays", f"{topic_name}.goes"
    query = stream(
        subscribe="", subscribePattern=f"{topic_name}.*", failOnDataLoss="false", **QUICK
    )

    def produce(topic: str, text: str, partitions: int = 2) -> set[bytes]:
        """No value twice, so that whatever comes twice is the source's doing."""
        produced = set()
        for partition in range(partitions):
            values = [b"%s %d %d" % (text.encode(), partition, n) for n in range(3)]
            kafka.produce(topic, values, partition=partition)
            produced.update(values)
        return produced

    def wait_for(expected: set[bytes]) -> None:
        def read() -> Counter[bytes]:
            return Counter(query.rows()["value"].to_pylist()) if query.rows() else Counter()

        def has_them() -> bool:
            assert running.exception() is None
            return expected <= read().keys()

        wait_until(has_them, lambda: f"missing: {sorted(expected - read().keys())}")
        assert {value: n for value, n in read().items() if n > 1} == {}

    def is_seen_empty() -> bool:
        assert running.exception() is None
        positions = {p.partition: o for p, o in committed().items() if p.topic == goes}
        return positions == dict.fromkeys(range(4), 0)

    for topic in (stays, goes):
        kafka.create_topic(topic, partitions=2)
    running = query.start(**IDLING)
    wait_for(produce(stays, "first") | produce(goes, "gone"))
    kafka.delete_topic(goes)
    wait_for(produce(stays, "without the other"))
    kafka.create_topic(goes, partitions=3)
    # Further than before, so that every position lies within the new topic.
    for text in ("again", "and again"):
        produce(goes, text, partitions=3)
    wait_for(produce(goes, "behind", partitions=3) | produce(stays, "with the other again"))
    kafka.delete_topic(goes)
    kafka.create_topic(goes, partitions=4)
    wait_until(is_seen_empty, lambda: f"where it goes on: {committed()}")
    wait_for(produce(goes, "from the start", partitions=4))


# -- offsets in the checkpoint --------------------------------------------------------------------

#: As earlier releases wrote them. They must be read for ever.
VERSION_1 = (
    '{"version": 1, "ranges": {"TOPIC": {"0": [0, 4]}}, "unacknowledged": {"TOPIC": {"1": 3}}, '
    '"state": {"members": [{"generation": 1, "partitions": {"TOPIC": [0]}}, '
    '{"generation": 1, "partitions": {}}], "revoking": {"TOPIC": [1]}, "run": "kafka_deferred-1"}}'
)
VERSION_2 = (
    '{"version": 2, "ranges": {"TOPIC": {"0": [0, 4]}}, "positions": {"TOPIC": {"1": 3}}, '
    '"state": {"members": [{"generation": 1, "partitions": {"TOPIC": [0]}}, '
    '{"generation": 1, "partitions": {}}], "lost": {"TOPIC": [2]}, "run": "kafka_deferred-1"}}'
)


def write_checkpoint(folder: Path, offset: str) -> None:
    """A query that has committed one batch, as Spark logs it (OffsetSeqLog, CommitLog)."""
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": str(uuid.uuid4())}))
    batch = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000, "conf": {}}
    (folder / "offsets" / "0").write_text(f"v1\n{json.dumps(batch)}\n{offset}")
    (folder / "commits" / "0").write_text('v1\n{"nextBatchWatermarkMs":0}')


@pytest.mark.parametrize("offset", [VERSION_1, VERSION_2], ids=["version 1", "version 2"])
def test_a_checkpoint_of_an_earlier_release_is_gone_on_from(
    kafka: LocalKafka,
    topic_name: str,
    stream: Callable[..., Stream],
    tmp_path: Path,
    committed: Any,
    offset: str,
) -> None:
    kafka.create_topic(topic_name, partitions=3)
    kafka.produce(topic_name, [b"x"] * 30)
    write_checkpoint(tmp_path / "query", offset.replace("TOPIC", topic_name))
    rows = stream().run()
    first = {p: min(o for q, o in places(rows) if q == p) for p in range(3)}
    assert first == {0: 4, 1: 3, 2: 0}
    assert len(places(rows)) == rows.num_rows == 30 - 7
    ends = {TopicPartition(topic_name, p): 10 for p in range(3)}
    # Before Spark 4.2 the last batch of a run is committed by the stop, for which Spark does not
    # wait.
    wait_until(lambda: committed() == ends, "committed")


def places(rows: Any) -> set[tuple[int, int]]:
    return set(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("offset", "says"),
    [
        ('{"version": 5, "ranges": []}', "has version 5, written by a newer release"),
        ('{"#kafka_deferred": {"version": 5}}', "has version 5, written by a newer release"),
        ('{"logOffset": 3}', "malformed in 'version'"),
    ],
    ids=["future", "future, beside positions", "of a source of files"],
)
def test_a_checkpoint_that_cannot_be_read_is_an_error_that_says_so(
    kafka: LocalKafka,
    topic_name: str,
    stream: Callable[..., Stream],
    tmp_path: Path,
    offset: str,
    says: str,
) -> None:
    kafka.create_topic(topic_name)
    write_checkpoint(tmp_path / "query", offset.replace("TOPIC", topic_name))
    with pytest.raises(StreamingQueryException) as caught:
        stream().run()
    assert "OffsetFormatError" in str(caught.value)
    assert says in str(caught.value)


# -- queries over the source ----------------------------------------------------------------------


def test_a_stream_joined_with_itself(
    kafka: LocalKafka,
    spark: SparkSession,
    topic_name: str,
    stream: Callable[..., Stream],
    tmp_path: Path,
) -> None:
    """With watermarks, and counted by windows: one source in the log, every record once a side."""
    kafka.create_topic(topic_name, partitions=2)
    stamps = [1_700_000_000_000 + n * 1000 for n in range(20)]
    kafka.produce(topic_name, [b"%d" % n for n in range(20)], timestamps_ms=stamps)
    frame = (
        spark.readStream.format("kafka_deferred")
        .options(**stream().options)
        .load()
        .withWatermark("timestamp", "10 seconds")
    )
    left = frame.select("value", f.col("timestamp").alias("at"))
    right = frame.select(f.col("value").alias("value2"), f.col("timestamp").alias("at2"))
    joined = left.join(right, f.expr("value = value2 AND at2 BETWEEN at AND at"))
    checkpoint = tmp_path / "query"
    name = f"self_join_{uuid.uuid4().hex[:8]}"
    query = (
        joined.writeStream.format("memory")
        .queryName(name)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S)
    rows = spark.table(name).select("value", "value2").collect()
    assert Counter((bytes(a), bytes(b)) for a, b in rows) == Counter(
        {(b"%d" % n, b"%d" % n): 1 for n in range(20)}
    )
    for logged in (checkpoint / "offsets").iterdir():
        if logged.name.isdigit():
            lines = [line for line in logged.read_text().splitlines() if OURS in line]
            assert len(set(lines)) == 1, "\n".join(lines)
