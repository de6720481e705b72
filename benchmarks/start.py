"""How long a query takes from its start to its first row, and a small run with an end to its end.

Runs in one warm Spark session, alternating with Spark's built-in source and a Python source that
generates its rows: for a group without members, and for a group whose member owns a share and keeps
it. Scheduled runs that find nothing new continue from a checkpoint. Prints a table and a line of
JSON; the first two runs of each form are not measured.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pyspark
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.source.compiled_pyspark import add_compiled
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.kafka_jars import SPARK_KAFKA_SOURCE, single_jars
from pyspark_kafka_rebalance.testing.local_spark import local_spark

from .machine import about_this_machine
from .throughput.forms import BUILT_IN, OURS, RECOMMENDED

#: The goal: the time ÷ the built-in source's, apart from one join.
GOAL = 1.3
EMPTY, SHARED = "without members", "shared"
#: The cost of any Python source: Spark's planner process and its imports.
PYTHON = "a Python source"
FIRST_ROW, AVAILABLE_NOW = "start to first row", "AvailableNow"
#: Runs under a checkpoint that has all there is.
NOTHING_NEW: dict[str, dict[str, Any]] = {
    "AvailableNow, nothing new": {"availableNow": True},
    "Once, nothing new": {"once": True},
}
_TOPIC = "start"
_PATIENCE_S = 120.0
_WARM_UP = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10, help="of each form")
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--bytes", type=int, default=100, help="of a record's value")
    parser.add_argument("--partitions", type=int, default=12)
    parser.add_argument("--protocol", default="classic", choices=["classic", "consumer"])
    parser.add_argument(
        "--compiled", action="store_true", help="with what source.compiled_pyspark does"
    )
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=110)
    jars = ",".join(str(jar) for jar in single_jars(SPARK_KAFKA_SOURCE))
    with tempfile.TemporaryDirectory() as folder:
        if given.compiled:
            os.environ["SPARK_HOME"] = str(compiled_spark_home(Path(folder) / "spark"))
        spark = local_spark("start", conf={**RECOMMENDED, "spark.jars": jars})
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(MadeUp)
        with LocalKafka() as kafka:
            fill(kafka, given.partitions, given.rows, given.bytes)
            seconds = measure(
                Queries(spark, kafka, Path(folder), given.protocol), given.rows, given.runs
            )
        spark.stop()
    figures = figures_of(seconds)
    title = f"{given.rows} rows of {given.bytes} B, {given.protocol}"
    console.print(table(figures, title + (", PySpark compiled" if given.compiled else "")))
    what = {"rows": given.rows, "bytes": given.bytes, "partitions": given.partitions}
    what |= {"protocol": given.protocol, "runs": given.runs, "compiled": given.compiled}
    print(json.dumps({"benchmark": "start", **what, **about_this_machine(), "results": figures}))


def fill(kafka: LocalKafka, partitions: int, rows: int, size: int) -> None:
    kafka.create_topic(_TOPIC, partitions=partitions)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20)
    for n in range(rows):
        producer.send(_TOPIC, bytes(size), partition=n % partitions)
    producer.close()


def compiled_spark_home(home: Path) -> Path:
    """A copy of the installed Spark home, with PySpark compiled in its zip."""
    installed = Path(pyspark.__file__).parent
    home.mkdir()
    for part in installed.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    shutil.copytree(installed / "python" / "lib", home / "python" / "lib")
    add_compiled(home / "python" / "lib" / "pyspark.zip")
    return home


class MadeUp(DataSource):
    """A source of 12 partitions with 1,000 rows of 100 B, read once."""

    @classmethod
    def name(cls) -> str:
        return "made_up"

    def schema(self) -> str:
        return "value binary"

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return MadeUpReader()


class MadeUpReader(DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(n) for n in range(12)] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import pyarrow as pa

        yield pa.record_batch({"value": pa.array([bytes(100)] * 1_000, pa.binary())})


class Queries:
    """Queries of one session, each with a new checkpoint."""

    def __init__(self, spark: SparkSession, kafka: LocalKafka, work: Path, protocol: str) -> None:
        self._spark = spark
        self._kafka = kafka
        self._work = work
        self._protocol = protocol

    def start(
        self,
        form: str,
        group_id: str,
        keep: Callable[[int], None],
        checkpoint: str | None = None,
        **trigger: Any,
    ) -> Any:
        options = {
            "kafka.bootstrap.servers": self._kafka.bootstrap_servers,
            "subscribe": _TOPIC,
            "startingOffsets": "earliest",
        }
        if form == OURS:
            options |= {"kafka.group.id": group_id, "kafka.group.protocol": self._protocol}
        kind = {OURS: "kafka_deferred", PYTHON: "made_up"}.get(form, "kafka")
        frame = self._spark.readStream.format(kind).options(**options).load()

        def count(batch: DataFrame, batch_id: int) -> None:
            keep(batch.count())

        writer = frame.writeStream.foreachBatch(count).trigger(**trigger)
        folder = self._work / (checkpoint or uuid.uuid4().hex)
        return writer.option("checkpointLocation", str(folder)).start()

    @contextmanager
    def member(self, group_id: str) -> Iterator[None]:
        """Run a member of the group that owns its share and commits nothing."""
        ended = threading.Event()
        member = DeferredRevokeConsumer(
            _TOPIC,
            bootstrap_servers=self._kafka.bootstrap_servers,
            group_id=group_id,
            group_protocol=self._protocol,
        )
        owns = threading.Event()

        def run() -> None:
            while not ended.wait(0.02):
                member.poll_membership()
                if member.assignment():
                    owns.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert owns.wait(_PATIENCE_S), "the member got nothing"
            yield
        finally:
            ended.set()
            thread.join()
            member.close(timeout_ms=1_000)

    def first_row(self, form: str, group_id: str) -> float:
        """The seconds until a batch has rows."""
        has_rows = threading.Event()
        began_at = time.monotonic()
        query = self.start(
            form, group_id, lambda rows: rows and has_rows.set(), processingTime="0 seconds"
        )
        assert has_rows.wait(_PATIENCE_S), f"{form} has read nothing: {query.exception()}"
        took_s = time.monotonic() - began_at
        query.stop()
        return took_s

    def available_now(self, form: str, group_id: str) -> tuple[float, int]:
        """The seconds until the run ends, and its number of rows."""
        counts: list[int] = []
        began_at = time.monotonic()
        query = self.start(form, group_id, counts.append, availableNow=True)
        assert query.awaitTermination(_PATIENCE_S), f"{form} goes on"
        return time.monotonic() - began_at, sum(counts)

    def nothing_new(self, form: str, what: str) -> float:
        """The seconds that a run takes which finds nothing, after one that has read all."""
        checkpoint = f"all-read-{form.partition(' ')[0]}"
        rows: list[int] = []
        if not (self._work / checkpoint).exists():
            self.run(form, checkpoint, rows.append, availableNow=True)
            assert sum(rows), f"{form} has read nothing"
            rows.clear()
        began_at = time.monotonic()
        self.run(form, checkpoint, rows.append, **NOTHING_NEW[what])
        took_s = time.monotonic() - began_at
        assert not sum(rows), f"{form} has read {rows} rows"
        return took_s

    def run(self, form: str, checkpoint: str, keep: Callable[[int], None], **trigger: Any) -> None:
        """Run to the end, in a group of the checkpoint's name."""
        query = self.start(form, checkpoint, keep, checkpoint, **trigger)
        assert query.awaitTermination(_PATIENCE_S), f"{form} goes on"


