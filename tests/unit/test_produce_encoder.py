"""Arrow to record batches: what readers read, and the compiled form equal to Python's."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from encoded_rows import (
    HEADER_TYPE,
    Row,
    by_kafka_python,
    by_our_decoder,
    rows_given,
    tables,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_rebalance.errors import RecordTooLargeError
from pyspark_kafka_rebalance.fetch.records import MAX_TIMESTAMP_MS
from pyspark_kafka_rebalance.produce.encoder import arrow_encoder
from pyspark_kafka_rebalance.produce.encoder.arrow_encoder import ArrowEncoder
from pyspark_kafka_rebalance.produce.encoder.batch_builder import BatchBuilder
from pyspark_kafka_rebalance.produce.encoder.compiled import compiled
from pyspark_kafka_rebalance.produce.encoder.compiled_encoder import CompiledEncoder
from pyspark_kafka_rebalance.produce.encoder.encoded_batch import EncodedBatch
from pyspark_kafka_rebalance.produce.encoder.halves import halves_of
from pyspark_kafka_rebalance.produce.encoder.partitioner import StickyPartition, partition_of_key
from pyspark_kafka_rebalance.produce.encoder.python_encoder import PythonEncoder
from pyspark_kafka_rebalance.produce.encoder.settings import EncoderSettings

FORMS: list[Any] = [PythonEncoder, *([CompiledEncoder] if compiled else [])]
NOW_MS = 1_700_000_000_123
DEFAULT = EncoderSettings()
PARTITIONS = 3

#: As small as a header, so that each record has a batch of its own, up to larger than any table.
bounds = st.builds(
    EncoderSettings,
    batch_bytes=st.sampled_from([1, 100, 200, 400, 1_000_000]),
    batch_records=st.sampled_from([1, 2, 5, 1_000]),
    codec=st.sampled_from([0, 0, 1, 2, 3, 4]),
)


def encoder_of(
    form: Any, bounds: EncoderSettings = DEFAULT, seed: int = 1, topic: str = "orders"
) -> ArrowEncoder:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            arrow_encoder, "new_encoder", lambda settings: form(settings, settings.codec == 0)
        )
        sticky = StickyPartition(PARTITIONS, shuffle=random.Random(seed))
        return ArrowEncoder(topic, PARTITIONS, bounds, sticky)


def by_partition(batches: list[EncodedBatch]) -> dict[int, list[EncodedBatch]]:
    found = defaultdict(list)
    for batch in batches:
        found[batch.partition].append(batch)
    return dict(found)


@given(chunks=st.lists(tables(), max_size=3), bounds=bounds, seed=st.integers(0, 9))
@settings(deadline=None, max_examples=150)
def test_the_compiled_form_equals_pythons_byte_for_byte(
    chunks: list[pa.Table], bounds: EncoderSettings, seed: int
) -> None:
    found = []
    for form in FORMS:
        encoder = encoder_of(form, bounds, seed)
        steps: list[Any] = []
        for table in chunks:
            steps.append((encoder.add(table, NOW_MS), encoder.sticky.at, encoder.open_bytes))
        found.append([*steps, encoder.flush(), encoder.sticky.at, encoder.open_bytes])
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("form", FORMS)
@given(table=tables(), bounds=bounds)
@settings(deadline=None, max_examples=100)
def test_readers_read_the_rows_in_their_order(
    form: Any, table: pa.Table, bounds: EncoderSettings
) -> None:
    batches = encoder_of(form, bounds).encode(table, NOW_MS)
    assert [b.partition for b in batches] == sorted(b.partition for b in batches)
    rows = rows_given(table, NOW_MS)
    read = {n: [row for b in of for row in by_kafka_python(b)] for n, of in runs(batches)}
    assert sum(map(len, read.values())) == len(rows)
    expected: dict[int, list[Row]] = defaultdict(list)
    sticky: list[Row] = []
    for partition, row in rows:
        if partition is None and row[0] is not None:
            partition = partition_of_key(row[0], PARTITIONS)
        if partition is None:
            sticky.append(row)
        else:
            expected[partition].append(row)
    for n, of in runs(batches):
        assert is_merge(wrapped(read[n]), wrapped(expected[n]), wrapped(sticky))
        for decoder in (True, False):
            decoded = by_our_decoder(of, decoder)
            assert [row if row[2] is not None else None for row in decoded] == [
                row if abs(row[2]) <= MAX_TIMESTAMP_MS else None for row in read[n]
            ]


def runs(batches: list[EncodedBatch]) -> Iterator[tuple[int, list[EncodedBatch]]]:
    return iter(by_partition(batches).items())


def wrapped(rows: list[Row]) -> list[Row]:
    """kafka-python does not wrap a sum beyond 64 bits, as Java does."""
    return [(key, value, (at + 2**63) % 2**64 - 2**63, h) for key, value, at, h in rows]


def is_merge(found: list[Row], own: list[Row], sticky: list[Row]) -> bool:
    """Whether the rows are the partition's own in order, among some of the sticky ones in order."""
    # The positions (own, sticky) that what was found may have come to.
    states = {(0, 0)}
    for row in found:
        following = {(n + 1, m) for n, m in states if n < len(own) and own[n] == row}
        for n, m in states:
            following |= {(n, k + 1) for k in range(m, len(sticky)) if sticky[k] == row}
        states = following
    return any(n == len(own) for n, _ in states)


