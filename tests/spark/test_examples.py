"""The examples, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset as ds
import pyspark
import pytest
from kafka import KafkaAdminClient

from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.testing import SecuredKafka

from . import waiting
from .dying_source import BEFORE_GROUP, IN_READ, Death, DyingDataSource

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120.0
TOTAL = "partition INT, customer STRING, orders BIGINT, amount DOUBLE"

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)


def orders(count):
    return [{"id": n, "customer": f"c-{n % 7}", "amount": n / 2} for n in range(count)]


def as_json(many):
    return [json.dumps(order).encode() for order in many]


class SubmittedJob:
    """orders_to_parquet.py in the hands of spark-submit."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        assert process.stdout is not None
        said = next((line for line in process.stdout if "SIGTERM" in line), "")
        found = re.search(r"SIGTERM to (\d+) stops", said)
        assert found, self.log_end()
        self._script = int(found[1])

    def wait_until(self, done, what):
        def done_or_ended():
            assert self._process.poll() is None, self.log_end()
            return done()

        wait_until(done_or_ended, lambda: f"{what}\n{self.log_end()}")

    def stop(self):
        """What it prints after SIGTERM."""
        os.kill(self._script, signal.SIGTERM)
        printed, _ = self._process.communicate(timeout=PATIENCE_S)
        assert self._process.returncode == 0, self.log_end()
        return printed

    def log_end(self):
        return self._log.read_text()[-4_000:]


@contextmanager
def submitted(folder: Path, *arguments: str) -> Iterator[SubmittedJob]:
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.driver.host=127.0.0.1"),
        str(EXAMPLES / "orders_to_parquet.py"),
        *("--checkpoint", str(folder / "checkpoint"), "--output", str(folder / "orders")),
        *("--trigger-seconds", "0.5"),
        *arguments,
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = folder / "log"
    with (
        open(log, "a") as errors,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
        ) as process,
    ):
        try:
            yield SubmittedJob(process, log)
        finally:
            process.kill()  # the JVM, which ends the script


@pytest.mark.long
@pytest.mark.several_sparks
def test_a_submitted_job_is_stopped_amid_its_batches_and_submitted_again(
    kafka, topic_name, group_id, committed, tmp_path
):
    kafka.create_topic(topic_name, partitions=2)
    given = orders(600)
    kafka.produce(topic_name, [*as_json(given[:300]), *[b"no order"] * 2, *as_json(given[300:])])
    where = ("--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic_name)
    login = ("--group-id", group_id, "--kafka", "client.id=example")

    def rows():
        return ds.dataset(tmp_path / "orders", partitioning="hive").to_table().to_pylist()

    with submitted(tmp_path, *where, *login, "--max-offsets-per-trigger", "20") as job:
        job.wait_until(lambda: any(committed().values()), "the first batches are committed")
        job.stop()
    first = rows()
    assert 0 < len(first) < 602, "stopped on the way"
    assert sum(committed().values()) == len(first)

    with submitted(tmp_path, *where, *login) as job:
        job.wait_until(lambda: sum(committed().values()) == 602, "everything is committed")
        printed = job.stop()
    assert re.search(rf"{topic_name} +0 +example-\w+-\d +301 ", printed), printed
    every = rows()
    assert sorted((r["partition"], r["offset"]) for r in every) == [
        (partition, offset) for partition in range(2) for offset in range(301)
    ]
    found = [{name: r[name] for name in ("id", "customer", "amount")} for r in every]
    assert sorted((r for r in found if r["id"] is not None), key=lambda r: r["id"]) == given
    assert [r["text"] for r in every if r["id"] is None] == ["no order"] * 2


@pytest.mark.several_sparks
@pytest.mark.newest_spark
def test_the_quickstart_prints_its_rows():
    """As README prints it, with no variable that names a Python."""
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment["PYSPARK_SUBMIT_ARGS"] = "--conf spark.ui.enabled=false pyspark-shell"
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        environment.pop(name, None)
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py")],
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE_S,  # a broker, a Spark and a query start, one after the other
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
    assert sorted(re.findall(r"\|(order \d)\|", done.stdout)) == [f"order {n}" for n in range(10)]
    assert re.search(r"orders +0 .* 5 ", done.stdout), "where it stands"
    assert done.stdout.rstrip().endswith("stopped between two batches: True")


class Totals:
    """Queries of totals_by_customer.py, in the test's own session."""

    def __init__(self, spark, kafka, topic, group_id, folder):
        self._spark = spark
        self._folder = folder
        self.group_id = group_id
        self._options = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "includeRebalanceEvents": "true",
            "readers": "1",
        }
        # Not imported by a name, which Spark's workers do not know.
        self._totals_of = runpy.run_path(str(EXAMPLES / "totals_by_customer.py"))["totals_of"]
        self._queries = {}

    def start(self, name, flush_seconds, source="kafka_deferred", **options):
        checkpoint = str(self._folder / name)
        own = {"kafka.client.id": name, "checkpointLocation": checkpoint, **options}
        records = self._spark.readStream.format(source).options(**self._options, **own)
        self._queries[name] = (
            self._totals_of(records.load(), flush_seconds)
            .writeStream.format("parquet")
            .option("path", f"{checkpoint}.totals")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="500 milliseconds")
            .start()
        )

    def stop(self):
        for query in self._queries.values():
            query.stop()

    def has_ended(self, name):
        return not self._queries[name].isActive

    def death(self, name):
        """That of its planner, if it reads from a source that can die."""
        return Death(str(self._folder / name))

    def written(self, name):
        """What Spark says is complete of a query's output."""
        assert self._queries[name].exception() is None
        path = self._folder / f"{name}.totals"
        if not (path / "_spark_metadata").is_dir():
            return []
        return self._spark.read.schema(TOTAL).parquet(str(path)).toArrow().to_pylist()

    def settled(self, name):
        """What a query that is stopped now has written and keeps."""
        self._queries[name].stop()
        return self.written(name) + self.kept(name)

    def kept(self, name):
        """What a query that has stopped keeps in its state."""
        states = self._spark.read.format("statestore").load(str(self._folder / name))
        totals = [row.value.groupState.totals for row in states.collect()]
        return [
            {"customer": customer, "orders": count, "amount": amount}
            for total in totals
            for customer, (count, amount) in json.loads(total).items()
        ]


