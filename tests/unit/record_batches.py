"""Record batches as bytes, built with kafka-python's builder and damaged at will."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import pyarrow as pa
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords
from kafka.record.util import calc_crc32c

from pyspark_kafka_rebalance.fetch.records import MAX_TIMESTAMP_MS

CODECS = {0: None, 1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
HEADER_SIZE = 61
_ATTRIBUTES = 21

LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def build(
    records: Sequence[Record],
    *,
    codec: int = 0,
    flags: int = 0,
    producer_id: int = -1,
    last_offset: int | None = None,
    base_offset: int | None = None,
) -> bytes:
    """One record batch of format 2; ``last_offset`` leaves a gap at its end, as compaction does."""
    builder = DefaultRecordBatchBuilder(2, 0, False, producer_id, 0, 0, 2**31)
    base = records[0].offset if base_offset is None else base_offset
    for record in records:
        builder.append(
            record.offset - base, record.timestamp, record.key, record.value, list(record.headers)
        )
    batch = bytearray(builder.build())
    struct.pack_into(">q", batch, 0, base)
    if last_offset is None:
        last_offset = records[-1].offset if records else base
    struct.pack_into(">i", batch, 23, last_offset - base)
    struct.pack_into(">h", batch, _ATTRIBUTES, codec | flags)
    if codec:
        compressed = pa.Codec(CODECS[codec]).compress(bytes(batch[HEADER_SIZE:]), asbytes=True)
        batch[HEADER_SIZE:] = compressed
    return seal(batch)


def control(offset: int, producer_id: int, *, commit: bool) -> bytes:
    """A transaction marker."""
    key = struct.pack(">hh", 0, int(commit))
    record = Record(offset, 0, key, b"\x00" * 6)
    return build([record], flags=CONTROL | TRANSACTIONAL, producer_id=producer_id)


def seal(batch: bytes | bytearray) -> bytes:
    """Make length and CRC right for what the batch now is."""
    sealed = bytearray(batch)
    struct.pack_into(">i", sealed, 8, len(sealed) - 12)
    struct.pack_into(">I", sealed, 17, calc_crc32c(memoryview(sealed)[_ATTRIBUTES:]))
    return bytes(sealed)


def with_payload(payload: bytes, count: int, flags: int = 0) -> bytes:
    """A batch whose header and CRC are right and whose records are these bytes."""
    header = bytearray(build([Record(0, 0, None, None)], flags=flags)[:HEADER_SIZE])
    struct.pack_into(">i", header, HEADER_SIZE - 4, count)
    return seal(bytes(header) + payload)


def rows_of_kafka_python(records: bytes) -> list[dict[str, object]]:
    """What kafka-python makes of the same bytes, in the columns of record_schema."""
    rows: list[dict[str, object]] = []
    for batch in MemoryRecords(records):
        if isinstance(batch, DefaultRecordBatch) and batch.is_control_batch:
            continue
        rows.extend(
            {
                "key": record.key,
                "value": record.value,
                "offset": record.offset,
                "timestamp": _microseconds(-1 if record.timestamp is None else record.timestamp),
                "timestampType": record.timestamp_type or 0,
                "headers": [{"key": k, "value": v} for k, v in record.headers] or None,
            }
            for record in batch
        )
    return rows


def _microseconds(timestamp_ms: int) -> int | None:
    return timestamp_ms * 1000 if abs(timestamp_ms) <= MAX_TIMESTAMP_MS else None


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[dict[str, object]]:
    """Arrow's rows, timestamps as microseconds."""
    rows: list[dict[str, object]] = []
    for batch in batches:
        index = batch.schema.get_field_index("timestamp")
        plain = batch.column(index).cast(pa.int64())
        table = pa.Table.from_batches([batch]).set_column(index, "timestamp", plain)
        rows.extend(table.to_pylist())
    return rows
