"""Arrow data in pieces of bounded size, by the bytes that its rows have once they are encoded.

A table's ``nbytes`` tells that of plain columns only: a value of a dictionary, a run or a view may
stand for many rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyarrow import types


def slices_of(data: pa.RecordBatch | pa.Table, size: int) -> Iterator[Any]:
    """The rows, in order, in pieces of at most this many bytes, or of one row."""
    if data.num_rows > 1 and bytes_of(data) > size:
        half = data.num_rows // 2
        yield from slices_of(data.slice(0, half), size)
        yield from slices_of(data.slice(half), size)
    elif data.num_rows:
        yield data


def bytes_of(data: pa.RecordBatch | pa.Table) -> int:
    """About how many bytes the rows have where each has its own values."""
    return sum(
        _bytes(array)
        for column in data.columns
        for array in (column.chunks if isinstance(column, pa.ChunkedArray) else [column])
    )


def _bytes(array: pa.Array) -> int:
    if not len(array):  # it may have no offsets
        return 0
    kind = array.type
    if types.is_struct(kind):
        return sum(map(_bytes, array.flatten()))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        parts = [array.keys, array.items] if types.is_map(kind) else [array.values]
        return 4 * len(array) + sum(_bytes(part.slice(start, end - start)) for part in parts)
    if _is_shared(kind):
        return _sum(_lengths(array))
    return int(array.nbytes)


def _is_shared(kind: pa.DataType) -> bool:
    """Whether several rows may share a value."""
    return types.is_dictionary(kind) or types.is_run_end_encoded(kind) or _is_view(kind)


def _is_view(kind: pa.DataType) -> bool:
    return str(kind) in ("binary_view", "string_view")  # there are no predicates for all versions


def _lengths(array: pa.Array) -> pa.Array:
    """The bytes of each row's value, as int32 or int64."""
    import pyarrow.compute as pc

    kind = array.type
    if types.is_dictionary(kind):
        return _lengths(array.dictionary).take(array.indices)
    if types.is_run_end_encoded(kind):
        runs = pa.RunEndEncodedArray.from_arrays(array.run_ends, _lengths(array.values))
        return pc.run_end_decode(runs.slice(array.offset, len(array)))
    if _is_view(kind):
        # A view has 16 bytes, and the length is in the first four.
        words = pa.Array.from_buffers(
            pa.int32(), 4 * len(array), [None, array.buffers()[1]], offset=4 * array.offset
        )
        return pc.list_element(pa.FixedSizeListArray.from_arrays(words, 4), 0)
    if types.is_null(kind):
        return pa.repeat(0, len(array))
    if types.is_primitive(kind):
        return pa.repeat(kind.bit_width // 8, len(array))
    return pc.binary_length(array)


def _sum(lengths: pa.Array) -> int:
    import pyarrow.compute as pc

    return pc.sum(lengths).as_py() or 0
