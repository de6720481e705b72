"""Rows for the encoder's tests, and what readers make of its batches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
from record_batches import rows_of

from pyspark_kafka_rebalance.fetch.columns import PythonColumns
from pyspark_kafka_rebalance.fetch.compiled_columns import CompiledColumns
from pyspark_kafka_rebalance.fetch.decoder import DecoderSettings, RecordDecoder
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch

#: Until the year 10,000, after the epoch; and what the encoder takes besides.
TIMESTAMPS = st.integers(0, 2**48) | st.integers(-(2**63), 2**63 - 1)
BYTES = st.binary(max_size=20) | st.binary(min_size=60, max_size=200)
HEADERS = st.lists(st.tuples(st.text(max_size=5), st.none() | st.binary(max_size=9)), max_size=3)

TEXTS = [pa.binary(), pa.large_binary(), pa.binary(4), pa.string(), pa.large_string(), pa.null()]
HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])


def header_dicts(headers: Any) -> Any:
    return headers and [{"key": key, "value": value} for key, value in headers]


@st.composite
def tables(draw: Any, partitions: int = 3, max_rows: int = 30) -> pa.Table:
    """Any of the columns, in any of their types, sliced and in chunks."""
    rows = draw(st.integers(0, max_rows))

    def items(strategy: Any) -> list[Any]:
        return draw(st.lists(st.none() | strategy, min_size=rows, max_size=rows))

    columns = {"value": draw(_texts(rows))}
    if draw(st.booleans()):
        columns["key"] = draw(_texts(rows))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.list_, pa.large_list]))
        columns["headers"] = pa.array(map(header_dicts, items(HEADERS)), kind(HEADER_TYPE))
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.int64(), *map(pa.timestamp, ("ms", "us", "ns"))]))
        columns["timestamp"] = pa.array(items(TIMESTAMPS), pa.int64()).cast(kind)
    if draw(st.booleans()):
        kind = draw(st.sampled_from([pa.int32(), pa.int64(), pa.int8()]))
        columns["partition"] = pa.array(items(st.integers(0, partitions - 1)), kind)
    table = pa.table(columns)
    if rows:
        first = draw(st.integers(0, rows - 1))
        cut = draw(st.integers(first, rows))
        table = pa.concat_tables([table.slice(first, cut - first), table.slice(cut)])
    return table


@st.composite
def _texts(draw: Any, rows: int) -> pa.Array:
    kind = draw(
        st.sampled_from(
            [
                pa.binary(),
                pa.string(),
                pa.large_binary(),
                pa.large_string(),
                pa.binary(4),
                pa.null(),
            ]
        )
    )
    if pa.types.is_null(kind):
        return pa.nulls(rows)
    if pa.types.is_fixed_size_binary(kind):
        item = st.binary(min_size=4, max_size=4)
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        item = st.text(max_size=20)
    else:
        item = BYTES
    return pa.array(draw(st.lists(st.none() | item, min_size=rows, max_size=rows)), kind)


def as_bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


Row = tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]]]


def rows_given(table: pa.Table, now_ms: int) -> list[tuple[int | None, Row]]:
    """The partition, if one is given, and (key, value, timestamp in ms, headers) of each row."""
    ticks = 1
    if "timestamp" in table.column_names:
        kind = table.schema.field("timestamp").type
        if pa.types.is_timestamp(kind):
            ticks = {"ms": 1, "us": 1_000, "ns": 1_000_000}[kind.unit]
        at = table.column_names.index("timestamp")
        table = table.set_column(at, "timestamp", table["timestamp"].cast(pa.int64()))
    given = []
    for row in table.to_pylist():
        timestamp = row.get("timestamp")
        headers = [(header["key"], header["value"]) for header in row.get("headers") or []]
        timestamp_ms = now_ms if timestamp is None else timestamp // ticks
        given.append(
            (
                row.get("partition"),
                (as_bytes(row.get("key")), as_bytes(row["value"]), timestamp_ms, headers),
            )
        )
    return given


def by_kafka_python(batch: EncodedBatch) -> list[Row]:
    """The rows that kafka-python reads, its checks included."""
    memory = MemoryRecords(bytes(batch.data))
    (only,) = list(iter(memory.next_batch, None))
    assert isinstance(only, DefaultRecordBatch)
    assert only.validate_crc()
    records = list(only)
    assert [record.offset for record in records] == list(range(batch.records))
    assert (only.last_offset_delta, only.records_count) == (batch.records - 1, batch.records)
    assert only.first_timestamp == records[0].timestamp
    return [(r.key, r.value, r.timestamp, r.headers) for r in records]


def by_our_decoder(batches: Iterable[EncodedBatch], compiled: bool) -> list[Row]:
    """The rows of a partition that our decoder reads, with timestamps in milliseconds."""
    log = bytearray()
    offset = 0
    for batch in batches:
        placed = bytearray(batch.data)
        placed[:8] = offset.to_bytes(8, "big")  # as the broker does
        log += placed
        offset += batch.records
    columns = CompiledColumns(True) if compiled else PythonColumns(True)
    decoder = RecordDecoder(OffsetRange("t", 0, 0, 2**62), DecoderSettings(), columns)
    decoded = rows_of([*decoder.decode(bytes(log), 0), *decoder.finish()])
    assert [row["offset"] for row in decoded] == list(range(offset))
    return [
        (
            row["key"],
            row["value"],
            row["timestamp"] if row["timestamp"] is None else row["timestamp"] // 1000,
            [(header["key"], header["value"]) for header in row["headers"] or []],
        )
        for row in decoded
    ]  # fmt: skip