@pytest.mark.parametrize("form", FORMS)
@given(table=tables(), bounds=bounds)
@settings(deadline=None)
def test_batches_keep_their_bounds(form: Any, table: pa.Table, bounds: EncoderSettings) -> None:
    for batch in encoder_of(form, bounds).encode(table, NOW_MS):
        assert 1 <= batch.records <= bounds.batch_records
        assert batch.plain_bytes <= bounds.batch_bytes or batch.records == 1
        assert len(batch.data) <= batch.plain_bytes, "compression has made it larger"


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", range(5))
def test_each_codec_is_read_by_all(form: Any, codec: int) -> None:
    """In several blocks of lz4 and snappy, of which some do not get smaller."""
    values = [random.Random(n).randbytes(40_000) if n % 3 else b"x" * 40_000 for n in range(20)]
    table = pa.table({"value": values})
    (batch,) = encoder_of(form, EncoderSettings(codec=codec)).encode(table, NOW_MS)
    assert batch.data[22] & 7 == codec
    expected = [(None, value, NOW_MS, []) for value in values]
    assert by_kafka_python(batch) == expected
    assert by_our_decoder([batch], True) == by_our_decoder([batch], False) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("codec", range(1, 5))
def test_what_compression_makes_larger_is_sent_as_it_is(form: Any, codec: int) -> None:
    table = pa.table({"value": [random.Random(1).randbytes(500)]})
    (batch,) = encoder_of(form, EncoderSettings(codec=codec)).encode(table, NOW_MS)
    assert batch.data[22] & 7 == 0
    assert len(batch.data) == batch.plain_bytes
    assert by_kafka_python(batch) == [(None, table["value"][0].as_py(), NOW_MS, [])]


# The sticky partition


@pytest.mark.parametrize("form", FORMS)
def test_records_without_a_key_stay_until_the_batch_is_full_and_take_turns(form: Any) -> None:
    encoder = encoder_of(form, EncoderSettings(batch_records=5))
    full = encoder.add(pa.table({"value": [b"v"] * 32}), NOW_MS)
    assert [batch.records for batch in full] == [5] * 6
    order = [batch.partition for batch in full]
    assert order[:3] == order[3:]
    assert sorted(order[:3]) == [0, 1, 2]
    (rest,) = encoder.flush()
    assert (rest.partition, rest.records) == (order[0], 2)
    assert encoder.sticky.partition == order[1], "a batch was closed"


@pytest.mark.parametrize("form", FORMS)
def test_a_full_batch_of_records_with_keys_moves_the_sticky_partition_too(form: Any) -> None:
    encoder = encoder_of(form, EncoderSettings(batch_records=2))
    first = encoder.sticky.partition
    table = pa.table({"value": [b"v"] * 3, "partition": [first] * 3})
    encoder.add(table, NOW_MS)
    assert encoder.sticky.partition != first
    encoder.add(table, NOW_MS)
    before = encoder.sticky.partition
    assert before != first
    encoder.add(table, NOW_MS)
    assert encoder.sticky.partition == before


@pytest.mark.parametrize("form", FORMS)
def test_only_available_partitions_take_turns_and_keys_go_anywhere(form: Any) -> None:
    encoder = encoder_of(form, EncoderSettings(batch_records=1))
    encoder.sticky.set_partitions(PARTITIONS, [2])
    batches = encoder.encode(pa.table({"value": [b"v"] * 9}), NOW_MS)
    assert {batch.partition for batch in batches} == {2}
    keys = [b"%d" % n for n in range(30)]
    batches = encoder.encode(pa.table({"value": keys, "key": keys}), NOW_MS)
    assert {batch.partition for batch in batches} == {0, 1, 2}


