from __future__ import annotations

import contextlib
import inspect
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import pytest
from histories import histories
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.codec import has_gzip, has_lz4, has_snappy, has_zstd
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from record_batches import (
    CODECS,
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    Record,
    build,
    control,
    rows_of,
    rows_of_kafka_python,
    seal,
    with_payload,
)

from pyspark_kafka_rebalance.errors import CorruptRecordError
from pyspark_kafka_rebalance.fetch import decoder
from pyspark_kafka_rebalance.fetch.columns import Columns, PythonColumns, record_schema
from pyspark_kafka_rebalance.fetch.compiled_columns import CompiledColumns, compiled
from pyspark_kafka_rebalance.fetch.decoder import (
    DecoderSettings,
    RecordDecoder,
    has_transactions,
    next_position,
)
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.fetch.records import MAX_TIMESTAMP_MS
from pyspark_kafka_rebalance.fetch.transactions import AbortedTransaction

EVERYTHING = OffsetRange("orders", 3, 0, 2**63 - 1)
Row = dict[str, object]
#: All five where the extra "dev" is installed.
READ_BY_KAFKA_PYTHON = [
    codec
    for codec, has in enumerate((bool, has_gzip, has_snappy, has_lz4, has_zstd))
    if not codec or has()
]


def batches(
    records: bytes,
    offset_range: OffsetRange = EVERYTHING,
    position: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    **options: object,
) -> Iterator[pa.RecordBatch]:
    """In both forms, which have to give the same batches, byte for byte, and the same error."""
    config = DecoderSettings(**{"include_headers": True, **options})  # type: ignore[arg-type]
    found, error = in_python = outcome(
        PythonColumns, records, offset_range, position, aborted, config
    )
    if compiled:
        in_c = outcome(CompiledColumns, records, offset_range, position, aborted, config)
        assert str(in_c[1]) == str(error)
        assert rows_of(in_c[0]) == rows_of(found)
        assert list(map(serialized, in_c[0])) == list(map(serialized, found))
        for batch in in_c[0]:
            batch.validate(full=True)
    yield from in_python[0]
    if error is not None:
        raise error


def outcome(
    form: Callable[[bool], Columns],
    records: bytes,
    offset_range: OffsetRange,
    position: int | None,
    aborted: Sequence[AbortedTransaction],
    config: DecoderSettings,
) -> tuple[list[pa.RecordBatch], CorruptRecordError | None]:
    decoder = RecordDecoder(offset_range, config, form(config.include_headers))
    found: list[pa.RecordBatch] = []
    try:
        found.extend(decoder.decode(records, position or offset_range.start, aborted))
        found.extend(decoder.finish())
    except CorruptRecordError as error:
        return found, error
    return found, None