@pytest.fixture
def stack():
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def totals(spark, kafka, topic_name, group_id, tmp_path):
    made = Totals(spark, kafka, topic_name, group_id, tmp_path)
    yield made
    made.stop()


def by_customer(rows):
    """Orders and amounts of rows, which are totals or single orders."""
    found = {}
    for row in rows:
        count, amount = found.get(row["customer"], (0, 0.0))
        found[row["customer"]] = count + row.get("orders", 1), amount + row["amount"]
    return found


@pytest.mark.newest_spark
def test_totals_are_written_before_their_partition_moves_and_none_is_lost_or_counted_twice(
    kafka, topic_name, group_id, committed, totals
):
    kafka.create_topic(topic_name, partitions=4)
    given = orders(400)
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)

    def partitions_of(name):
        members = describe_group(admin, group_id).members
        return {p.partition for m in members if m.client_id.startswith(name) for p in m.assigned}

    try:
        totals.start("first", flush_seconds=3600)
        kafka.produce(topic_name, as_json(given[:200]))
        wait_until(lambda: sum(committed().values()) == 200, "the first has read all")
        assert totals.written("first") == []
        totals.start("second", flush_seconds=3600)
        wait_until(lambda: len(partitions_of("second")) == 2, "the second has its part")
        moved = partitions_of("second")
    finally:
        admin.close()
    before = totals.written("first")
    assert {row["partition"] for row in before} == moved
    assert sum(row["orders"] for row in before) == 100, "all of what moved"
    kafka.produce(topic_name, as_json(given[200:]))
    wait_until(lambda: sum(committed().values()) == 400, "all is read")
    totals.stop()
    everything = [
        row for name in ("first", "second") for row in totals.written(name) + totals.kept(name)
    ]
    assert by_customer(everything) == by_customer(given)


