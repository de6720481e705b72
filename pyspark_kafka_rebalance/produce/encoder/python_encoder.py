"""Rows to the batches of their partitions, in Python: the form that the compiled one equals."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from .arrow_rows import ArrowRows, HeaderColumn
from .partitioner import partition_of_key
from .python_records import Headers, PythonRecords, body_of, most_bytes
from .settings import EncoderSettings


class Row(NamedTuple):
    """A record to encode; a header key may be null here, and is refused."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[bytes | None, bytes | None]]
    timestamp_ms: int | None
    partition: int | None

    @property
    def body(self) -> bytes:
        """See `body_of`; a header key that is null counts as an empty one."""
        headers: Headers = [(name or b"", content) for name, content in self.headers]
        return body_of(self.key, self.value, headers)


def rows_of(rows: ArrowRows) -> Iterator[Row]:
    """Return the rows one by one, as Python objects."""
    nothing: list[Any] = [None] * rows.rows
    timestamps: list[int | None] = [*nothing]
    if rows.timestamps is not None:
        ticks = rows.ticks_per_ms
        timestamps = [at if at is None else at // ticks for at in rows.timestamps.to_pylist()]
    return map(
        Row,
        _items(rows.keys) or nothing,
        _items(rows.values) or nothing,
        _headers(rows.headers) if rows.headers is not None else [[] for _ in nothing],
        timestamps,
        _items(rows.partitions) or nothing,
    )


def _items(column: pa.Array | None) -> list[Any] | None:
    return None if column is None else column.to_pylist()


def _headers(column: HeaderColumn) -> Iterator[list[tuple[bytes | None, bytes | None]]]:
    offsets = column.lists.offsets.to_pylist()
    pairs = list(zip(column.keys.to_pylist(), column.values.to_pylist(), strict=True))
    for row, valid in enumerate(column.lists.is_valid().to_pylist()):
        yield pairs[offsets[row] : offsets[row + 1]] if valid else []


class PythonEncoder:
    """See `Encoder`."""

    def __init__(self, settings: EncoderSettings, sealed: bool) -> None:
        self._settings = settings
        self._sealed = sealed
        self._open: dict[int, PythonRecords] = {}
        self._full: list[tuple[int, memoryview, int]] = []

    def first_refused(self, rows: ArrowRows, partitions: int) -> int:
        """See `Encoder.first_refused`."""
        most = self._settings.max_request_bytes
        for n, row in enumerate(rows_of(rows)):
            if row.partition is not None and not 0 <= row.partition < partitions:
                return n
            if any(name is None for name, _ in row.headers) or most_bytes(len(row.body)) > most:
                return n
        return -1

    def append(
        self, rows: ArrowRows, timestamp_ms: int, partitions: int, order: array[int], at: int
    ) -> int:
        """See `Encoder.append`."""
        for row in rows_of(rows):
            at = self._append(row, timestamp_ms, partitions, order, at)
        return at

    def _append(self, row: Row, now_ms: int, partitions: int, order: array[int], at: int) -> int:
        sticky = row.partition is None and row.key is None
        if row.partition is not None:
            partition = row.partition
        elif row.key is not None:
            partition = partition_of_key(row.key, partitions)
        else:
            partition = order[at]
        timestamp_ms = now_ms if row.timestamp_ms is None else row.timestamp_ms
        body = row.body
        if self._records(partition).append_body(body, timestamp_ms):
            return at
        self._close(partition)
        if partition == order[at]:
            at = (at + 1) % len(order)
            if sticky:
                partition = order[at]
        if not self._records(partition).append_body(body, timestamp_ms):
            self._close(partition)
            self._records(partition).append_body(body, timestamp_ms)
        return at

    def _records(self, partition: int) -> PythonRecords:
        if partition not in self._open:
            settings = self._settings
            self._open[partition] = PythonRecords(
                settings.batch_bytes, settings.batch_records, settings.max_request_bytes, int
            )
        return self._open[partition]

    def _close(self, partition: int) -> None:
        records = self._open[partition]
        count = len(records)
        self._full.append((partition, records.take(self._sealed), count))

    def close_all(self) -> None:
        """See `Encoder.close_all`."""
        for partition in sorted(self._open):
            if len(self._open[partition]):
                self._close(partition)

    def take(self) -> list[tuple[int, memoryview, int]]:
        """See `Encoder.take`."""
        full, self._full = self._full, []
        return full

    @property
    def open_bytes(self) -> int:
        """See `Encoder.open_bytes`."""
        return sum(records.size for records in self._open.values() if len(records))
