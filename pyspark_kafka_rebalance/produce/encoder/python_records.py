"""The records of one batch, written in Python; the compiled form equals it byte for byte.

Record => Length, Attributes int8, TimestampDelta, OffsetDelta, Key, Value, Headers
          (each length, delta and count a zigzag varint; length -1 is null)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import TypeAlias

from ...fetch.compression import NONE
from .batch_header import HEADER_SIZE, open_header, seal

#: Keys as strings or UTF-8, values as bytes or null.
Headers: TypeAlias = "Sequence[tuple[str | bytes, bytes | None]] | None"

#: What a record takes at most beside its key, value and headers: Java's MAX_RECORD_OVERHEAD.
RECORD_OVERHEAD = 21


def varint(value: int) -> bytes:
    """Encode a number of 64 bits as a zigzag varint."""
    bits = (value << 1 ^ value >> 63) & 0xFFFFFFFFFFFFFFFF
    encoded = bytearray()
    while bits > 0x7F:
        encoded.append(bits & 0x7F | 0x80)
        bits >>= 7
    encoded.append(bits)
    return bytes(encoded)


def _string(value: bytes | bytearray | memoryview | None) -> bytes:
    if value is None:
        return b"\x01"
    value = bytes(memoryview(value))  # of a number, `bytes` alone would make as many zeros
    return varint(len(value)) + value


def body_of(key: bytes | None, value: bytes | None, headers: Headers) -> bytes:
    """Return what a record has behind its deltas: key, value and headers."""
    pieces = [_string(key), _string(value), varint(len(headers or ()))]
    for name, content in headers or ():
        pieces += (_string(name.encode() if isinstance(name, str) else name), _string(content))
    return b"".join(pieces)


def _check_headers(headers: object) -> None:
    """Raise the errors of the compiled form."""
    if headers is None:
        return
    if not isinstance(headers, (list, tuple)):
        raise TypeError("headers are a list or a tuple, or None")
    for header in headers:
        if not isinstance(header, tuple) or len(header) != 2:
            raise TypeError("a header is a tuple of a key and a value")
        if not isinstance(header[0], (str, bytes)):
            raise TypeError("the key of a header is a str or bytes")
        if not isinstance(header[1], (bytes, type(None))):
            raise TypeError("the value of a header is bytes or None")


def most_bytes(body: int) -> int:
    """Return the most bytes that a batch of one record takes, as Java estimates it."""
    return HEADER_SIZE + RECORD_OVERHEAD + body


class PythonRecords:
    """Records of one batch on their way; see `Records`."""

    def __init__(
        self,
        batch_bytes: int,
        batch_records: int,
        max_request_bytes: int,
        refuse: Callable[[int], object],
    ) -> None:
        self._batch_bytes = batch_bytes
        self._batch_records = batch_records
        self._max_request_bytes = max_request_bytes
        self._refuse = refuse
        self._clear()

    def _clear(self) -> None:
        self._data = bytearray(HEADER_SIZE)
        self._count = 0
        self._base_timestamp = self._max_timestamp = 0

    def __len__(self) -> int:
        return self._count

    @property
    def size(self) -> int:
        """See `Records.size`."""
        return len(self._data)

    def append(
        self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, /
    ) -> int:
        """See `Records.append`."""
        timestamp_ms = index(timestamp_ms)
        if not -(2**63) <= timestamp_ms < 2**63:
            raise OverflowError(f"a timestamp of {timestamp_ms} ms")
        _check_headers(headers)
        body = body_of(key, value, headers)
        size = most_bytes(len(body))
        if size > self._max_request_bytes:
            self._refuse(size)
        return self.append_body(body, timestamp_ms)

    def append_body(self, body: bytes, timestamp_ms: int) -> int:
        """Append a record by its `body_of`; see `Records.append`."""
        base_timestamp = self._base_timestamp if self._count else timestamp_ms
        delta = timestamp_ms - base_timestamp
        delta = (delta + 2**63) % 2**64 - 2**63  # as Java's subtraction
        record = b"\x00" + varint(delta) + varint(self._count) + body
        record = varint(len(record)) + record
        size = len(self._data) + len(record)
        if self._count and (size > self._batch_bytes or self._count >= self._batch_records):
            return 0
        self._base_timestamp = base_timestamp
        self._max_timestamp = (
            max(self._max_timestamp, timestamp_ms) if self._count else timestamp_ms
        )
        self._data += record
        self._count += 1
        return size

    def take(self, sealed: bool, /) -> memoryview:
        """See `Records.take`."""
        if not self._count:
            raise ValueError("a record batch without records")
        data = self._data
        data[:HEADER_SIZE] = open_header(self._count, self._base_timestamp, self._max_timestamp)
        if sealed:
            seal(data, NONE)
        self._clear()
        return memoryview(data)
