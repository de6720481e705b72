"""The cost of reading in timestamp order, and what a watermark drops without it (KIP-695).

A backlog of twelve partitions, each an hour long; some begin up to 45 minutes later than others.
Measures rows per second with and without ``maxTaskIdleMs``, alternately, without a query's first
batch; then the rows that a 10 s watermark drops, compared with Spark's built-in source and a batch
query; and a trigger of many partitions in the planner. Prints tables and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.kafka_jars import SPARK_KAFKA_SOURCE, single_jars
from pyspark_kafka_rebalance.testing.local_spark import local_spark

from .event_time_triggers import GOAL as TRIGGER_GOAL
from .event_time_triggers import measure
from .machine import about_this_machine

#: The share of the rows per second without the order.
GOAL = 0.85

PARTITIONS = 12
_TOPIC = "skewed"
_MINUTE_MS = 60_000
_BUILT_IN, _OURS = "kafka", "kafka_deferred"
_IN_ORDER = {"maxTaskIdleMs": "0"}
_ROW = ("partition", "offset", "timestamp")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=1_000, help="of the planner's triggers")
    parser.add_argument("--triggers", type=int, default=20, help="0: none")
    parser.add_argument("--triggers-only", action="store_true")
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    console = Console(width=100)
    figures: dict[str, Any] = {}
    if not given.triggers_only:
        figures |= in_spark(console, given.records, given.runs)
    if given.triggers:
        figures["trigger_ms"] = in_planner(console, given.partitions, given.triggers)
    print(json.dumps({"benchmark": "event_time", **about_this_machine(), **figures}))


def in_planner(console: Console, partitions: int, triggers: int) -> dict[str, dict[str, float]]:
    """Measure triggers of many partitions."""
    took = measure(partitions, triggers)
    table = Table(title=f"a trigger of {partitions:,} partitions in the planner", box=SIMPLE_HEAD)
    for column in ("", "ms", "ratio", "goal", "processor ms", "ratio"):
        table.add_column(column, justify="right")
    for form, one in took.items():
        goal = f"≤ {TRIGGER_GOAL:g}" if "=" in form else ""
        shown = (f"{one.ms:.1f}", f"{one.ratio:.2f}", goal, f"{one.cpu_ms:.1f}")
        table.add_row(form, *shown, f"{one.cpu_ratio:.2f}")
    console.print(table)
    return {form: asdict(one) for form, one in took.items()}


def in_spark(console: Console, records: int, runs: int) -> dict[str, Any]:
    """Measure rows per second, and the rows that a watermark drops."""
    with LocalKafka() as kafka:
        kafka.create_topic(_TOPIC, partitions=PARTITIONS)
        fill(kafka.bootstrap_servers, records // PARTITIONS)
        spark = local_spark(
            "event-time",
            conf={
                "spark.jars": ",".join(map(str, single_jars(SPARK_KAFKA_SOURCE))),
                "spark.python.unix.domain.socket.enabled": "true",
                "spark.sql.session.timeZone": "UTC",
                "spark.sql.streaming.numRecentProgressUpdates": "1000",
            },
        )
        spark.sparkContext.setLogLevel("ERROR")
        queries = Queries(spark, kafka.bootstrap_servers, records // 10)
        rates = queries.rates(runs)
        drops = [queries.dropped(_OURS, **_IN_ORDER), queries.dropped(_BUILT_IN)]
        spark.stop()
    ratio = rates["in order"] / rates["without"]
    table = Table(title=f"{records:,} records", box=SIMPLE_HEAD)
    for column in ("", "without", "in order", "ratio", "goal"):
        table.add_column(column, justify="right")
    without, ordered = (f"{rates[form]:,.0f}" for form in ("without", "in order"))
    table.add_row("rows/s", without, ordered, f"{ratio:.2f}", f"≥ {GOAL}")
    console.print(table)
    for one in drops:
        console.print(
            f"{one['source']}: a 10 s watermark drops {one['dropped']:,}; "
            f"the rows of a plain batch: {one['equal']}",
            highlight=False,
        )
    return {"rows_per_s": rates, "ratio": round(ratio, 3), "watermark": drops}


def fill(servers: str, records: int) -> None:
    """Write this many records to each partition."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "log_level": 0})
    since_ms = int(time.time() * 1_000) - 180 * _MINUTE_MS
    for partition in range(PARTITIONS):
        begin_ms = since_ms + partition % 4 * 15 * _MINUTE_MS
        for number in range(records):
            producer.produce(
                _TOPIC,
                b"%d-%d-" % (partition, number) + b"x" * 80,
                partition=partition,
                timestamp=begin_ms + number * 60 * _MINUTE_MS // records,
            )
            if number % 5_000 == 0:
                producer.flush()
    producer.flush()


class Queries:
    """Queries of one session that read the whole topic in batches of ``limit`` records."""

    def __init__(self, spark: SparkSession, servers: str, limit: int) -> None:
        self._spark = spark
        self._options = {
            "kafka.bootstrap.servers": servers,
            "subscribe": _TOPIC,
            "startingOffsets": "earliest",
        }
        self._limit = limit

    def _frame(self, source: str, options: dict[str, str]) -> DataFrame:
        given = {**self._options, "maxOffsetsPerTrigger": str(self._limit), **options}
        if source == _OURS:
            given |= {"kafka.group.id": uuid.uuid4().hex, "readers": "2"}
        return self._spark.readStream.format(source).options(**given).load()

    def _run(
        self, frame: DataFrame, sink: Callable[[DataFrame, int], None] | None = None
    ) -> list[dict[str, Any]]:
        """Run a query; return the progress of its batches with records."""
        with tempfile.TemporaryDirectory() as folder:
            writer = frame.writeStream.option("checkpointLocation", folder)
            writer = writer.format("noop") if sink is None else writer.foreachBatch(sink)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            return [progress for progress in query.recentProgress if progress["numInputRows"]]

    def rates(self, runs: int) -> dict[str, float]:
        """Median rows per second, after a warm-up run that is not counted."""
        forms: dict[str, dict[str, str]] = {"without": {}, "in order": _IN_ORDER}
        self._run(self._frame(_OURS, {}))
        found: dict[str, list[float]] = {form: [] for form in forms}
        for _ in range(runs):
            for form, options in forms.items():
                batches = self._run(self._frame(_OURS, options))[1:]
                rows = sum(batch["numInputRows"] for batch in batches)
                took_ms = sum(batch["durationMs"]["triggerExecution"] for batch in batches)
                found[form].append(rows / took_ms * 1_000)
        return {form: round(median(values)) for form, values in found.items()}

    def dropped(self, source: str, **options: str) -> dict[str, Any]:
        """The rows a watermark drops, and whether the others equal those of a batch query."""
        tables: list[pa.Table] = []
        unique = ["timestamp", "value"]
        frame = self._frame(source, options).withWatermark("timestamp", "10 seconds")
        batches = self._run(
            frame.dropDuplicates(unique).select(*_ROW),
            lambda batch, _: tables.append(batch.toArrow()),
        )
        dropped = sum(
            operator["numRowsDroppedByWatermark"]
            for batch in batches
            for operator in batch["stateOperators"]
        )
        plain = self._spark.read.format(_BUILT_IN).options(**self._options).load()
        expected = plain.dropDuplicates(unique).select(*_ROW).toArrow()
        order = [("partition", "ascending"), ("offset", "ascending")]
        equal = pa.concat_tables(tables).sort_by(order).equals(expected.sort_by(order))
        return {"source": source, "dropped": dropped, "equal": equal}


if __name__ == "__main__":
    main()
