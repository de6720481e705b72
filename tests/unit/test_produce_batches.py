"""Batches that grow by one record, and the stamp of who sends them."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from encoded_rows import BYTES, HEADERS, TIMESTAMPS, by_kafka_python
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from record_batches import CODECS

from pyspark_kafka_rebalance.errors import RecordTooLargeError
from pyspark_kafka_rebalance.produce.encoder import batch_builder
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.batch_header import (
    HEADER_SIZE,
    Stamp,
    stamp,
    stamp_in_python,
    stamped_header,
    stamped_header_in_python,
)
from pyspark_kafka_rebalance.produce.encoder.compiled import compiled
from pyspark_kafka_rebalance.produce.encoder.python_records import PythonRecords
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings

FORMS: list[Any] = [PythonRecords, *([compiled.Records] if compiled else [])]
NOW_MS = 1_700_000_000_123
DEFAULT = EncoderSettings()

records = st.lists(
    st.tuples(
        st.none() | BYTES,
        st.none() | BYTES | BYTES.map(bytearray) | BYTES.map(memoryview),
        st.none() | HEADERS,
        TIMESTAMPS,
    ),
    max_size=30,
)
bounds = st.builds(
    EncoderSettings,
    batch_bytes=st.sampled_from([1, 100, 300, 100_000]),
    batch_records=st.sampled_from([1, 5, 1_000]),
    codec=st.sampled_from([0, 4]),
)


def builder_of(form: Any, bounds: EncoderSettings = DEFAULT) -> BatchBuilder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            batch_builder,
            "new_records",
            lambda s, refuse: form(s.batch_bytes, s.batch_records, s.max_request_bytes, refuse),
        )
        return BatchBuilder("orders", 3, bounds)


@given(records=records, bounds=bounds)
@settings(deadline=None, max_examples=100)
def test_both_forms_are_equal(records: list[Any], bounds: EncoderSettings) -> None:
    found = []
    for form in FORMS:
        builder = builder_of(form, bounds)
        steps: list[Any] = []
        for record in records:
            appended = builder.append(*record)
            if not appended:
                steps.append(builder.close())
                appended = builder.append(*record)
            assert appended == builder.size
            steps.append((appended, len(builder)))
        found.append([*steps, builder.close() if len(builder) else None])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("form", FORMS)
@given(records=records.filter(bool))
@settings(deadline=None)
def test_readers_read_what_was_appended(form: Any, records: list[Any]) -> None:
    builder = builder_of(form)
    for record in records:
        assert builder.append(*record)
    batch = builder.close()
    assert (batch.partition, batch.records, len(builder)) == (3, len(records), 0)
    expected = [
        (key, value if value is None else bytes(value), at, headers or [])
        for key, value, headers, at in records
    ]
    first = records[0][3]
    found = [
        (key, value, at if at == expected[n][2] else (at + 2**63) % 2**64 - 2**63, headers)
        for n, (key, value, at, headers) in enumerate(by_kafka_python(batch))
    ]
    assert found == expected
    assert struct.unpack_from(">qq", batch.data, 27) == (first, max(r[3] for r in records))


@given(records=records.filter(bool), transactional=st.booleans())
@settings(deadline=None)
@pytest.mark.parametrize("form", FORMS)
def test_kafka_pythons_builder_makes_the_same_bytes(
    form: Any, records: list[Any], transactional: bool
) -> None:
    """But for the leader's epoch, which the broker sets: it writes 0, and Java -1."""
    theirs = DefaultRecordBatchBuilder(2, 0, transactional, 7, 3, 100, 2**20)
    builder = builder_of(form)
    first = records[0][3]
    for n, (key, value, headers, at) in enumerate(records):
        if not -(2**63) <= at - first < 2**63:
            continue
        assert theirs.append(len(builder), at, key, value, headers or []), n
        assert builder.append(key, value, headers, at)
        assert builder.size == theirs.size()
    batch = builder.close().data
    stamp(batch, Stamp(7, 3, 100, transactional))
    expected = theirs.build()
    expected[12:16] = batch[12:16]
    assert batch == expected


@pytest.mark.parametrize("codec", [1, 2, 4])
def test_kafka_pythons_builder_compresses_the_same(codec: int) -> None:
    """What is inside; levels and frames differ."""
    theirs = DefaultRecordBatchBuilder(2, codec, False, -1, -1, -1, 2**20)
    builder = BatchBuilder("orders", 3, EncoderSettings(codec=codec))
    for n in range(2_000):
        theirs.append(n, NOW_MS + n, b"k%d" % n, b"value %d" % n, [])
        builder.append(b"k%d" % n, b"value %d" % n, None, NOW_MS + n)
    batch = builder.close()
    assert by_kafka_python(batch) == [
        (record.key, record.value, record.timestamp, record.headers)
        for record in DefaultRecordBatch(theirs.build())
    ]
    assert CODECS[batch.data[22] & 7] == CODECS[codec]


