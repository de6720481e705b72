"""Arrow data in pieces: bounded by what its rows take, whatever they share."""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_kafka_rebalance.produce.encoder.arrow_slices import bytes_of, slices_of

VALUES = st.lists(st.binary(max_size=30) | st.none(), min_size=1, max_size=8)


def plain(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary())


def as_dictionary(values: list[bytes | None]) -> pa.Array:
    return plain(values).dictionary_encode()


def as_runs(values: list[bytes | None]) -> pa.Array:
    """Each value is a run, and the first one, of four rows."""
    return pa.RunEndEncodedArray.from_arrays(
        pa.array([n + 4 for n in range(len(values))], pa.int32()), plain(values)
    )


def as_views(values: list[bytes | None]) -> pa.Array:
    return pa.array(values, pa.binary_view())


def views_of(value: bytes, rows: int) -> pa.Array:
    """All of one value: its length, its first four bytes, its buffer and its place there."""
    view = struct.pack("<i4sii", len(value), value[:4], 0, 0)
    buffers = [None, pa.py_buffer(view * rows), pa.py_buffer(value)]
    return pa.Array.from_buffers(pa.binary_view(), rows, buffers)


def bytes_in(data: pa.RecordBatch) -> int:
    return sum(len(value or b"") for row in data.to_pylist() for value in row.values())


@pytest.mark.parametrize("made", [plain, as_dictionary, as_runs, as_views])
@given(values=VALUES, size=st.integers(1, 100), start=st.integers(0, 3))
def test_rows_keep_their_order_and_no_piece_is_too_large(
    made: Any, values: list[bytes | None], size: int, start: int
) -> None:
    column = made(values).slice(start)
    data = pa.record_batch({"value": column, "key": column})
    pieces = list(slices_of(data, size))
    assert [row for piece in pieces for row in piece.to_pylist()] == data.to_pylist()
    for piece in pieces:
        assert piece.num_rows == 1 or bytes_in(piece) <= size


@pytest.mark.parametrize(
    "column",
    [
        pa.DictionaryArray.from_arrays(pa.array([0] * 1_000, pa.int8()), pa.array([b"x" * 500])),
        pa.RunEndEncodedArray.from_arrays(pa.array([1_000], pa.int32()), pa.array([b"x" * 500])),
        views_of(b"x" * 500, 1_000),
        pa.array([b""] * 999_000 + [b"x" * 500] * 1_000).slice(998_000),
        pa.array([[(b"k", b"x" * 500)]] * 1_000, pa.map_(pa.binary(), pa.binary())),
        pa.array(
            [[{"key": "k", "value": b"x" * 500}]] * 1_000,
            pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()})),
        ),
    ],
    ids=["dictionary", "runs", "views", "skewed", "map", "structs"],
)
def test_a_value_that_many_rows_share_counts_for_each(column: pa.Array) -> None:
    data = pa.table({"value": pa.chunked_array([column.slice(0, 10), column.slice(10)])})
    assert bytes_of(data) == pytest.approx(500_000, rel=0.03)
    pieces = list(slices_of(data, 20_000))
    assert sum(piece.num_rows for piece in pieces) == len(column)
    assert all(bytes_of(piece) <= 20_000 for piece in pieces)
    assert len(pieces) <= 70


def test_few_large_rows_behind_many_small_ones() -> None:
    """An even cut by rows had all of the large ones in one piece."""
    data = pa.record_batch({"value": pa.array([b""] * 100_000 + [b"x" * 10_000] * 100)})
    pieces = list(slices_of(data, 50_000))
    assert sum(piece.num_rows for piece in pieces) == 100_100
    assert max(bytes_in(piece) for piece in pieces) <= 50_000


def test_no_rows_are_no_piece() -> None:
    assert list(slices_of(pa.record_batch({"value": pa.array([], pa.binary())}), 10)) == []


@pytest.mark.parametrize("lists", [pa.list_, pa.large_list])
def test_an_empty_chunk_may_have_no_offsets(lists: Any) -> None:
    """Arrow allows that; reading them ended the process."""
    pair = pa.struct([("key", pa.string()), ("value", pa.binary())])
    kind = lists(pair)
    empty = pa.Array.from_buffers(kind, 0, [None, None], children=[pa.array([], pair)])
    some = pa.array([[{"key": "k", "value": b"v"}]] * 3, kind)
    data = pa.table({"value": [b"v"] * 3, "headers": pa.chunked_array([empty, some])})
    data.validate(full=True)
    assert [piece.num_rows for piece in slices_of(data, 1)] == [1, 1, 1]


def as_of_one_another(values: list[str]) -> list[pa.Array]:
    """Layouts of strings in layouts of strings."""
    runs = pa.array(range(1, len(values) + 1), pa.int32())
    indices = pa.array(range(len(values)), pa.int8())
    views = pa.array(values, pa.string_view())
    in_runs = pa.RunEndEncodedArray.from_arrays(runs, pa.array(values))
    return [
        pa.DictionaryArray.from_arrays(indices, views),
        pa.DictionaryArray.from_arrays(indices, in_runs),
        pa.RunEndEncodedArray.from_arrays(runs, views),
        pa.RunEndEncodedArray.from_arrays(runs, pa.array(values).dictionary_encode()),
    ]


@pytest.mark.parametrize("column", as_of_one_another(["a", "b" * 50, ""]))
def test_layouts_of_one_another(column: pa.Array) -> None:
    data = pa.table({"value": column})
    assert bytes_of(data) == 51
    assert [piece.num_rows for piece in slices_of(data, 10)] == [1, 1, 1]
