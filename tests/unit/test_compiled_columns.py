"""The compiled decoder by itself; test_record_batch.py has it decode the same as Python does."""

from __future__ import annotations

import gc
from collections import namedtuple
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from record_batches import CONTROL, HEADER_SIZE, TRANSACTIONAL, Record, build, control

from pyspark_kafka_rebalance.fetch import decoder
from pyspark_kafka_rebalance.fetch.columns import Extent, PythonColumns, Row
from pyspark_kafka_rebalance.fetch.compiled_columns import CompiledColumns, compiled
from pyspark_kafka_rebalance.fetch.decoder import next_position
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.fetch.records import Wanted

if compiled is None:
    pytest.skip("the package was installed where no C compiler is", allow_module_level=True)

ALL = Extent(0, 2**63 - 1, True, False, 2**31, 2**31)


def batch_of(first: int, last: int, **options: int) -> bytes:
    return build([Record(n, n, b"k", b"v%d" % n) for n in range(first, last)], **options)


@given(data=st.binary(max_size=200), start=st.integers(0, 9))
def test_checksums_are_those_of_crc32c(data: bytes, start: int) -> None:
    expected = crc32c(data[start:])
    assert compiled.crc32c(memoryview(data)[start:]) == expected
    assert compiled.crc32c_portable(memoryview(data)[start:]) == expected


def test_what_is_plain_never_comes_through_python() -> None:
    headers = [("h\u00e9", b"v"), ("", None)]
    log = b"".join(
        [
            batch_of(0, 50),
            batch_of(50, 51, flags=TRANSACTIONAL, producer_id=7),
            control(51, 7, commit=True),
            build([Record(60, 5, None, b"", headers), Record(70, 2**40, b"", None)]),
            build([], base_offset=71, last_offset=80),
        ]
    )
    columns = CompiledColumns(include_headers=True)
    assert columns.extend(log, 0, ALL) == len(log)
    assert len(columns) == 53
    assert compiled.skim(log, 2**63 - 1) == (81, 0, len(log))  # with the leader epoch


LAST = batch_of(9, 12)
TRANSACTION = batch_of(5, 9, flags=TRANSACTIONAL, producer_id=7)


@pytest.mark.parametrize(
    ("rest", "extent"),
    [
        pytest.param(batch_of(5, 9, codec=3) + LAST, ALL, id="compressed"),
        pytest.param(batch_of(5, 9)[:-1], ALL, id="cut off"),
        pytest.param(batch_of(5, 9)[:40], ALL, id="cut off in its header"),
        pytest.param(batch_of(5, 9)[:-1] + b"?" + LAST, ALL, id="a wrong checksum"),
        pytest.param(batch_of(5, 9) + LAST, ALL._replace(end=5), id="the end"),
        pytest.param(batch_of(5, 9) + LAST, ALL._replace(full_rows=5), id="full of rows"),
        pytest.param(batch_of(5, 9) + LAST, ALL._replace(full_bytes=10), id="full of bytes"),
        pytest.param(TRANSACTION + LAST, ALL._replace(transactions=True), id="a transaction"),
        pytest.param(
            control(5, 7, commit=False) + LAST, ALL._replace(transactions=True), id="a marker"
        ),
    ],
)
def test_it_stops_before_what_is_not_plain_and_keeps_nothing_of_it(
    rest: bytes, extent: Extent
) -> None:
    first = batch_of(0, 5)
    columns = CompiledColumns(include_headers=False)
    assert columns.extend(first + rest, 0, extent) == len(first)
    assert columns.take().column("offset").to_pylist() == [0, 1, 2, 3, 4]


def test_control_batches_of_other_producers_are_passed_over() -> None:
    log = build([Record(0, 0, b"\0\0\0\0", b"")], flags=CONTROL) + batch_of(1, 3)
    columns = CompiledColumns(include_headers=False)
    assert columns.extend(log, 0, ALL._replace(transactions=True)) == len(log)
    assert columns.take().column("offset").to_pylist() == [1, 2]


