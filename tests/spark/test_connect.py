"""Spark Connect: a client in a process of its own, and the server of the shared session."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from kafka import KafkaAdminClient

from pyspark_kafka_rebalance.consumer.group_description import describe_group

from .conftest import SteadyProducer, offsets_of

pytest.importorskip("grpc", reason="Spark Connect's client needs the extra pyspark[connect]")


def test_queries_through_spark_connect(kafka, topic_name, group_id, stream, spark, tmp_path):
    """One that ends, one with a wrong option, and one that is stopped gracefully.

    A second query of the same ``load()`` is refused beside it.
    """
    streamed, group = f"{topic_name}-streamed", f"{group_id}-streamed"
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(streamed, partitions=2)
    kafka.produce(topic_name, [b"%d" % n for n in range(20)])
    service = getattr(spark._jvm, "org.apache.spark.sql.connect.service.SparkConnectService$")
    port = getattr(service, "MODULE$").localPort()
    # Without checkpointLocation, which would tell the source of its last batch as well.
    options = stream(checkpointLocation="").options
    with SteadyProducer(kafka, streamed, partitions=2, per_second=200):
        client = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("connect_client.py")),
                f"sc://127.0.0.1:{port}",
                json.dumps(options),
                json.dumps(options | {"subscribe": streamed, "kafka.group.id": group}),
                str(tmp_path),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert client.returncode == 0, client.stderr
    rows = pq.read_table(tmp_path / "rows")
    assert sorted(rows["value"].to_pylist()) == sorted(b"%d" % n for n in range(20))
    assert "OptionError" in client.stdout
    assert "'readers'" in client.stdout
    assert "reads from the same load()" in client.stdout, "the server knows both queries' load()"
    assert "stopped gracefully: True" in client.stdout
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    assert describe_group(admin, group).members == (), "its members have left"
    admin.close()
    committed = {p.partition: offset for p, offset in kafka.committed(group).items()}
    read = offsets_of(pq.read_table(tmp_path / "streamed"))
    assert read == [(p, o) for p in sorted(committed) for o in range(committed[p])]