@pytest.mark.parametrize("form", FORMS)
def test_one_row_at_a_time_makes_the_batch_that_arrow_makes(form: Any) -> None:
    rows = [{"key": b"k%d" % n, "value": b"v" * n} for n in range(50)]
    builder = builder_of(form)
    for row in rows:
        builder.append(row["key"], row["value"], (), NOW_MS)
    (batch,) = ArrowEncoder("orders", 1).encode(pa.Table.from_pylist(rows), NOW_MS)
    assert batch.data == builder.close().data


@pytest.mark.parametrize("form", FORMS)
def test_a_full_batch_takes_the_record_after_it_is_closed(form: Any) -> None:
    builder = builder_of(form, EncoderSettings(batch_bytes=100))
    assert builder.size == HEADER_SIZE
    first = builder.append(None, b"v" * 20, None, NOW_MS)
    assert first == builder.size
    assert builder.append(None, b"v" * 20, None, NOW_MS) == 0
    assert (len(builder), builder.size) == (1, first)
    assert len(builder.close().data) == first
    assert builder.append(None, b"v" * 500, None, NOW_MS) > 500


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["key", "value", "headers"])
def test_a_record_that_is_too_large_is_refused_with_its_size(form: Any, where: str) -> None:
    builder = builder_of(form, EncoderSettings(max_request_bytes=1_000))
    record = {"key": b"k", "value": b"v", "headers": [("a", b"1"), ("b", b"2")]}
    large = dict(record, **{where: [("h", b"x" * 2_000)] * 3 if where == "headers" else b"x" * 950})
    builder.append(record["key"], record["value"], record["headers"], NOW_MS)
    with pytest.raises(RecordTooLargeError, match=r"orders-3 takes [\d,]+ bytes") as caught:
        builder.append(large["key"], large["value"], large["headers"], NOW_MS)
    assert len(builder) == 1
    exact = builder_of(form, EncoderSettings(max_request_bytes=caught.value.size))
    assert exact.append(large["key"], large["value"], large["headers"], NOW_MS)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "record",
    [
        ("key", b"v", None, NOW_MS),
        (b"k", 5, None, NOW_MS),
        (b"k", [1], None, NOW_MS),
        (b"k", b"v", {"a": b"1"}, NOW_MS),
        (b"k", b"v", [("a", "1")], NOW_MS),
        (b"k", b"v", [(None, b"1")], NOW_MS),
        (b"k", b"v", [("a", b"1", 2)], NOW_MS),
        (b"k", b"v", ["ab"], NOW_MS),
        (b"k", b"v", None, 1.5),
        (b"k", b"v", None, None),
        (b"k", b"v", None),
    ],
)
def test_other_types_are_refused(form: Any, record: tuple[Any, ...]) -> None:
    builder = builder_of(form)
    with pytest.raises(TypeError):
        builder.append(*record)
    assert len(builder) == 0


@pytest.mark.parametrize("form", FORMS)
def test_numbers_and_texts_that_do_not_fit_are_refused(form: Any) -> None:
    builder = builder_of(form)
    with pytest.raises(OverflowError):
        builder.append(b"k", b"v", None, 2**63)
    with pytest.raises(UnicodeEncodeError):
        builder.append(b"k", b"v", [("\ud800", b"")], NOW_MS)
    with pytest.raises(ValueError, match="without records"):
        builder.close()


# Stamps

stamps = st.builds(
    Stamp,
    st.integers(-1, 2**63 - 1),
    st.integers(-1, 2**15 - 1),
    st.integers(-1, 2**31 - 1),
    st.booleans(),
)


@given(size=st.integers(0, 10_000), senders=st.lists(stamps, min_size=1, max_size=3), fill=BYTES)
@settings(deadline=None)
@pytest.mark.parametrize("codec", [0, 4])
def test_a_stamp_changes_the_sender_and_the_checksum(
    codec: int, size: int, senders: list[Stamp], fill: bytes
) -> None:
    builder = BatchBuilder("orders", 3, EncoderSettings(codec=codec))
    builder.append(fill, b"v" * size, None, NOW_MS)
    batch = builder.close()
    rows = by_kafka_python(batch)
    before = bytes(batch.data)
    for sender in senders:
        interpreted = bytearray(before)
        stamp_in_python(interpreted, sender)
        header = stamped_header(batch.data, sender)
        assert header == stamped_header_in_python(batch.data, sender) == interpreted[:HEADER_SIZE]
        stamp(batch.data, sender)
        assert batch.data == interpreted
        read = DefaultRecordBatch(bytes(batch.data))
        assert read.validate_crc()
        assert (read.producer_id, read.producer_epoch, read.base_sequence) == sender[:3]
        assert read.is_transactional == sender.transactional
        assert by_kafka_python(batch) == rows
    stamp(batch.data, Stamp())
    assert batch.data == before


@pytest.mark.parametrize("form", [stamp, stamp_in_python, stamped_header])
def test_what_is_no_batch_is_not_stamped(form: Any) -> None:
    with pytest.raises(ValueError, match="a record batch of 60 bytes"):
        form(bytearray(60), Stamp())