def serialized(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


def decode(
    records: bytes,
    offset_range: OffsetRange = EVERYTHING,
    position: int | None = None,
    aborted: Sequence[AbortedTransaction] = (),
    **options: object,
) -> list[Row]:
    return rows_of(batches(records, offset_range, position, aborted, **options))


def offsets(rows: list[Row]) -> list[object]:
    return [row["offset"] for row in rows]


def simple(first: int, last: int, **options: int) -> bytes:
    return build(
        [Record(n, 1000 + n, b"k%d" % n, b"v%d" % n) for n in range(first, last)], **options
    )


nullable_bytes = st.none() | st.binary(max_size=300)
headers = st.lists(st.tuples(st.text(max_size=8), st.none() | st.binary(max_size=10)), max_size=4)


def timestamps(first: int) -> st.SearchStrategy[int]:
    """Mostly around the first one of a batch; some that microseconds cannot hold."""
    near = st.integers(first - 2**20, first + 2**41)
    return near | near | near | st.integers(0, 2**63 - 1 - 2**42)


@st.composite
def record_batches(draw: st.DrawFn) -> bytes:
    """Several batches, one after another, with gaps between and inside them."""
    offset = draw(st.integers(0, 2**40))
    whole = b""
    for _ in range(draw(st.integers(1, 4))):
        timestamp = draw(st.integers(-1, 2**42))
        records = []
        for _ in range(draw(st.integers(1, 6))):
            records.append(
                Record(
                    offset,
                    draw(timestamps(timestamp)),
                    draw(nullable_bytes),
                    draw(nullable_bytes),
                    draw(headers),
                )
            )
            offset += draw(st.integers(1, 300))
        flags = draw(st.sampled_from([0, LOG_APPEND_TIME]))
        codec = draw(st.sampled_from(READ_BY_KAFKA_PYTHON))
        last = offset - 1 if draw(st.booleans()) else None
        whole += build(records, codec=codec, flags=flags, last_offset=last)
    return whole


@given(records=record_batches())
@settings(max_examples=histories(300), deadline=None)
def test_rows_are_those_of_kafka_python(records: bytes) -> None:
    assert decode(records) == rows_of_kafka_python(records)


@given(records=record_batches(), data=st.data())
@settings(deadline=None)
def test_only_rows_of_the_range_and_from_the_position_on(
    records: bytes, data: st.DataObject
) -> None:
    rows = rows_of_kafka_python(records)
    found = [int(str(row["offset"])) for row in rows]
    around = st.integers(max(0, found[0] - 2), found[-1] + 2)
    start = data.draw(around)
    end = data.draw(st.integers(start, found[-1] + 3))
    offset_range = OffsetRange("orders", 3, start, end)
    expected = [row for row in rows if start <= int(str(row["offset"])) < end]
    assert decode(records, offset_range) == expected


@given(records=record_batches(), rows=st.integers(1, 9), size=st.integers(1, 600))
@settings(deadline=None)
def test_batches_of_any_size_hold_the_same_rows(records: bytes, rows: int, size: int) -> None:
    parts = list(batches(records, batch_rows=rows, batch_bytes=size))
    assert rows_of(parts) == rows_of_kafka_python(records)
    for part in parts:
        part.validate(full=True)
        assert part.schema == record_schema(True)
        assert 0 < part.num_rows <= 2 * rows


def test_schema_is_what_spark_expects() -> None:
    t = pytest.importorskip("pyspark.sql.types")
    to_arrow_schema = pytest.importorskip("pyspark.sql.pandas.types").to_arrow_schema
    header = t.StructType().add("key", t.StringType()).add("value", t.BinaryType())
    columns = {
        "key": t.BinaryType(),
        "value": t.BinaryType(),
        "offset": t.LongType(),
        "timestamp": t.TimestampType(),
        "timestampType": t.IntegerType(),
        "headers": t.ArrayType(header),
    }
    spark = t.StructType([t.StructField(name, kind) for name, kind in columns.items()])
    named = "timezone" in inspect.signature(to_arrow_schema).parameters  # not before Spark 4.2
    expected = to_arrow_schema(spark, **({"timezone": "UTC"} if named else {}))
    assert record_schema(True).equals(expected)
    assert [str(field) for field in record_schema(True)] == [str(field) for field in expected]


def test_headers_may_be_left_out() -> None:
    records = build([Record(5, 1, b"k", b"v", [("h", b"1")])])
    (batch,) = batches(records, include_headers=False)
    assert batch.schema == record_schema(False)
    assert batch.schema.names == ["key", "value", "offset", "timestamp", "timestampType"]


def test_null_and_empty_are_different_things() -> None:
    records = build(
        [
            Record(0, 0, None, None),
            Record(1, 0, b"", b""),
            Record(2, 0, b"k", None),  # a tombstone
            Record(3, 0, None, b"v", [("a", None), ("a", b""), ("", b"x")]),
        ]
    )
    rows = decode(records)
    assert [(row["key"], row["value"]) for row in rows] == [
        (None, None),
        (b"", b""),
        (b"k", None),
        (None, b"v"),
    ]
    assert [row["headers"] for row in rows[:3]] == [None, None, None]
    assert rows[3]["headers"] == [
        {"key": "a", "value": None},
        {"key": "a", "value": b""},
        {"key": "", "value": b"x"},
    ]


def test_append_time_is_the_same_for_the_whole_batch() -> None:
    records = build([Record(0, 500, None, b"a"), Record(1, 900, None, b"b")], flags=LOG_APPEND_TIME)
    create = build([Record(2, 500, None, b"c"), Record(3, 400, None, b"d")])
    rows = decode(records + create)
    assert [(row["timestamp"], row["timestampType"]) for row in rows] == [
        (900_000, 1),
        (900_000, 1),
        (500_000, 0),
        (400_000, 0),
    ]


def test_a_header_key_that_is_not_utf8_keeps_what_is() -> None:
    batch = build([Record(0, 0, None, None, [("ab", b"v")])])
    rows = decode(seal(batch.replace(b"ab", b"\xffb")))
    assert rows[0]["headers"] == [{"key": "\ufffdb", "value": b"v"}]


# Positions


def test_the_next_position_is_after_the_last_whole_batch() -> None:
    records = simple(10, 20) + simple(25, 30, last_offset=39)
    for cut in range(1, HEADER_SIZE):
        assert next_position(records + simple(40, 50)[:cut], 10, EVERYTHING) == 40


def test_a_batch_beyond_the_end_ends_the_range() -> None:
    records = simple(10, 20) + simple(90, 95)
    assert next_position(records, 10, OffsetRange("orders", 3, 10, 50)) == 50
    assert next_position(simple(90, 95), 10, OffsetRange("orders", 3, 10, 50)) == 50


def test_nothing_beyond_the_end_is_looked_at() -> None:
    broken = bytearray(simple(50, 60))
    broken[70] ^= 1
    offset_range = OffsetRange("orders", 3, 10, 50)
    assert offsets(decode(simple(10, 20) + bytes(broken), offset_range)) == list(range(10, 20))


def test_a_fetch_that_leads_nowhere_is_an_error() -> None:
    whole = simple(10, 20)
    for records in (whole[:30], whole[:-1], simple(3, 8)):
        with pytest.raises(CorruptRecordError, match="leads past it") as caught:
            next_position(records, 10, EVERYTHING)
        assert (caught.value.topic, caught.value.partition, caught.value.offset) == (
            "orders",
            3,
            10,
        )


# Transactions


def test_aborted_records_are_left_out_and_markers_always() -> None:
    log = b"".join(
        [
            simple(0, 2),
            simple(2, 4, flags=TRANSACTIONAL, producer_id=7),  # aborted
            simple(4, 6, flags=TRANSACTIONAL, producer_id=8),  # committed
            simple(6, 7, flags=TRANSACTIONAL, producer_id=7),  # aborted
            control(7, 7, commit=False),
            simple(8, 9, flags=TRANSACTIONAL, producer_id=7),  # committed
            control(9, 8, commit=True),
            control(10, 7, commit=True),
            simple(11, 12, flags=TRANSACTIONAL, producer_id=7),  # aborted
            control(12, 7, commit=False),
            simple(13, 14, producer_id=7),  # idempotent, in no transaction
        ]
    )
    aborted = [AbortedTransaction(2, 7), AbortedTransaction(11, 7)]
    committed = decode(log, aborted=aborted, read_committed=True)
    assert offsets(committed) == [0, 1, 4, 5, 8, 13]
    everything = decode(log, aborted=aborted, read_committed=False)
    assert offsets(everything) == [0, 1, 2, 3, 4, 5, 6, 8, 11, 13]


def test_a_transaction_that_began_before_the_fetch_is_still_aborted() -> None:
    log = simple(50, 55, flags=TRANSACTIONAL, producer_id=7) + control(55, 7, commit=False)
    rows = decode(log + simple(56, 58), aborted=[AbortedTransaction(3, 7)], read_committed=True)
    assert offsets(rows) == [56, 57]


MARKER = control(7, 1, commit=True)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (b"", False),
        (simple(0, 9), False),
        (simple(0, 9, flags=LOG_APPEND_TIME), False),
        (simple(0, 9, flags=TRANSACTIONAL), True),
        (simple(0, 6) + MARKER, True),
        (simple(0, 6) + MARKER[:-1], True),  # its header is there
        (simple(0, 6) + MARKER[: HEADER_SIZE - 1], False),
    ],
)
def test_batches_of_transactions_are_told_by_their_headers(records: bytes, expected: bool) -> None:
    assert has_transactions(records) is expected


