"""The columns, in Spark's and in Arrow's language."""

from __future__ import annotations

import inspect

import pyarrow as pa
import pytest

from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.spark.schema import arrow_schema, spark_ddl, spark_schema


def options(**more: str) -> SourceOptions:
    required = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "t"}
    return SourceOptions.parse({**required, **more}, default_readers=1)


PLAIN = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
OURS = ["revoking", "lost", "generation"]


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ({}, [*PLAIN, *OURS]),
        ({"includeHeaders": "true"}, [*PLAIN, "headers", *OURS]),
        ({"includeRebalanceEvents": "true"}, [*PLAIN, *OURS, "event"]),
        ({"parallelRebalance": "live"}, [*PLAIN, *OURS, "catch_up"]),
        (
            {"parallelRebalance": "live", "includeRebalanceEvents": "true"},
            [*PLAIN, *OURS, "catch_up", "event"],
        ),
        (
            {"includeHeaders": "true", "includeRebalanceEvents": "true"},
            [*PLAIN, "headers", *OURS, "event"],
        ),
    ],
)
def test_the_columns_and_their_order(more: dict[str, str], names: list[str]) -> None:
    assert arrow_schema(options(**more)).names == names
    # The fields of a header are the only commas and names inside a type.
    ddl = spark_ddl(options(**more)).replace("<STRUCT<`key`: STRING, `value`: BINARY>>", "")
    assert [column.split("`")[1] for column in ddl.split(", ")] == names


def test_arrow_types_are_those_that_spark_compares_with() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    from pyspark.sql.pandas.types import to_arrow_schema

    from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL

    if not HAS_ADMISSION_CONTROL:
        pytest.skip("Spark before 4.2 does not compare them")
    header = types.StructType().add("key", "string").add("value", "binary")
    spark = (
        types.StructType()
        .add("key", "binary")
        .add("value", "binary")
        .add("topic", "string")
        .add("partition", "integer")
        .add("offset", "long")
        .add("timestamp", "timestamp")
        .add("timestampType", "integer")
        .add("headers", types.ArrayType(header))
        .add("revoking", "boolean")
        .add("lost", "boolean")
        .add("generation", "integer")
        .add("event", "string")
    )
    ours = arrow_schema(options(includeHeaders="true", includeRebalanceEvents="true"))
    assert ours == to_arrow_schema(spark, timezone="UTC")
    assert all(field.nullable for field in ours)
    # Arrow compares lists without the name of their field; Spark's is "element".
    assert ours.field("headers").type.value_field.name == "element"
    assert ours.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_the_ddl() -> None:
    assert spark_ddl(options(includeHeaders="true", includeRebalanceEvents="true")) == (
        "`key` BINARY, `value` BINARY, `topic` STRING, `partition` INT, `offset` BIGINT, "
        "`timestamp` TIMESTAMP, `timestampType` INT, "
        "`headers` ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>, "
        "`revoking` BOOLEAN, `lost` BOOLEAN, `generation` INT, `event` STRING"
    )


@pytest.mark.parametrize("more", [{}, {"includeHeaders": "true", "includeRebalanceEvents": "true"}])
def test_sparks_types_do_not_depend_on_the_sessions_settings(more: dict[str, str]) -> None:
    """As text, TIMESTAMP would be what ``spark.sql.timestampType`` says."""
    types = pytest.importorskip("pyspark.sql.types")
    schema = spark_schema(options(**more))
    assert isinstance(schema, types.StructType)
    assert schema.names == arrow_schema(options(**more)).names
    assert all(field.nullable for field in schema)
    assert schema["timestamp"].dataType == types.TimestampType()
    from pyspark.sql.pandas.types import to_arrow_schema

    named = "timezone" in inspect.signature(to_arrow_schema).parameters  # not before Spark 4.2
    arrow = to_arrow_schema(schema, **({"timezone": "UTC"} if named else {}))
    assert arrow.equals(arrow_schema(options(**more)))
