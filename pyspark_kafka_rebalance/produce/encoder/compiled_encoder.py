"""The encoder's two forms: what they have in common, and the compiled one if it is installed."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, Protocol

import pyarrow as pa

from ...fetch.compression import NONE
from .arrow_rows import ArrowRows
from .compiled import compiled
from .python_encoder import PythonEncoder
from .python_records import Headers, PythonRecords
from .settings import EncoderSettings


class Encoder(Protocol):
    """Rows to the batches of their partitions, in Python or compiled. Not thread-safe."""

    def first_refused(self, rows: ArrowRows, partitions: int) -> int:
        """Return the first row that cannot be encoded; -1 if all can. Nothing is appended.

        A row is refused if its partition is not one of so many, a header has no key, or the record
        is too large.
        """
        ...

    def append(
        self, rows: ArrowRows, timestamp_ms: int, partitions: int, order: array[int], at: int
    ) -> int:
        """Append rows, of which none is refused.

        Parameters
        ----------
        rows : ArrowRows
        timestamp_ms : int
            Of rows that have none.
        partitions : int
            How many the topic has.
        order : array of C ints
            The partitions that take turns for records without a key.
        at : int
            Which of them it is now.

        Returns
        -------
        int
            Which it is next.
        """
        ...

    def close_all(self) -> None:
        """Close all batches that have records, in the order of their partitions."""
        ...

    def take(self) -> list[tuple[int, memoryview, int]]:
        """Return the closed batches in the order in which they were closed, and forget them.

        Returns
        -------
        list of (int, memoryview, int)
            The partition, the batch, not compressed, and its number of records.
        """
        ...

    @property
    def open_bytes(self) -> int:
        """The size of the batches that are not closed."""
        ...


class Records(Protocol):
    """The records of one batch, one by one, in Python or compiled. Not thread-safe."""

    def __len__(self) -> int: ...

    def append(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
        /,
    ) -> int:
        """Append a record, unless the batch is full.

        Returns
        -------
        int
            The size of the batch so far; 0 if the record does not fit and was not appended.
        """
        ...

    def take(self, sealed: bool, /) -> memoryview:
        """Return the batch, and be empty. Its header lacks codec, length and CRC unless sealed."""
        ...

    @property
    def size(self) -> int:
        """The size of the batch so far."""
        ...


class CompiledEncoder:
    """`Encoder` over the memory of Arrow's buffers."""

    def __init__(self, settings: EncoderSettings, sealed: bool) -> None:
        assert compiled is not None
        self._encoder = compiled.Encoder(
            settings.batch_bytes, settings.batch_records, settings.max_request_bytes, sealed
        )

    def first_refused(self, rows: ArrowRows, partitions: int) -> int:
        """See `Encoder.first_refused`."""
        return int(self._encoder.first_refused(_buffers(rows), partitions))

    def append(
        self, rows: ArrowRows, timestamp_ms: int, partitions: int, order: array[int], at: int
    ) -> int:
        """See `Encoder.append`."""
        return int(self._encoder.append(_buffers(rows), timestamp_ms, partitions, order, at))

    def close_all(self) -> None:
        """See `Encoder.close_all`."""
        self._encoder.close_all()

    def take(self) -> list[tuple[int, memoryview, int]]:
        """See `Encoder.take`."""
        taken: list[tuple[int, memoryview, int]] = self._encoder.take()
        return taken

    @property
    def open_bytes(self) -> int:
        """See `Encoder.open_bytes`."""
        return int(self._encoder.open_bytes)


#: (validity, numbers, data, offset, bytes of a number): a column as the compiled encoder takes it.
_Column = tuple[Any, Any, Any, int, int]


def _buffers(rows: ArrowRows) -> tuple[Any, ...]:
    """Return the rows as the compiled encoder takes them."""
    headers = rows.headers
    if headers is None:
        of_headers: tuple[Any, ...] = (None, None, None, 0)
    else:
        validity, ends = headers.lists.buffers()[:2]
        width = 8 if pa.types.is_large_list(headers.lists.type) else 4
        of_headers = (
            (validity, ends, None, headers.lists.offset, width),
            _strings(headers.keys),
            _strings(headers.values),
            len(headers.keys),
        )
    return (
        rows.rows,
        _strings(rows.keys),
        _strings(rows.values),
        *of_headers,
        _numbers(rows.timestamps, 8),
        rows.ticks_per_ms,
        _numbers(rows.partitions, 4),
    )


def _strings(array: pa.Array | None) -> _Column | None:
    if array is None:
        return None
    width = 8 if pa.types.is_large_binary(array.type) else 4
    return (*array.buffers(), array.offset, width)


def _numbers(array: pa.Array | None, width: int) -> _Column | None:
    if array is None:
        return None
    validity, numbers = array.buffers()
    return validity, numbers, None, array.offset, width


def new_encoder(settings: EncoderSettings) -> Encoder:
    """Return an encoder without rows, compiled if possible."""
    sealed = settings.codec == NONE
    return CompiledEncoder(settings, sealed) if compiled else PythonEncoder(settings, sealed)


def new_records(settings: EncoderSettings, refuse: Callable[[int], object]) -> Records:
    """Return an empty batch, compiled if possible.

    Parameters
    ----------
    settings : EncoderSettings
    refuse : callable
        Called with the size of a record that is too large; raises.
    """
    kind = compiled.Records if compiled else PythonRecords
    records: Records = kind(
        settings.batch_bytes, settings.batch_records, settings.max_request_bytes, refuse
    )
    return records
