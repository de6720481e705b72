"""The columns, filled by the compiled decoder if it is installed."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from .columns import Columns, Data, Extent, PythonColumns, Row, list_of_headers, record_schema
from .records import Wanted

if TYPE_CHECKING:
    from types import ModuleType

log = logging.getLogger(__name__)

#: An environment variable; "python" decodes in Python all the same, for comparison.
_CHOICE = "PYSPARK_KAFKA_REBALANCE_DECODER"


def _compiled() -> ModuleType | None:
    if os.environ.get(_CHOICE) == "python":
        log.warning("records are decoded in Python, because %s=python", _CHOICE)
        return None
    try:
        from . import _record_batch
    except ImportError as error:
        log.warning(
            "the compiled decoder is missing, so records are decoded in Python, which takes about "
            "thirty times as long; to build it, install the package on a machine with a C "
            "compiler (%s)",
            error,
        )
        return None
    return _record_batch


#: The compiled decoder, if it is installed.
compiled = _compiled()


def new_columns(include_headers: bool) -> Columns:
    """Return empty columns, compiled if possible."""
    return CompiledColumns(include_headers) if compiled else PythonColumns(include_headers)


class CompiledColumns:
    """`Columns` as Arrow buffers. `PythonColumns` decodes batches that are not plain."""

    def __init__(self, include_headers: bool) -> None:
        self._include_headers = include_headers
        assert compiled is not None
        self._columns = compiled.Columns(include_headers)

    @property
    def bytes(self) -> int:
        """See `Columns.bytes`."""
        return int(self._columns.bytes)

    @bytes.setter
    def bytes(self, value: int) -> None:
        self._columns.bytes = value

    def __len__(self) -> int:
        return len(self._columns)

    def extend(self, records: Data, at: int, extent: Extent) -> int:
        """See `Columns.extend`."""
        return int(self._columns.extend(records, at, *extent))

    def append_records(
        self, payload: Data, first: int, limit: int, wanted: Wanted
    ) -> tuple[int, int] | None:
        """See `Columns.append_records`."""
        if self._columns.append_records(payload, first, limit, *wanted):
            return None
        decoded = PythonColumns(self._include_headers)
        unfit = decoded.append_records(payload, first, limit, wanted)  # raises if it is damaged
        for row in decoded.rows():
            self.append_row(row)
        self.bytes += decoded.bytes
        return unfit

    def append_row(self, row: Row) -> None:
        """See `Columns.append_row`."""
        key, value, offset, timestamp_us, timestamp_type, headers = row
        encoded = None if headers is None else [(name.encode(), item) for name, item in headers]
        self._columns.append_row(key, value, offset, timestamp_us, timestamp_type, encoded)

    def take(self) -> pa.RecordBatch:
        """See `Columns.take`."""
        return record_batch_of(self._columns, self._include_headers)


def record_batch_of(columns: Any, include_headers: bool) -> pa.RecordBatch:
    """Remove the rows from the compiled decoder's ``Columns`` and return them."""
    schema = record_schema(include_headers)
    rows = len(columns)
    keys, values, offsets, timestamps, valid_timestamps, kinds, *headers = columns.take()
    every_row = (None, 0)
    arrays = [
        _strings(pa.binary(), *keys),
        _strings(pa.binary(), *values),
        *(
            pa.Array.from_buffers(
                schema.field(name).type, rows, [bitmap and _buffer(bitmap), _buffer(numbers)], nulls
            )
            for name, numbers, (bitmap, nulls) in (
                ("offset", offsets, every_row),
                ("timestamp", timestamps, valid_timestamps),
                ("timestampType", kinds, every_row),
            )
        ),
    ]
    if include_headers:
        arrays.append(_headers(rows, *headers))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


#: (address, size, owner), as the compiled decoder hands its memory over.
Memory = tuple[int, int, Any]


def _buffer(memory: Memory) -> pa.Buffer:
    return pa.foreign_buffer(*memory)


def _strings(
    kind: pa.DataType, rows: int, validity: tuple[Memory | None, int], ends: Memory, data: Memory
) -> pa.Array:
    bitmap, nulls = validity
    buffers = [bitmap and _buffer(bitmap), _buffer(ends), _buffer(data)]
    return pa.Array.from_buffers(kind, rows, buffers, nulls)


def _headers(
    rows: int, ends: Memory, validity: tuple[Memory | None, int], keys: Any, values: Any
) -> pa.Array:
    bitmap, nulls = validity
    items = list_of_headers.value_type
    return pa.Array.from_buffers(
        list_of_headers,
        rows,
        [bitmap and _buffer(bitmap), _buffer(ends)],
        nulls,
        children=[
            pa.StructArray.from_arrays(
                [_strings(pa.string(), *keys), _strings(pa.binary(), *values)],
                fields=[items.field(0), items.field(1)],
            )
        ],
    )