@pytest.mark.long
@pytest.mark.newest_spark
def test_after_kills_totals_count_all_orders_and_twice_only_what_was_in_flight(
    spark, kafka, topic_name, committed, totals, stack
):
    """One of two instances dies in a read, and then between Spark's commit and the group's.

    Its state stays in its checkpoint, and is added up once it has been started again.
    """
    spark.dataSource.register(DyingDataSource)
    kafka.create_topic(topic_name, partitions=4)
    kafka.configure_group(totals.group_id, {"consumer.session.timeout.ms": 6_000})
    given = orders(480)
    dying = {"source": DyingDataSource.name(), "kafka.session.timeout.ms": "6000"}

    def start(name):
        totals.start(name, flush_seconds=3600, **dying)

    def all_is_read(number):
        wait_until(lambda: sum(committed().values()) == number, f"{number} are read")

    start("first")
    kafka.produce(topic_name, as_json(given[:160]))
    all_is_read(160)
    start("second")
    admin = stack.enter_context(
        closing(KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers))
    )

    def share_of_first():
        members = describe_group(admin, totals.group_id).members
        return {p for m in members if m.client_id.startswith("first") for p in m.assigned}

    for sent, point in ((240, IN_READ), (400, BEFORE_GROUP)):
        wait_until(lambda: len(share_of_first()) == 2, "both have their part")
        kafka.produce(topic_name, as_json(given[sent - 80 : sent]))
        all_is_read(sent)
        totals.death("first").arm(point)
        kafka.produce(topic_name, as_json(given[sent : sent + 80]))
        wait_until(lambda: totals.has_ended("first"), f"the first dies {point}")
        all_is_read(sent + 80)  # by the second
        start("first")
    wait_until(lambda: len(share_of_first()) == 2, "the first is there again")
    both = [row for name in ("first", "second") for row in totals.settled(name)]
    counted = by_customer(both)
    expected = by_customer(given)
    assert counted.keys() == expected.keys()
    more = {name: counted[name][0] - expected[name][0] for name in expected}
    assert all(number >= 0 for number in more.values()), "none is missing"
    assert sum(more.values()) <= 80, "no more than the batch that the group did not know of"


def test_totals_are_written_when_it_is_time(kafka, topic_name, totals):
    kafka.create_topic(topic_name, partitions=1)
    given = orders(20)
    totals.start("only", flush_seconds=1)
    kafka.produce(topic_name, as_json(given[:10]))
    wait_until(lambda: by_customer(totals.written("only")) == by_customer(given[:10]), "written")
    kafka.produce(topic_name, as_json(given[10:]))
    wait_until(lambda: by_customer(totals.written("only")) == by_customer(given), "written again")


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path, users={"etl": "Zi9-xw4K7q"}) as kafka:
        yield kafka


def test_the_cells_of_the_databricks_notebook(spark, secured, topic_name, group_id, tmp_path):
    secured.create_topic(topic_name, partitions=2)
    given = orders(100)
    secured.produce(topic_name, as_json(given))
    database = group_id.replace("-", "_")
    spark.sql(f"CREATE DATABASE {database} LOCATION '{tmp_path / database}'")
    widgets: dict[str, str] = {}
    secrets = {("kafka", "user"): "etl", ("kafka", "password"): "Zi9-xw4K7q"}
    shown: list[object] = []
    names = {
        "spark": spark.newSession(),
        "display": shown.append,
        "dbutils": SimpleNamespace(
            widgets=SimpleNamespace(text=widgets.__setitem__, get=widgets.__getitem__),
            secrets=SimpleNamespace(get=lambda scope, key: secrets[scope, key]),
        ),
    }
    filled_in = {
        "bootstrap_servers": secured.servers_of("TLSLOGIN"),
        "topic": topic_name,
        "group_id": group_id,
        "checkpoint": str(tmp_path / "checkpoint"),
        "table": f"{database}.orders",
        "trust": secured.trust()["ssl.truststore.location"],
        "trigger": "0 seconds",
    }
    header, *cells = (EXAMPLES / "databricks_notebook.py").read_text().split("# COMMAND ----------")
    assert header.startswith("# Databricks notebook source\n# MAGIC %md\n")

    def all_is_read():
        assert names["query"].isActive, names["query"].exception()
        return sum(secured.committed(group_id).values()) == len(given)

    def run(cell):
        exec(compile(cell, "databricks_notebook.py", "exec"), names)

    try:
        run(cells[0])
        assert widgets.keys() >= filled_in.keys()
        widgets |= filled_in
        for cell in cells[1:]:
            if "display" in cell:
                wait_until(all_is_read, "all is read")
            run(cell)
        assert not names["query"].isActive
        assert sorted(shown[0]["position"]) == [50, 50]
        rows = spark.table(f"{database}.orders").orderBy("id").collect()
        assert [{name: row[name] for name in given[0]} for row in rows] == given
    finally:
        if "query" in names:
            names["query"].stop()
        spark.sql(f"DROP DATABASE {database} CASCADE")