@pytest.mark.parametrize("read_committed", [True, False])
def test_batches_that_compaction_has_emptied_are_passed_over(read_committed: bool) -> None:
    """It keeps a producer's last batch, be it a marker or not, with no record in it."""
    log = b"".join(
        [
            build([], flags=CONTROL | TRANSACTIONAL, producer_id=7, base_offset=0, last_offset=3),
            build([], flags=TRANSACTIONAL, producer_id=7, base_offset=4, last_offset=5),
            build([], producer_id=9, base_offset=6, last_offset=6),
            simple(7, 9, flags=TRANSACTIONAL, producer_id=8),  # aborted
            control(9, 8, commit=False),
            simple(10, 12),
        ]
    )
    rows = decode(log, aborted=[AbortedTransaction(7, 8)], read_committed=read_committed)
    assert offsets(rows) == ([10, 11] if read_committed else [7, 8, 10, 11])
    empty = log[:61]
    assert decode(empty, aborted=[AbortedTransaction(7, 8)], read_committed=read_committed) == []
    assert next_position(empty, 0, EVERYTHING) == 4


@pytest.mark.parametrize("key", [b"", b"\x00\x00\x00"])
def test_a_marker_without_a_type_is_corrupt(key: bytes) -> None:
    marker = build([Record(5, 0, key, b"")], flags=0x30, producer_id=7)
    with pytest.raises(CorruptRecordError, match="control record"):
        decode(marker, aborted=[AbortedTransaction(3, 7)], read_committed=True)


