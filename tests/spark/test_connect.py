"""Spark Connect: a client in a process of its own, and the server of the shared session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

pytest.importorskip("grpc", reason="Spark Connect's client needs the extra pyspark[connect]")


def test_a_query_through_spark_connect(kafka, topic_name, stream, spark, tmp_path):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"%d" % n for n in range(20)])
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    options = stream().options | {"checkpointLocation": str(tmp_path / "checkpoint")}
    client = subprocess.run(
        [
            sys.executable,
            str(Path(__file__).with_name("connect_client.py")),
            f"sc://127.0.0.1:{port}",
            json.dumps(options),
            str(tmp_path),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert client.returncode == 0, client.stderr
    rows = pq.read_table(tmp_path / "rows")
    assert sorted(rows["value"].to_pylist()) == sorted(b"%d" % n for n in range(20))
    assert "OptionError" in client.stdout
    assert "'readers'" in client.stdout
