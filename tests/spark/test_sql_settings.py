"""Whatever a session's SQL settings are, the source's rows are the same."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka

#: Settings that change what types, names, times or record batches mean to Spark.
SETTINGS: list[dict[str, str]] = [
    {"spark.sql.timestampType": "TIMESTAMP_NTZ"},
    {
        "spark.sql.ansi.enabled": "false",
        "spark.sql.ansi.enforceReservedKeywords": "false",
        "spark.sql.storeAssignmentPolicy": "LEGACY",
    },
    {
        "spark.sql.ansi.enabled": "true",
        "spark.sql.ansi.enforceReservedKeywords": "true",
        "spark.sql.ansi.doubleQuotedIdentifiers": "true",
    },
    {
        "spark.sql.caseSensitive": "true",
        "spark.sql.session.timeZone": "America/St_Johns",
        "spark.sql.datetime.java8API.enabled": "true",
    },
    {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.pandas.convertToArrowArraySafely": "true",
    },
    {
        "spark.sql.legacy.charVarcharAsString": "true",
        "spark.sql.legacy.timeParserPolicy": "LEGACY",
        "spark.sql.legacy.createHiveTableByDefault": "false",
        "spark.sql.defaultColumn.enabled": "false",
        "spark.sql.readSideCharPadding": "false",
    },
    {
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.optimizer.excludedRules": (
            "org.apache.spark.sql.catalyst.optimizer.ConstantFolding"
        ),
    },
    {
        "spark.sql.timestampType": "TIMESTAMP_NTZ",
        "spark.sql.session.timeZone": "Asia/Kathmandu",
        "spark.sql.execution.arrow.useLargeVarTypes": "true",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2147483647",
        "spark.sql.ansi.enabled": "false",
        "spark.sql.caseSensitive": "true",
    },
]

TIMES_MS = [0, 1_700_000_000_123, 1_710_054_000_000, -1]


def session_with(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """A session of its own, so that the settings are gone with it."""
    session = spark.newSession()
    for name, value in settings.items():
        session.conf.set(name, value)
    return session


@pytest.fixture
def options(kafka: LocalKafka, topic_name: str, group_id: str) -> dict[str, str]:
    """Of a topic with two partitions, and keys, headers and times of all kinds."""
    kafka.create_topic(topic_name, partitions=2)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for n, time_ms in enumerate(TIMES_MS * 2):
        key = None if n % 3 == 0 else b"\xff%d" % n
        headers = [("h", b"%d" % n), ("ü", b"")] if n % 2 else None
        producer.send(topic_name, b"%d" % n, key, headers, n % 2, max(time_ms, 0))
    producer.close()
    return {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group_id,
        "subscribe": topic_name,
        "startingOffsets": "earliest",
        "includeHeaders": "true",
        "readers": "2",
    }


def rows(frame: DataFrame) -> list[Any]:
    """All columns but those that differ from run to run, in a form that no setting changes."""
    plain = frame.selectExpr(
        *("hex(`key`)", "hex(`value`)", "`topic`", "`partition`", "`offset`", "`timestampType`"),
        *("unix_micros(CAST(`timestamp` AS timestamp_ltz))", "to_json(`headers`)"),
        *("`revoking`", "`lost`"),
    )
    return sorted(map(tuple, plain.collect()), key=repr)


def batch(session: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return session.read.format("kafka_deferred").options(**options).load()


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ",".join(settings)[:60])
def test_a_batch_has_the_same_rows_under_all_sql_settings(
    spark: SparkSession, options: dict[str, str], settings: dict[str, str]
) -> None:
    expected = batch(spark, options)
    frame = batch(session_with(spark, settings), options)
    assert rows(frame) == rows(expected)
    assert frame.schema == expected.schema
    assert expected.count() == 2 * len(TIMES_MS)


@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[-1]], ids=["NTZ", "several"])
def test_a_stream_has_the_same_rows_under_sql_settings(
    spark: SparkSession, options: dict[str, str], tmp_path: Path, settings: dict[str, str]
) -> None:
    session = session_with(spark, settings)
    stream = session.readStream.format("kafka_deferred").options(**options)
    found: list[Any] = []
    query = (
        stream.option("checkpointLocation", str(tmp_path))
        .load()
        .writeStream.foreachBatch(lambda batch, _: found.extend(rows(batch)))
        .option("checkpointLocation", str(tmp_path))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query did not end"
    assert sorted(found, key=repr) == rows(batch(spark, options))


def test_a_session_that_began_with_a_setting_has_it_in_every_session(
    spark: SparkSession, options: dict[str, str]
) -> None:
    """As ``--conf`` sets it, or a cluster's default: here the one that all tests share."""
    expected = rows(batch(spark, options))
    name = "spark.sql.timestampType"
    spark.conf.set(name, "TIMESTAMP_NTZ")
    try:
        assert rows(batch(spark, options)) == expected
    finally:
        spark.conf.unset(name)