# Damage


@given(records=record_batches(), place=st.floats(0, 1), bit=st.integers(0, 7))
@settings(max_examples=histories(500), deadline=None)
def test_a_flipped_bit_is_found_or_changes_nothing(records: bytes, place: float, bit: int) -> None:
    at = min(int(place * len(records)), len(records) - 1)
    damaged = bytearray(records)
    damaged[at] ^= 1 << bit
    rows = rows_of_kafka_python(records)
    try:
        found = decode(bytes(damaged))
    except CorruptRecordError:
        return
    # Neither base offset nor length is under the CRC. A length can make the rest look cut off,
    # which is fetched again and then leads nowhere; a base offset cannot be told from a true one.
    if [dict(row, offset=0) for row in found] == [dict(row, offset=0) for row in rows]:
        return
    assert found == rows[: len(found)]
    with pytest.raises(CorruptRecordError):
        list(_walk(bytes(damaged), int(str(rows[0]["offset"]))))


def _walk(records: bytes, position: int) -> Iterator[int]:
    """Fetch after fetch of a log that is these bytes, until nothing is left."""
    while records:
        following = next_position(records, position, EVERYTHING)
        yield following
        while len(records) > 16:
            base, length = struct.unpack_from(">qi", records)
            (delta,) = struct.unpack_from(">i", records, 23)
            if base + delta >= following:
                break
            records = records[length + 12 :]
        position = following


@given(records=record_batches(), place=st.floats(0, 1))
@settings(deadline=None)
def test_a_cut_off_buffer_gives_the_whole_batches(records: bytes, place: float) -> None:
    rows = decode(records[: int(place * len(records))])
    assert rows == rows_of_kafka_python(records)[: len(rows)]


@given(payload=st.binary(max_size=200), count=st.integers(-1, 40), flags=st.sampled_from(range(64)))
@settings(max_examples=histories(500), deadline=None)
def test_hostile_records_under_a_right_crc(payload: bytes, count: int, flags: int) -> None:
    with contextlib.suppress(CorruptRecordError):
        assert len(decode(with_payload(payload, count, flags), read_committed=True)) <= count


@given(records=st.binary(max_size=400), position=st.integers(0, 2**63 - 1))
@settings(deadline=None)
def test_any_bytes_at_all(records: bytes, position: int) -> None:
    for read in (lambda: decode(records), lambda: next_position(records, position, EVERYTHING)):
        with contextlib.suppress(CorruptRecordError):
            read()
    has_transactions(records)


