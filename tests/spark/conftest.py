"""One Spark session for the tests whose queries need no process of their own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from pyspark_kafka_rebalance.testing import LocalKafka

# Spark starts its Python workers by this name, and they must find this package.
os.environ["PYSPARK_PYTHON"] = sys.executable


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    yield session
    session.stop()


class Stream:
    """A query of the shared session that keeps its batches."""

    def __init__(self, spark: SparkSession, options: Mapping[str, str], checkpoint: Path) -> None:
        self._spark = spark
        self.options = dict(options)
        self._checkpoint = checkpoint
        self.batches: dict[int, pa.Table] = {}
        self.query: StreamingQuery | None = None

    def start(self, **trigger: Any) -> StreamingQuery:
        frame = self._spark.readStream.format("kafka_deferred").options(**self.options).load()

        def keep(batch: DataFrame, batch_id: int) -> None:
            self.batches[batch_id] = batch.toArrow()

        self.query = (
            frame.writeStream.foreachBatch(keep)
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(**trigger)
            .start()
        )
        return self.query

    def run(self, **trigger: Any) -> pa.Table:
        """Run to its end, by default with AvailableNow; the rows of this run."""
        before = set(self.batches)
        query = self.start(**(trigger or {"availableNow": True}))
        assert query.awaitTermination(120), "the query did not end"
        return self.rows(before)

    def rows(self, without: set[int] = frozenset()) -> pa.Table:  # type: ignore[assignment]
        new = [self.batches[n] for n in sorted(self.batches) if n not in without]
        filled = [table for table in new if table.num_rows]
        return pa.concat_tables(filled) if filled else (new[0] if new else pa.table({}))

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()


@pytest.fixture
def stream(
    spark: SparkSession, kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path
) -> Iterator[Callable[..., Stream]]:
    """Make streams of one topic and group; stopped at the end."""
    made: list[Stream] = []

    def make(name: str = "query", **options: str) -> Stream:
        settings = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "subscribe": topic_name,
            "startingOffsets": "earliest",
            "readers": "2",
            "kafka.session.timeout.ms": "10000",
            "checkpointLocation": str(tmp_path / name),
        }
        for key, value in options.items():
            settings[key.replace("__", ".")] = value
        given = {key: value for key, value in settings.items() if value}
        made.append(Stream(spark, given, tmp_path / name))
        return made[-1]

    yield make
    for one in made:
        one.stop()


@pytest.fixture
def committed(kafka: LocalKafka, group_id: str) -> Callable[[], dict[TopicPartition, int]]:
    """The group's committed offsets, asked as any Kafka tool asks."""

    def ask() -> dict[TopicPartition, int]:
        admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
        try:
            offsets = admin.list_group_offsets(group_id)[group_id]
            return {partition: found.offset for partition, found in offsets.items()}
        finally:
            admin.close()

    return ask
