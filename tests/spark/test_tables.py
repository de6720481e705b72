"""Tables and views over topics: ``CREATE TABLE … USING kafka_deferred OPTIONS (…)``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka

#: Written for what Spark 4.3 does; Spark up to 4.2 is not known to differ.
pytestmark = pytest.mark.newest_spark


@pytest.fixture
def name(topic_name: str) -> str:
    return topic_name.replace("-", "_").replace(".", "_")


@pytest.fixture
def options(kafka: LocalKafka, topic_name: str) -> str:
    """For SQL, of a topic with five records in two partitions."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"%d" % n for n in range(5)])
    return f"`kafka.bootstrap.servers` '{kafka.bootstrap_servers}', 'subscribe' = '{topic_name}'"


@pytest.fixture
def sql(spark: SparkSession, name: str) -> Iterator[Callable[[str], DataFrame]]:
    yield spark.sql
    spark.sql(f"DROP VIEW IF EXISTS {name}_view")
    spark.sql(f"DROP TABLE IF EXISTS {name}")


def values(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())


ALL = [b"0", b"1", b"2", b"3", b"4"]


def test_a_table_is_read_by_its_name(
    spark: SparkSession, sql: Callable[[str], DataFrame], name: str, options: str
) -> None:
    properties = "COMMENT 'c' TBLPROPERTIES ('a' = 'b')"
    sql(f"CREATE TABLE {name} USING kafka_deferred OPTIONS ({options}) {properties}")
    assert values(sql(f"SELECT * FROM {name}")) == ALL
    assert values(spark.table(name)) == ALL
    # Options of the read go before the table's.
    topic = options.rpartition("= '")[2].rstrip("'")
    ends = json.dumps({topic: {"0": 0, "1": 0}})
    assert values(sql(f"SELECT * FROM {name} WITH ('endingOffsets' = '{ends}')")) == []
    read = spark.read.option("startingOffsets", json.dumps({topic: {"0": -2, "1": -2}}))
    assert values(read.table(name)) == ALL
    with pytest.raises(AnalysisException, match="option 'readers' has the value '0'"):
        spark.read.option("readers", "0").table(name).collect()


def test_a_table_by_the_catalog(
    spark: SparkSession, sql: Callable[[str], DataFrame], name: str, options: str, kafka: LocalKafka
) -> None:
    topic = options.rpartition("= '")[2].rstrip("'")
    given = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": topic}
    spark.catalog.createTable(name, source="kafka_deferred", **given)
    assert values(sql(f"SELECT value FROM {name} WHERE partition < 2")) == ALL


def test_a_stream_of_a_table(
    spark: SparkSession, sql: Callable[[str], DataFrame], name: str, options: str, group_id: str
) -> None:
    more = f"'kafka.group.id' = '{group_id}', startingOffsets 'earliest'"
    sql(f"CREATE TABLE {name} USING kafka_deferred OPTIONS ({options}, {more})")
    found: list[bytes] = []
    query = (
        spark.readStream.table(name)
        .writeStream.foreachBatch(lambda batch, _: found.extend(values(batch)))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), "the query did not end"
    assert sorted(found) == ALL


def test_a_temporary_view(sql: Callable[[str], DataFrame], name: str, options: str) -> None:
    sql(f"CREATE TEMPORARY VIEW {name}_view USING kafka_deferred OPTIONS ({options})")
    assert values(sql(f"SELECT * FROM {name}_view")) == ALL


def test_a_table_with_columns_of_the_users_own_says_what_to_do(
    sql: Callable[[str], DataFrame], name: str, options: str
) -> None:
    sql(f"CREATE TABLE {name} (value BINARY) USING kafka_deferred OPTIONS ({options})")
    with pytest.raises(AnalysisException, match="create it without a list of columns"):
        sql(f"SELECT * FROM {name}").collect()


def test_a_bad_option_is_named_when_the_table_is_created(
    sql: Callable[[str], DataFrame], name: str, options: str
) -> None:
    with pytest.raises(AnalysisException, match=r"2 problems: .*'readers'.*'kafka\.group\.id'"):
        sql(f"CREATE TABLE {name} USING kafka_deferred OPTIONS ({options}, readers '0')")