def measure(queries: Queries, rows: int, runs: int) -> dict[tuple[str, str, str], list[float]]:
    """Seconds by measurement, group and form; the first two runs of each are not counted."""
    seconds: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(runs + _WARM_UP):
        for what in (FIRST_ROW, AVAILABLE_NOW):
            for group, form in ((EMPTY, BUILT_IN), (EMPTY, PYTHON), (EMPTY, OURS), (SHARED, OURS)):
                group_id = f"start-{uuid.uuid4().hex[:8]}"
                if group == SHARED:
                    with queries.member(group_id):
                        took_s = one(queries, what, form, group_id, None)
                else:
                    took_s = one(queries, what, form, group_id, rows)
                seconds[what, group, form].append(took_s)
        for what in NOTHING_NEW:
            for form in (BUILT_IN, PYTHON, OURS):
                seconds[what, EMPTY, form].append(queries.nothing_new(form, what))
    return {of: measured[_WARM_UP:] for of, measured in seconds.items()}


def one(queries: Queries, what: str, form: str, group_id: str, rows: int | None) -> float:
    if what == FIRST_ROW:
        return queries.first_row(form, group_id)
    took_s, read = queries.available_now(form, group_id)
    assert read == rows if rows is not None else read, f"{form} has read {read} rows"
    return took_s


def figures_of(seconds: dict[tuple[str, str, str], list[float]]) -> list[dict[str, Any]]:
    return [
        {
            "what": what,
            "group": group,
            "form": form,
            "median_s": round(median(measured), 2),
            "longest_s": round(max(measured), 2),
            "ratio": round(median(measured) / median(seconds[what, EMPTY, BUILT_IN]), 2),
        }
        for (what, group, form), measured in seconds.items()
    ]


def table(figures: list[dict[str, Any]], title: str) -> Table:
    made = Table(title=title, box=SIMPLE_HEAD)
    for column in ("what", "source", "group"):
        made.add_column(column, no_wrap=True)
    for column in ("median s", "longest s", "÷ built-in"):
        made.add_column(column, justify="right")
    for one in figures:
        made.add_row(
            one["what"],
            one["form"],
            "" if one["form"] != OURS else one["group"],
            f"{one['median_s']:.2f}",
            f"{one['longest_s']:.2f}",
            f"{one['ratio']:.2f}",
        )
    return made


if __name__ == "__main__":
    main()
