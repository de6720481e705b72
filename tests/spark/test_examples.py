"""The examples, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow.dataset as ds
import pyspark
import pytest

from pyspark_kafka_rebalance.testing import SecuredKafka

from . import waiting

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120.0

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