def test_new_partitions_get_keys() -> None:
    encoder = encoder_of(FORMS[-1])
    keys = [b"%d" % n for n in range(100)]
    table = pa.table({"value": keys, "key": keys})
    encoder.add(table, NOW_MS)
    encoder.set_partitions(50)
    batches = encoder.encode(table, NOW_MS)
    assert len(by_partition(batches)) > PARTITIONS
    assert sum(batch.records for batch in batches) == 200


# Refusals


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("where", ["value", "key", "headers"])
@pytest.mark.parametrize("rows", [1, 1_000])
def test_a_record_that_is_too_large_is_named_and_nothing_is_taken(
    form: Any, where: str, rows: int
) -> None:
    encoder = encoder_of(form, EncoderSettings(max_request_bytes=1_000))
    large = pa.table(
        {
            "value": [b"v"] * rows + [b"v" * (950 if where == "value" else 1)],
            "key": [b"k"] * rows + [b"k" * (950 if where == "key" else 1)],
            "headers": pa.array(
                [[]] * rows + [[{"key": "h" * (950 if where == "headers" else 1), "value": b""}]],
                pa.list_(HEADER_TYPE),
            ),
        }
    )
    with pytest.raises(RecordTooLargeError, match=r"max\.request\.size") as caught:
        encoder.add(large, NOW_MS)
    error = caught.value
    assert (error.topic, error.limit) == ("orders", 1_000)
    key = large["key"][rows].as_py()
    assert error.partition == partition_of_key(key, PARTITIONS)
    assert f"orders-{error.partition}" in str(error)
    assert encoder.flush() == []
    exact = encoder_of(form, EncoderSettings(max_request_bytes=error.size))
    assert sum(batch.records for batch in exact.encode(large, NOW_MS)) == rows + 1
    less = encoder_of(form, EncoderSettings(max_request_bytes=error.size - 1))
    with pytest.raises(RecordTooLargeError):
        less.add(large, NOW_MS)


@pytest.mark.parametrize("form", FORMS)
def test_a_large_record_has_a_batch_of_its_own(form: Any) -> None:
    encoder = encoder_of(form, EncoderSettings(batch_bytes=200))
    values = [b"a", b"b" * 1_000, b"c", b"d"]
    batches = encoder.encode(pa.table({"value": values, "partition": [1] * 4}), NOW_MS)
    assert [[row[1] for row in by_kafka_python(b)] for b in batches] == [
        [b"a"],
        [b"b" * 1_000],
        [b"c", b"d"],
    ]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("partition", [-1, 3, 2**31 - 1])
