"""The columns that a fetch yields, and the rows on their way into them."""

from __future__ import annotations

from itertools import accumulate

import pyarrow as pa

CREATE_TIME = 0
LOG_APPEND_TIME = 1

Headers = list[tuple[str, bytes | None]]

_HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
# "element" is what Spark calls the items of an array.
_HEADERS = pa.list_(pa.field("element", _HEADER))
_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("timestampType", pa.int32()),
    ]
)
_SCHEMA_WITH_HEADERS = _SCHEMA.append(pa.field("headers", _HEADERS))


def record_schema(include_headers: bool) -> pa.Schema:
    """The columns of every record batch that :class:`RangeFetcher` yields.

    Parameters
    ----------
    include_headers : bool
        Whether the last column, ``headers``, is there.

    Returns
    -------
    pyarrow.Schema
        Names and types as Spark's own Kafka source has them, all nullable.
    """
    return _SCHEMA_WITH_HEADERS if include_headers else _SCHEMA


class RecordColumns:
    """Rows of one partition, column by column.

    The decoder appends to the lists, which stay of equal length but for ``timestamp_types``:
    that one holds runs, since the type is the same within a Kafka record batch.
    """

    __slots__ = ("bytes", "headers", "keys", "offsets", "timestamp_types", "timestamps", "values")

    def __init__(self) -> None:
        self.keys: list[bytes | None] = []
        self.values: list[bytes | None] = []
        self.offsets: list[int] = []
        #: Microseconds since the epoch.
        self.timestamps: list[int] = []
        #: (rows, type)
        self.timestamp_types: list[tuple[int, int]] = []
        #: ``None`` for a record without headers; empty if headers are not asked for.
        self.headers: list[Headers | None] = []
        #: What the rows hold in memory, roughly: the size of what they were decoded from.
        self.bytes = 0

    def __len__(self) -> int:
        return len(self.offsets)

    def add_run(self, rows: int, timestamp_type: int) -> None:
        """Say of which type the timestamps of the rows appended last are."""
        runs = self.timestamp_types
        if runs and runs[-1][1] == timestamp_type:
            rows += runs.pop()[0]
        runs.append((rows, timestamp_type))

    def to_record_batch(self, include_headers: bool) -> pa.RecordBatch:
        """The rows as one Arrow record batch of `record_schema`."""
        schema = record_schema(include_headers)
        arrays = [
            pa.array(self.keys, pa.binary()),
            pa.array(self.values, pa.binary()),
            pa.array(self.offsets, pa.int64()),
            pa.array(self.timestamps, pa.int64()).cast(schema.field("timestamp").type),
            _runs(self.timestamp_types),
        ]
        if include_headers:
            arrays.append(_headers(self.headers))
        return pa.RecordBatch.from_arrays(arrays, schema=schema)


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
        type=_HEADERS,
        mask=pa.array([row is None for row in rows], pa.bool_()),
    )
