"""Database → producer group → Kafka → ``kafka_deferred``: every change of every row, once."""

from __future__ import annotations

import threading
from pathlib import Path

import psycopg
import pytest

from demos.shop.instance import InstanceProcess
from demos.shop.ledger import judge, version_of, versions_in_table
from demos.shop.tables import SCHEMA, TABLES
from demos.shop.writer import WriterProcess
from pyspark_kafka_rebalance import stop_gracefully

from .waiting import wait_until

pytestmark = pytest.mark.newest_spark


def test_rows_of_a_database_in_a_query_though_an_instance_is_killed(
    spark, kafka, postgres_url: str, group_id: str, topic_name: str, tmp_path: Path
) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(SCHEMA.encode())
    topics = [f"{topic_name}-{table}" for table in TABLES]
    for topic in topics:
        kafka.create_topic(topic)
    found: dict[str, list[tuple[int, int]]] = {topic: [] for topic in topics}
    lock = threading.Lock()

    def sink(batch, _) -> None:
        rows = batch.select("topic", "value").collect()
        with lock:
            for row in rows:
                found[row.topic].append(version_of(bytes(row.value)))

    def verdicts():
        with lock:
            return [
                judge(table, versions_in_table(postgres_url, table), {0: list(found[topic])})
                for table, topic in zip(TABLES, topics, strict=True)
            ]

    query = (
        spark.readStream.format("kafka_deferred")
        .option("kafka.bootstrap.servers", kafka.bootstrap_servers)
        .option("kafka.group.id", f"{group_id}-readers")
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", ",".join(topics))
        .option("startingOffsets", "earliest")
        .load()
        .writeStream.foreachBatch(sink)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    members = {
        name: InstanceProcess(
            name,
            url=postgres_url,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            topics=topics,
            work=tmp_path,
            options={"session_timeout_ms": 3_000, "heartbeat_interval_ms": 300},
        )
        for name in "ab"
    }
    try:
        with (
            WriterProcess(postgres_url, rows_per_s=400, work=tmp_path, longest_s=0.5) as writer,
            members["a"] as first,
            members["b"] as second,
        ):
            second.wait_for("committed")
            wait_until(lambda: sum(v.records for v in verdicts()) > 500, lambda: "rows", 120)
            first.kill()  # its tables go on where its last transaction ended
            wait_until(lambda: sum(v.records for v in verdicts()) > 1_500, lambda: "more", 120)
            writer.stop()
            wait_until(lambda: not any(v.lost for v in verdicts()), lambda: str(verdicts()), 120)
            second.stop()
        for verdict in verdicts():
            assert verdict.rows > 50
            assert verdict.is_right, verdict
        assert stop_gracefully(query)
    finally:
        query.stop()