def test_a_partition_that_is_not_there_is_named(form: Any, partition: int) -> None:
    encoder = encoder_of(form)
    table = pa.table({"value": [b"v"] * 3, "partition": [0, None, partition]})
    with pytest.raises(ValueError, match=f"row 2: orders has no partition {partition}; it has 3"):
        encoder.add(table, NOW_MS)
    assert encoder.flush() == []


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("header", [{"key": None, "value": b"v"}, None])
def test_a_header_without_a_key_is_refused(form: Any, header: Any) -> None:
    headers = pa.array([[{"key": "a", "value": None}], [header]], pa.list_(HEADER_TYPE))
    with pytest.raises(ValueError, match="row 1: a header"):
        encoder_of(form).add(pa.table({"value": [b"v"] * 2, "headers": headers}), NOW_MS)


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": [b"k"]}, "columns key; allowed: value and any of"),
        ({"value": [b"v"], "timestmap": [1]}, "columns value, timestmap"),
        ({"value": [1]}, "'value' is int64; allowed: strings and binary"),
        ({"value": [b"v"], "key": [1.5]}, "'key' is double"),
        ({"value": [b"v"], "timestamp": ["x"]}, "'timestamp' is string"),
        ({"value": [b"v"], "partition": [1.0]}, "'partition' is double"),
        ({"value": [b"v"], "partition": [2**40]}, "."),
        ({"value": [b"v"], "headers": [[b"h"]]}, "'headers' is list<.*binary"),
        ({"value": [b"v"], "headers": [[{"key": b"\xff", "value": b""}]]}, "."),
    ],
)
def test_columns_that_are_not_as_they_should_be(columns: dict[str, Any], problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        encoder_of(FORMS[-1]).add(pa.table(columns))


VIEWS = pa.array(["a", "b" * 50], pa.string_view())
DICTIONARY = pa.array(["a", "b", "a"]).dictionary_encode()
RUNS = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array(["a", "b", "a"]).dictionary_encode(), [b"a", b"b", b"a"]),
        (pa.array([b"a", None, b"b"]).dictionary_encode(), [b"a", None, b"b"]),
        (pa.array([b"a", None, b"b"], pa.binary_view()), [b"a", None, b"b"]),
        (pa.array(["a", None, "b" * 50], pa.string_view()), [b"a", None, b"b" * 50]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]), [b"a", b"a", b"b"]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], VIEWS), [b"a", b"a", b"b" * 50]),
        (pa.RunEndEncodedArray.from_arrays([1, 2, 4], DICTIONARY).slice(1), [b"b", b"a", b"a"]),
        (pa.DictionaryArray.from_arrays([1, 0, 1], VIEWS), [b"b" * 50, b"a", b"b" * 50]),
        (pa.DictionaryArray.from_arrays([1, 0, 1], RUNS), [b"a", b"a", b"a"]),
        (pa.RunEndEncodedArray.from_arrays([3], pa.nulls(1)), [None] * 3),
        (pa.DictionaryArray.from_arrays([0, 0, 0], pa.nulls(1)), [None] * 3),
    ],
)  # fmt: skip
def test_other_layouts_of_strings(form: Any, column: pa.Array, expected: list[Any]) -> None:
    table = pa.table({"value": column, "partition": [0] * 3})
    (batch,) = encoder_of(form).encode(table, NOW_MS)
    assert [row[1] for row in by_kafka_python(batch)] == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "headers",
    [
        pa.array([[("a", b"1"), ("b", None)], None, []], pa.map_(pa.string(), pa.binary())),
        pa.array(
            [[{"value": b"1", "key": "a"}, {"value": None, "key": "b"}], None, []],
            pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.large_string())])),
        ),
        pa.array(
            [[{"value": "1", "key": b"a"}, {"value": None, "key": b"b"}], None, []],
            pa.list_(pa.struct([("value", pa.string()), ("key", pa.binary())])),
        ),
    ],
)  # fmt: skip
def test_other_layouts_of_headers(form: Any, headers: pa.Array) -> None:
    table = pa.table({"value": [b"v"] * 3, "headers": headers, "partition": [0] * 3})
    (batch,) = encoder_of(form).encode(table, NOW_MS)
    assert [row[3] for row in by_kafka_python(batch)] == [[("a", b"1"), ("b", None)], [], []]
    (batch,) = encoder_of(form).encode(table.slice(1), NOW_MS)
    assert [row[3] for row in by_kafka_python(batch)] == [[], []]


def test_seconds_become_milliseconds() -> None:
    column = pa.array([0, 1_700_000_000, -1], pa.timestamp("s"))
    table = pa.table({"value": [b"v"] * 3, "timestamp": column, "partition": [0] * 3})
    (batch,) = encoder_of(FORMS[-1]).encode(table)
    assert [row[2] for row in by_kafka_python(batch)] == [0, 1_700_000_000_000, -1_000]


@pytest.mark.parametrize(
    "wrong",
    [{"batch_bytes": 0}, {"batch_records": 0}, {"max_request_bytes": 2**30 + 1}, {"codec": 5}],
)
def test_settings_out_of_range(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        EncoderSettings(**wrong)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), codec=st.sampled_from([0, 1, 2, 3, 4]))
def test_the_halves_of_a_batch_have_its_records(data: st.DataObject, codec: int) -> None:
    """Whatever they are: nulls, headers, timestamps that go back, or far."""
    optional = st.one_of(st.none(), st.binary(max_size=40))
    record = st.tuples(
        optional,
        optional,
        st.lists(st.tuples(st.text(max_size=5), optional), max_size=3),
        st.integers(-(2**63), 2**63 - 1),
    )
    records = data.draw(st.lists(record, min_size=2, max_size=12))
    first = data.draw(st.integers(1, len(records) - 1))
    settings = EncoderSettings(codec=codec)

    def batch_of(those: list[Any]) -> EncodedBatch:
        builder = BatchBuilder("orders", 1, settings)
        for each in those:
            assert builder.append(*each)
        return builder.close()

    halves = halves_of(batch_of(records), first, settings)
    expected = batch_of(records[:first]), batch_of(records[first:])
    for half, whole in zip(halves, expected, strict=True):
        assert bytes(half.data) == bytes(whole.data)
        assert (half.records, half.partition) == (whole.records, whole.partition)