VARINT_END = b"\xfe\xff\xff\xff\x0f"  # 2**31 - 1


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x0e\x00\x00\x00" + VARINT_END, "past"),
        (b"\x10\x00\x00\x00\x01\x01\x04\x00\x01", "header"),
        (b"\x0c\x00\x00\x00\x01\x01" + b"\x01", "headers in"),
        (VARINT_END + b"\x00", "past its batch"),
        (b"\x0c\x00\x00\x00\x01\x01\x00" + b"extra", "after its 1 records"),
        (b"\x0e\x00\x00\x00\x01\x01\x00\x00", "differs from its length"),
        (b"\xff" * 12 + b"\x00" * 8, "more than 10 bytes"),
        (b"\x0d" + bytes(6), "differs from its length"),  # -7, but 6 if the sign is not looked at
    ],
)
def test_what_is_wrong_is_said(payload: bytes, reason: str) -> None:
    with pytest.raises(CorruptRecordError, match=reason):
        decode(with_payload(payload, 1))


def test_the_error_names_topic_partition_and_base_offset() -> None:
    damaged = bytearray(simple(10, 20) + simple(20, 30))
    damaged[-1] ^= 1
    with pytest.raises(CorruptRecordError) as caught:
        decode(bytes(damaged))
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("orders", 3, 20)
    assert "CRC-32C" in str(error)


def test_checksums_may_be_ignored() -> None:
    damaged = bytearray(simple(10, 20))
    damaged[-2] ^= 1
    assert decode(bytes(damaged), check_crcs=False)[-1]["value"] == b"v18"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_damaged_compression_is_corrupt_at_its_batch(codec: int) -> None:
    batch = simple(10, 20, codec=codec)
    damaged = seal(batch[:HEADER_SIZE] + batch[HEADER_SIZE + 9 :])
    with pytest.raises(CorruptRecordError, match=CODECS[codec]) as caught:
        decode(damaged)
    assert caught.value.offset == 10


NANOSECONDS = 1_700_000_000_123_456_789


@pytest.mark.parametrize("codec", [0, 3])
@pytest.mark.parametrize("timestamp", [NANOSECONDS, 2**63 - 1, -(2**63), -NANOSECONDS])
def test_a_timestamp_that_microseconds_cannot_hold_is_null(
    timestamp: int, codec: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It made all records of its batch unreadable, also for who wanted none but the others."""
    decoder._warned_of.clear()
    log = build(
        [Record(n, timestamp if n == 2 else n, b"k", b"v%d" % n) for n in range(5)], codec=codec
    )
    rows = decode(log)
    assert [row["timestamp"] for row in rows] == [0, 1_000, None, 3_000, 4_000]
    assert [row["value"] for row in rows] == [b"v%d" % n for n in range(5)]
    (message,) = {record.getMessage() for record in caplog.records}
    assert f"orders-3: the record at offset 2 has the timestamp {timestamp} ms" in message
    caplog.clear()
    decoder._warned_of.clear()
    assert decode(log, OffsetRange("orders", 3, 3, 5)) == rows[3:]
    assert decode(log, OffsetRange("orders", 3, 0, 2)) == rows[:2]
    assert not caplog.records, "nobody wanted that record"


@pytest.mark.parametrize("first", [NANOSECONDS, 2**63 - 1])
def test_a_batch_that_begins_with_such_a_timestamp(first: int) -> None:
    """The other timestamps are relative to it; Java's consumer lets the sum overflow as well."""
    log = build([Record(n, at, None, b"v") for n, at in enumerate([first, 5, first, 6])])
    assert [row["timestamp"] for row in decode(log)] == [None, 5_000, None, 6_000]
    append_time = build([Record(n, first, None, b"v") for n in range(3)], flags=LOG_APPEND_TIME)
    assert [row["timestamp"] for row in decode(append_time + log)][:3] == [None] * 3


def test_the_latest_timestamp_that_microseconds_hold() -> None:
    log = build([Record(n, at, None, b"v") for n, at in enumerate([MAX_TIMESTAMP_MS, 0])])
    over = build([Record(n, at, None, b"v") for n, at in enumerate([MAX_TIMESTAMP_MS + 1, 0], 2)])
    expected = [MAX_TIMESTAMP_MS * 1000, 0, None, 0]
    assert [row["timestamp"] for row in decode(log + over)] == expected


def test_such_a_timestamp_in_a_message_of_an_older_format() -> None:
    message = bytearray(legacy(1, 0, count=1))
    struct.pack_into(">q", message, 18, NANOSECONDS)
    struct.pack_into(">I", message, 12, zlib.crc32(message[16:]))
    rows = decode(bytes(message) + legacy(1, 0, count=1, first=101))
    assert [row["timestamp"] for row in rows] == [None, 1_000_000]
    assert rows[0]["value"] == b"v0"


def test_rows_before_the_damage_are_whole() -> None:
    """The records of the damaged batch that were decoded before it are not among them."""
    payload = simple(10, 14)[HEADER_SIZE:]
    damaged = with_payload(payload[:-1], 4)
    found, error = [], None
    for form in [PythonColumns, CompiledColumns] if compiled else [PythonColumns]:
        decoder = RecordDecoder(EVERYTHING, DecoderSettings(), form(False))
        with pytest.raises(CorruptRecordError) as caught:
            list(decoder.decode(simple(0, 3) + damaged, 0))
        found.append(rows_of(decoder.finish()))
        error = caught.value
    assert all(offsets(rows) == [0, 1, 2] for rows in found)
    assert error is not None
    assert error.offset == 0


# Formats 0 and 1


def legacy(magic: int, codec: int, count: int = 5, first: int = 100) -> bytes:
    builder = LegacyRecordBatchBuilder(magic, codec, 2**20)
    for n in range(count):
        # In a compressed message of format 1 the offsets inside are relative.
        offset = n if codec and magic == 1 else first + n
        builder.append(offset, 1000 + n, None if n % 2 else b"k%d" % n, b"v%d" % n)
    message = bytearray(builder.build())
    if codec:
        struct.pack_into(">q", message, 0, first + count - 1)
    return bytes(message)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [0, 1, 2, 3])
