"""The sink's columns: which it takes, and rows by topic."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql import types

from pyspark_kafka_rebalance import KafkaRebalanceError
from pyspark_kafka_rebalance.sink.columns import Columns
from pyspark_kafka_rebalance.sink.topic_rows import rows_by_topic

HEADERS = "headers array<struct<key:string|value:binary>>"

TYPES = {
    "string": types.StringType(),
    "binary": types.BinaryType(),
    "int": types.IntegerType(),
    "bigint": types.LongType(),
    "timestamp": types.TimestampType(),
    "map<string|string>": types.MapType(types.StringType(), types.StringType()),
    "array<struct<key:string|value:binary>>": types.ArrayType(
        types.StructType().add("key", types.StringType()).add("value", types.BinaryType())
    ),
}


def schema_of(text: str) -> types.StructType:
    """Spark's own parser needs a session."""
    schema = types.StructType()
    for column in text.split(","):
        name, kind = column.split()
        schema.add(name, TYPES[kind])
    return schema


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("key string", "Required attribute 'value' not found"),
        ("VALUE string", "Required attribute 'value' not found"),
        ("value int", "value attribute unsupported type int. value must be a(n) string or binary"),
        ("value string, key int", "key must be a(n) string or binary"),
        ("value string, headers map<string|string>", "headers attribute unsupported type map"),
        ("value string, partition bigint", "partition must be a(n) int"),
        ("value string, timestamp bigint", "timestamp must be a(n) timestamp"),
    ],
)
def test_a_wrong_column_is_refused_in_sparks_words(schema: str, said: str) -> None:
    with pytest.raises(KafkaRebalanceError) as raised:
        Columns.checked(schema_of(schema), "orders")
    assert said in str(raised.value)


def test_the_topic_comes_from_the_option_or_the_column() -> None:
    with pytest.raises(KafkaRebalanceError, match="topic option required when no 'topic'"):
        Columns.checked(schema_of("value string"), None)
    with pytest.raises(KafkaRebalanceError, match=r"topic must be a\(n\) string"):
        Columns.checked(schema_of("value string, topic int"), None)
    both = schema_of("value string, topic string, other int")
    assert Columns.checked(both, None) == Columns(1, (("value", 0),))
    assert Columns.checked(schema_of("topic int, value string"), "orders") == (
        Columns(None, (("value", 1),))
    )


def test_all_columns_are_found_and_others_ignored() -> None:
    schema = schema_of(
        f"offset bigint, timestamp timestamp, partition int, {HEADERS}, key binary, value binary"
    )
    found = Columns.checked(schema, "orders")
    assert dict(found.encoded) == {
        "timestamp": 1,
        "partition": 2,
        "headers": 3,
        "key": 4,
        "value": 5,
    }


@given(st.lists(st.sampled_from(["a", "b", "c", "d"])))
def test_rows_are_parted_by_topic_in_their_order(topics: list[str]) -> None:
    values = [str(n) for n in range(len(topics))]
    batch = pa.record_batch(
        {"topic": pa.array(topics, pa.string()), "value": pa.array(values, pa.string())}
    )
    parted = list(rows_by_topic(batch, Columns(0, (("value", 1),)), None))
    assert len({topic for topic, _ in parted}) == len(parted)
    assert {topic: rows.column("value").to_pylist() for topic, rows in parted} == {
        topic: [values[n] for n, each in enumerate(topics) if each == topic]
        for topic in set(topics)
    }


def test_a_row_without_a_topic_is_an_error() -> None:
    batch = pa.record_batch({"topic": ["a", None], "value": ["1", "2"]})
    with pytest.raises(KafkaRebalanceError, match="null topic present in the data"):
        list(rows_by_topic(batch, Columns(0, (("value", 1),)), None))
