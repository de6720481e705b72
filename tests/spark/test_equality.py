"""Rows, order within a partition, and types equal those of Spark's built-in Kafka source.

Both sources read the same hard topics of one broker in one session. What is compared is all that
the built-in source has; our own columns beside it are taken away.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from pyspark_kafka_rebalance.testing import LocalKafka

from .conftest import built_in_source
from .hard_topics import HARD_TOPICS, Place, make_topics

pytestmark = built_in_source

BUILT_IN, OURS = "kafka", "kafka_deferred"
OUR_COLUMNS = ["revoking", "lost", "generation"]

ISOLATION_LEVELS = ["read_uncommitted", "read_committed"]

#: Cuts the topics into a few batches that end anywhere: inside record batches and transactions.
SOME_BATCHES = {"maxOffsetsPerTrigger": "3000"}

#: The built-in source asks for a partition's offsets over the connection on which its next fetch
#: waits, for 500 ms by default, for records that do not come.
QUICK = {"kafka.fetch.max.wait.ms": "10"}

#: Two cores may be busy with other things.
PATIENCE_S = 300

Read = Callable[[str, str, str], pa.Table]


@pytest.fixture(scope="module")
def topics(kafka: LocalKafka, spark: SparkSession) -> Iterator[dict[str, str]]:
    """The Kafka topic of every hard topic."""
    with ExitStack() as held:
        place = Place(kafka, spark, held)
        yield make_topics(place, HARD_TOPICS, f"hard-{uuid.uuid4().hex[:8]}")


@pytest.fixture(scope="module")
def read(
    kafka: LocalKafka,
    spark: SparkSession,
    topics: dict[str, str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Read:
    """All topics' rows by source, way and isolation level; read once, as delivered."""

    @cache
    def rows(source: str, way: str, isolation_level: str) -> pa.Table | Exception:
        options = options_of(source, kafka, ",".join(topics.values())) | {
            "kafka.isolation.level": isolation_level
        }
        checkpoint = tmp_path_factory.mktemp(f"{source}-{way}")
        try:
            return in_order(WAYS[way](spark, source, options, checkpoint))
        except Exception as error:  # not once more for every topic
            return error

    def read(source: str, way: str, isolation_level: str) -> pa.Table:
        found = rows(source, way, isolation_level)
        if isinstance(found, Exception):
            raise found
        return found

    return read


def options_of(source: str, kafka: LocalKafka, topics: str) -> dict[str, str]:
    options = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "subscribe": topics,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        **QUICK,
    }
    ours = {"kafka.group.id": f"equality-{uuid.uuid4().hex[:8]}", "readers": "2"}
    return options | (ours if source == OURS else {})


def stream(spark: SparkSession, source: str, options: dict[str, str], checkpoint: Path) -> pa.Table:
    batches: list[pa.Table] = []

    def keep(batch: DataFrame, batch_id: int) -> None:
        batches.append(batch.toArrow())

    frame = spark.readStream.format(source).options(**options, **SOME_BATCHES).load()
    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(PATIENCE_S), "the query did not end"
    assert len([batch for batch in batches if batch.num_rows]) > 1
    return pa.concat_tables(batches)


def batch(spark: SparkSession, source: str, options: dict[str, str], checkpoint: Path) -> pa.Table:
    return spark.read.format(source).options(**options).load().toArrow()


WAYS = {"stream": stream, "batch": batch}


def in_order(rows: pa.Table) -> pa.Table:
    """By topic and partition, and within one as delivered (sort_by is stable)."""
    rows = rows.drop_columns([name for name in OUR_COLUMNS if name in rows.column_names])
    return rows.sort_by([("topic", "ascending"), ("partition", "ascending")]).combine_chunks()


def of_topic(rows: pa.Table, topic: str) -> pa.Table:
    return rows.filter(pc.equal(rows["topic"], topic))


def first_difference(ours: pa.Table, theirs: pa.Table) -> str | None:
    """What differs, in words; None when the tables are equal."""
    if ours.schema != theirs.schema:
        return f"schema\n{ours.schema}\ninstead of\n{theirs.schema}"
    if ours.equals(theirs):
        return None
    for row in range(max(ours.num_rows, theirs.num_rows)):
        mine, other = (str(table.slice(row, 1).to_struct_array()) for table in (ours, theirs))
        if mine != other:
            return f"row {row}: {mine:.2000} instead of {other:.2000}"
    return "values that look the same"


@pytest.mark.parametrize("isolation_level", ISOLATION_LEVELS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", HARD_TOPICS)
def test_rows_and_their_order_are_those_of_the_built_in_source(
    topics: dict[str, str], read: Read, name: str, way: str, isolation_level: str
) -> None:
    ours, theirs = (
        of_topic(read(source, way, isolation_level), topics[name]) for source in (OURS, BUILT_IN)
    )
    assert first_difference(ours, theirs) is None
    if isolation_level == "read_uncommitted":
        assert HARD_TOPICS[name].is_hard(ours), "the topic is not what it should be"


@pytest.mark.parametrize("way", WAYS)
def test_read_committed_leaves_out_what_read_uncommitted_has(
    topics: dict[str, str], read: Read, way: str
) -> None:
    texts = {
        level: {
            value.decode().rpartition(" ")[0]
            for value in of_topic(read(OURS, way, level), topics["transactions"])[
                "value"
            ].to_pylist()
        }
        for level in ISOLATION_LEVELS
    }
    assert texts["read_uncommitted"] - texts["read_committed"] == {
        *(f"{number} a" for number in (1, 2, 5, 7)),
        *("aborted", "turn 0", "turn 1", "turn 3", "turn 5"),
        *("open", "behind the open one"),
    }


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("headers", ["true", "false"])
def test_the_schema_is_that_of_the_built_in_source(
    spark: SparkSession, kafka: LocalKafka, headers: str, way: str
) -> None:
    """Names, types and nullability, before anything is read."""

    def schema(source: str) -> StructType:
        options = options_of(source, kafka, "some-topic") | {"includeHeaders": headers}
        reader = spark.readStream if way == "stream" else spark.read
        return reader.format(source).options(**options).load().schema

    ours = [field for field in schema(OURS) if field.name not in OUR_COLUMNS]
    assert StructType(ours).json() == schema(BUILT_IN).json()