def test_older_formats_through_kafka_python(magic: int, codec: int) -> None:
    for module in {2: "snappy", 3: "lz4"}, {3: "xxhash"} if magic == 0 else {}:
        if codec in module:
            pytest.importorskip(module[codec])
    records = legacy(magic, codec)
    expected = rows_of_kafka_python(records)
    assert len(expected) == 5
    assert decode(records) == expected
    assert next_position(records, 100, EVERYTHING) == 105
    inside = OffsetRange("orders", 3, 102, 104)
    assert decode(records, inside) == expected[2:4]
    assert next_position(records, 102, inside) == 104


@given(place=st.floats(0, 1), bit=st.integers(0, 7))
@settings(deadline=None)
@pytest.mark.parametrize(("magic", "codec"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_damaged_older_formats(magic: int, codec: int, place: float, bit: int) -> None:
    records = bytearray(legacy(magic, codec))
    at = min(int(place * len(records)), len(records) - 1)
    records[at] ^= 1 << bit
    try:
        rows = decode(bytes(records))
    except CorruptRecordError:
        return
    whole = rows_of_kafka_python(legacy(magic, codec))
    # The offset is not under the CRC.
    assert [dict(row, offset=0) for row in rows] == [dict(row, offset=0) for row in whole][
        : len(rows)
    ]


def test_an_inner_message_of_negative_length_ends() -> None:
    inner = bytearray(legacy(1, 0, count=1, first=0))
    struct.pack_into(">i", inner, 8, -12)
    outer = LegacyRecordBatchBuilder(1, 0, 2**20)
    outer.append(0, 0, None, pa.Codec("gzip").compress(bytes(inner), asbytes=True))
    message = bytearray(outer.build())
    message[17] |= 1  # gzip
    with pytest.raises(CorruptRecordError, match="inner message"):
        decode(bytes(message), check_crcs=False)


def test_fetch_imports_neither_spark_nor_the_consumer() -> None:
    code = (
        "import sys, pyspark_kafka_rebalance.fetch.fetcher\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('pyspark', 'pandas')\n"
        "       or m.startswith(('pyspark_kafka_rebalance.consumer', "
        "'pyspark_kafka_rebalance.source'))]\n"
        "sys.exit(str(bad) if bad else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