def test_a_batch_that_python_takes_and_c_does_not_is_there_once() -> None:
    """A header key that is not UTF-8, behind records that are plain."""
    log = bytearray(build([Record(n, n, b"k", b"v", [("hi", b"1")]) for n in range(3)]))
    payload = bytes(log[HEADER_SIZE:])
    at = payload.rindex(b"hi")
    payload = payload[:at] + b"\xff" + payload[at + 1 :]
    columns = CompiledColumns(include_headers=True)
    columns.append_row(Row(b"first", None, 10, 0, 0, [("a", None)]))
    columns.append_records(payload, 0, len(payload), Wanted(3, 20, 0, False, 0, 100))
    assert columns.bytes == len(payload)
    taken = columns.take().to_pydict()
    assert taken["offset"] == [10, 20, 21, 22]
    assert taken["key"] == [b"first", b"k", b"k", b"k"]
    assert [row[0]["key"] for row in taken["headers"]] == ["a", "hi", "hi", "\ufffdi"]


@given(
    log=st.lists(
        st.sampled_from(
            [
                batch_of(4, 9),
                batch_of(9, 12, codec=2),
                batch_of(2**40, 2**40 + 1),
                build([], base_offset=3, last_offset=30),
                batch_of(0, 2)[:-3],
            ]
        ),
        max_size=4,
    ),
    place=st.integers(0, 100),
    byte=st.integers(0, 255),
    end=st.sampled_from([5, 10, 2**50]),
)
def test_the_next_position_is_that_of_python(
    log: list[bytes], place: int, byte: int, end: int
) -> None:
    records = bytearray(b"".join(log))
    if place < len(records):
        records[place] = byte
    found = []
    for form in (compiled, None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(decoder, "compiled", form)
            try:
                found.append(next_position(bytes(records), 2, OffsetRange("t", 0, 2, end)))
            except Exception as error:
                found.append(f"{error!r} {error}")
    assert found[0] == found[1]


def test_what_was_handed_over_outlives_the_columns() -> None:
    columns = CompiledColumns(include_headers=True)
    columns.extend(batch_of(0, 1_000), 0, ALL)
    first = columns.take()
    columns.extend(batch_of(1_000, 1_010), 0, ALL)
    second = columns.take()
    assert len(columns) == columns.bytes == 0
    assert columns.take().num_rows == 0
    del columns
    gc.collect()
    assert first.column("offset").to_pylist() == list(range(1_000))
    assert second.column("value").to_pylist() == [b"v%d" % n for n in range(1_000, 1_010)]


def test_buffers_that_only_lend_their_memory() -> None:
    payload = batch_of(0, 3)[HEADER_SIZE:]
    wanted = Wanted(3, 0, 0, False, 0, 100)
    expected = PythonColumns(include_headers=False)
    expected.append_records(payload, 0, len(payload), wanted)
    batch = expected.take()
    for lent in (bytearray(payload), memoryview(payload), pa.py_buffer(payload)):
        columns = CompiledColumns(include_headers=False)
        columns.append_records(lent, 0, len(payload), wanted)
        assert columns.take().equals(batch)


@pytest.mark.parametrize(("first", "limit"), [(-1, 3), (4, 3), (0, 99)])
def test_bounds_outside_the_buffer_are_refused(first: int, limit: int) -> None:
    columns = compiled.Columns(False)
    with pytest.raises(ValueError, match="out of range"):
        columns.append_records(b"12345678", first, limit, 1, 0, 0, False, 0, 9)
    with pytest.raises(ValueError, match="out of range"):
        columns.extend(b"12345678", 99, 0, 9, True, False, 1, 1)


Fields = namedtuple("Fields", ["key", "value", "headers"])


@pytest.mark.parametrize(
    ("record", "followed"),
    [
        (Fields(None, b"v", []), False),
        (Fields("k", 1, 2.5), False),
        (Fields(None, b"v", [("h", b"1")]), True),
        (Fields(None, {}, []), True),
        (Fields([[]], b"v", []), True),
    ],
)
def test_what_may_be_in_a_cycle_stays_the_collectors(record: Any, followed: bool) -> None:
    compiled.untrack(record)
    compiled.untrack(record)
    assert gc.is_tracked(record) == followed
    if isinstance(record.headers, list):
        assert gc.is_tracked(record.headers) == followed


def test_only_tuples_are_left_to_reference_counting() -> None:
    with pytest.raises(TypeError, match="takes a tuple"):
        compiled.untrack([])
