"""The columns that a fetch yields, and the rows on their way into them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, repeat
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from .damage import is_damage
from .records import Headers, MalformedError, Wanted, append_records

CREATE_TIME = 0
LOG_APPEND_TIME = 1

#: Bytes, or anything with the buffer protocol.
Data: TypeAlias = "bytes | bytearray | memoryview | pa.Buffer"

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
# Spark calls the items of an array "element".
list_of_headers = pa.list_(pa.field("element", _HEADER))
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
_SCHEMA_WITH_HEADERS = _SCHEMA.append(pa.field("headers", list_of_headers))


def record_schema(include_headers: bool) -> pa.Schema:
    """Return the schema of every record batch that :class:`RangeFetcher` yields.

    Parameters
    ----------
    include_headers : bool
        Whether to include the last column, ``headers``.

    Returns
    -------
    pyarrow.Schema
        Names and types as Spark's own Kafka source has them, all nullable.
    """
    return _SCHEMA_WITH_HEADERS if include_headers else _SCHEMA


class Columns(Protocol):
    """Rows of one partition, column by column, in Python or compiled."""

    #: Roughly the memory that the rows hold: the size of the bytes they were decoded from.
    bytes: int

    def __len__(self) -> int: ...

    def extend(self, records: Data, at: int, extent: Extent) -> int:
        """Append the batches that are plain to decode.

        The last of the record batches may be cut off; ``at`` is where to start in them, in bytes.
        Returns where the first batch starts that was not taken, because it is not plain or the
        columns are full. Always ``at`` in Python.
        """

    def append_records(
        self, payload: Data, first: int, limit: int, wanted: Wanted
    ) -> tuple[int, int] | None:
        """Append the wanted records of a batch, payload[first:limit]: all of them, or none.

        Returns the offset and the timestamp, in milliseconds, of the first record whose timestamp
        is null, because microseconds in 64 bits cannot hold it. Raises MalformedError.
        """

    def append_row(self, row: Row) -> None:
        """Append a row, which adds nothing to `bytes`."""

    def take(self) -> pa.RecordBatch:
        """Remove all rows and return them as one Arrow record batch of `record_schema`."""


class Extent(NamedTuple):
    """Which record batches `Columns.extend` takes, and which rows of them."""

    start: int  #: the first wanted offset
    end: int  #: exclusive
    check_crcs: bool
    transactions: bool  #: whether batches of transactions are left to Python: some are aborted
    full_rows: int  #: the columns are full with this many rows,
    full_bytes: int  #: or bytes


class Row(NamedTuple):
    """A record on its way into the columns."""

    key: bytes | None
    value: bytes | None
    offset: int
    timestamp_us: int | None
    timestamp_type: int
    headers: Headers | None


class PythonColumns:
    """`Columns` as lists of Python objects.

    ``timestamp_types`` holds runs, since the type is the same within a Kafka record batch.
    """

    __slots__ = (
        "bytes",
        "headers",
        "include_headers",
        "keys",
        "offsets",
        "timestamp_types",
        "timestamps",
        "values",
    )

    def __init__(self, include_headers: bool) -> None:
        self.include_headers = include_headers
        self._clear()

    def _clear(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        #: Microseconds since the epoch; ``None`` if 64 bits cannot hold them.
        self.timestamps: list[int | None] = []
        #: (rows, type)
        self.timestamp_types: list[tuple[int, int]] = []
        #: ``None`` for a record without headers; empty if headers are not requested.
        self.headers: list[Headers | None] = []
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def extend(self, records: Data, at: int, extent: Extent) -> int:
        """See `Columns.extend`."""
        return at

    def append_records(
        self, payload: Data, first: int, limit: int, wanted: Wanted
    ) -> tuple[int, int] | None:
        """See `Columns.append_records`."""
        rows = len(self)
        data = payload if isinstance(payload, bytes) else bytes(payload)
        try:
            unfit = append_records(self, data, first, limit, wanted)
        except BaseException as error:
            self._take_back(rows)
            again = PythonColumns(self.include_headers)
            if isinstance(error, IndexError) and is_damage(
                error, lambda: append_records(again, data, first, limit, wanted)
            ):
                raise MalformedError("a record reaches past the end of its batch") from None
            raise
        self._add_run(len(self) - rows, LOG_APPEND_TIME if wanted.same_timestamp else CREATE_TIME)
        self.bytes += limit - first
        return unfit

    def _take_back(self, rows: int) -> None:
        """Drop the rows after these, of a batch that does not decode."""
        for column in (self.keys, self.values, self.offsets, self.timestamps, self.headers):
            del column[rows:]

    def append_row(self, row: Row) -> None:
        """See `Columns.append_row`."""
        self.keys.append(row.key)
        self.values.append(row.value)
        self.offsets.append(row.offset)
        self.timestamps.append(row.timestamp_us)
        if self.include_headers:
            self.headers.append(row.headers)
        self._add_run(1, row.timestamp_type)

    def rows(self) -> Iterator[Row]:
        """Return the rows one by one."""
        types = (kind for rows, kind in self.timestamp_types for _ in range(rows))
        headers = self.headers if self.include_headers else repeat(None)
        columns = (self.keys, self.values, self.offsets, self.timestamps, types, headers)
        return map(Row, *columns)

    def take(self) -> pa.RecordBatch:
        """See `Columns.take`."""
        schema = record_schema(self.include_headers)
        arrays = [
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            pa.array(self.offsets, pa.int64()),
            pa.array(self.timestamps, pa.int64()).cast(schema.field("timestamp").type),
            _runs(self.timestamp_types),
        ]
        if self.include_headers:
            arrays.append(_headers(self.headers))
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _add_run(self, rows: int, timestamp_type: int) -> None:
        runs = self.timestamp_types
        if runs and runs[-1][1] == timestamp_type:
            rows += runs.pop()[0]
        runs.append((rows, timestamp_type))


def _runs(runs: list[tuple[int, int]]) -> pa.Array:
    arrays = [pa.repeat(pa.scalar(value, pa.int32()), rows) for rows, value in runs]
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays or [pa.nulls(0, pa.int32())])


def _headers(rows: list[Headers | None]) -> pa.Array:
    ends = accumulate(len(row) if row else 0 for row in rows)
    items = [item for row in rows if row for item in row]
    return pa.ListArray.from_arrays(
        pa.array([0, *ends], pa.int32()),
        pa.StructArray.from_arrays(
            [
                pa.array([key for key, _ in items], pa.string()),
                pa.array([value for _, value in items], pa.binary()),
            ],
            fields=list(_HEADER),
        ),
        type=list_of_headers,
        mask=pa.array([row is None for row in rows], pa.bool_()),
    )
