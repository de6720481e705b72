"""The examples, as a user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow.dataset as ds
import pyspark
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.source.options import SourceOptions

EXAMPLES = Path(__file__).parents[2] / "examples"
PATIENCE_S = 120.0


def test_orders_to_parquet_with_spark_submit(kafka, topic_name, group_id, committed, tmp_path):
    kafka.create_topic(topic_name, partitions=2)
    orders = [{"id": n, "customer": f"c-{n % 7}", "amount": n / 2} for n in range(200)]
    kafka.produce(topic_name, [json.dumps(order).encode() for order in orders] + [b"no order"] * 2)
    command = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        *("--master", "local[2]"),
        *("--conf", "spark.ui.enabled=false", "--conf", "spark.driver.bindAddress=127.0.0.1"),
        *("--conf", "spark.driver.host=127.0.0.1"),
        str(EXAMPLES / "orders_to_parquet.py"),
        *("--bootstrap-servers", kafka.bootstrap_servers, "--topic", topic_name),
        *("--group-id", group_id, "--checkpoint", str(tmp_path / "checkpoint")),
        *("--output", str(tmp_path / "orders"), "--trigger-seconds", "0.5"),
        *("--kafka", "session.timeout.ms=10000", "--kafka", "client.id=example"),
    ]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    with (
        open(tmp_path / "log", "w") as log,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        ) as submitted,
    ):
        try:
            assert submitted.stdout is not None
            said = next((line for line in submitted.stdout if "SIGTERM" in line), "")
            found = re.search(r"SIGTERM to (\d+) stops", said)
            assert found, (tmp_path / "log").read_text()[-4_000:]
            done = {TopicPartition(topic_name, p): 101 for p in range(2)}
            deadline = time.monotonic() + PATIENCE_S
            while committed() != done:
                assert time.monotonic() < deadline, (tmp_path / "log").read_text()[-4_000:]
                assert submitted.poll() is None, (tmp_path / "log").read_text()[-4_000:]
                time.sleep(0.2)
            os.kill(int(found[1]), signal.SIGTERM)
            rest, _ = submitted.communicate(timeout=PATIENCE_S)
        finally:
            submitted.kill()
    assert submitted.returncode == 0, (tmp_path / "log").read_text()[-4_000:]
    assert re.search(rf"{topic_name} +0 +example-\w+-\d +101 ", rest), rest
    rows = ds.dataset(tmp_path / "orders", partitioning="hive").to_table().to_pylist()
    assert sorted((r["id"], r["customer"], r["amount"]) for r in rows if r["id"] is not None) == [
        (o["id"], o["customer"], o["amount"]) for o in orders
    ]
    assert [r["text"] for r in rows if r["id"] is None] == ["no order"] * 2


def test_the_databricks_notebook_is_python_with_valid_options():
    text = (EXAMPLES / "databricks_notebook.py").read_text()
    assert text.startswith("# Databricks notebook source\n")
    cells = text.split("# COMMAND ----------")
    assert len(cells) > 5
    widgets: dict[str, str] = {}
    dbutils = MagicMock()
    dbutils.widgets.text = widgets.__setitem__
    dbutils.widgets.get = widgets.__getitem__
    dbutils.secrets.get = lambda scope, key: f"{scope}'s {key}"
    spark = MagicMock()
    names = {"dbutils": dbutils, "spark": spark}
    for cell in cells:
        if "import" not in cell:  # what shows and stops a query needs one
            exec(compile(cell, "databricks_notebook.py", "exec"), names)
        else:
            compile(cell, "databricks_notebook.py", "exec")
    reading = spark.readStream.format
    assert reading.call_args.args == ("kafka_deferred",)
    options = reading.return_value.options.call_args.kwargs
    parsed = SourceOptions.parse(options, default_readers=2).for_stream()
    assert parsed.topics == ("orders",)
    assert parsed.client_config["sasl_plain_password"] == "kafka's password"
