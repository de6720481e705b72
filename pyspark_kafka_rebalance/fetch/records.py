"""The records inside a record batch of format 2: varints, keys, values, headers.

Record => Length, Attributes int8, TimestampDelta, OffsetDelta, Key, Value, Headers
          (each length, delta and count a zigzag varint; length -1 is null)
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from .damage import is_damage

Headers = list[tuple[str, bytes | None]]

# Milliseconds that fit 64 bits as microseconds: up to the year 294,246. A timestamp in nanoseconds
# that was written as milliseconds does not fit. Kafka 4 refuses it by default, and older brokers
# accept it (``message.timestamp.after.max.ms``).
MAX_TIMESTAMP_MS = (2**63 - 1) // 1000 - 2**13
_MAX_TIMESTAMP_US = MAX_TIMESTAMP_MS * 1000


class Wanted(NamedTuple):
    """The base values of a batch's records, and which of the records are wanted."""

    records: int  #: how many the batch has
    base_offset: int
    base_timestamp: int  #: in milliseconds
    #: Whether all records have the batch's timestamp, which was set when they were appended.
    same_timestamp: bool
    start: int  #: the first wanted offset
    end: int  #: exclusive


def fits_microseconds(timestamp_ms: int) -> bool:
    """Whether a column of microseconds can hold a timestamp."""
    return -MAX_TIMESTAMP_MS <= timestamp_ms <= MAX_TIMESTAMP_MS


class MalformedError(Exception):
    """A batch is malformed, and how; becomes a CorruptRecordError that says where it is."""


def _varint(buffer: bytes, position: int) -> tuple[int, int]:
    """Read a zigzag varint of up to 10 bytes; return it and the position after it."""
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
        shift += 7
        if shift >= 70:
            raise MalformedError("a varint of more than 10 bytes")


def control_type(payload: bytes, position: int, limit: int) -> int:
    """Return the type of a control batch's marker: 0 abort, 1 commit. Its key: version and type."""
    try:
        size, position = _control_key(payload, position)
    except IndexError as error:
        start = position
        if not is_damage(error, lambda: _control_key(payload, start)):
            raise
        raise MalformedError("a control record without a key") from None
    if size < 4 or position + size > limit:
        raise MalformedError(f"a control record with a key of {size} bytes")
    return int.from_bytes(payload[position + 2 : position + 4], "big", signed=True)


def _control_key(payload: bytes, position: int) -> tuple[int, int]:
    """Return how long the key of a control record is, and where it is."""
    _, position = _varint(payload, position)
    _, position = _varint(payload, position + 1)
    _, position = _varint(payload, position)
    return _varint(payload, position)


class ColumnLists(Protocol):
    """Columns as lists of Python objects, one element a record: ``PythonColumns``."""

    include_headers: bool
    keys: list[bytes | None]
    values: list[bytes | None]
    offsets: list[int]
    timestamps: list[int | None]
    headers: list[Headers | None]


def append_records(
    columns: ColumnLists,
    payload: bytes,
    position: int,
    limit: int,
    wanted: Wanted,
) -> tuple[int, int] | None:
    """See `Columns.append_records`.

    This is the hot loop. Varints of one and two bytes are read in place, because nearly all lengths
    and deltas are that short. A record's bounds are checked once, at its end: lengths only move the
    position forward, so one that is too long leaves it beyond the end. An IndexError means the
    same.
    """
    count, base_offset, base_timestamp, same_timestamp, start, end = wanted
    add_key = columns.keys.append
    add_value = columns.values.append
    add_offset = columns.offsets.append
    add_timestamp = columns.timestamps.append
    add_headers = columns.headers.append
    include_headers = columns.include_headers
    base_timestamp_us = base_timestamp * 1000
    unfit: tuple[int, int] | None = None
    for _ in range(count):
        # Length
        byte = payload[position]
        if byte < 0x80:
            record_end = position + 1 + ((byte >> 1) ^ -(byte & 1))
            position += 1
        else:
            length, position = _varint(payload, position)
            record_end = position + length
        if record_end > limit:
            raise MalformedError(f"a record reaches {record_end - limit} bytes past its batch")
        # Attributes: none are defined
        position += 1
        # Timestamp delta
        byte = payload[position]
        if byte < 0x80:
            delta = (byte >> 1) ^ -(byte & 1)
            position += 1
        elif (high := payload[position + 1]) < 0x80:
            delta = (byte & 0x7F) | (high << 7)
            delta = (delta >> 1) ^ -(delta & 1)
            position += 2
        else:
            delta, position = _varint(payload, position)
            if not -(2**63) <= delta < 2**63:
                raise MalformedError(f"a timestamp delta of {delta} ms")
        timestamp = base_timestamp_us if same_timestamp else base_timestamp_us + delta * 1000
        # Offset delta
        byte = payload[position]
        if byte < 0x80:
            offset = base_offset + ((byte >> 1) ^ -(byte & 1))
            position += 1
        else:
            delta, position = _varint(payload, position)
            offset = base_offset + delta
        # Key
        byte = payload[position]
        if byte < 0x80:
            position += 1
            size = (byte >> 1) ^ -(byte & 1)
        else:
            size, position = _varint(payload, position)
        if size < 0:
            key = None
        else:
            key = payload[position : position + size]
            position += size
        # Value
        byte = payload[position]
        if byte < 0x80:
            position += 1
            size = (byte >> 1) ^ -(byte & 1)
        elif (high := payload[position + 1]) < 0x80:
            size = (byte & 0x7F) | (high << 7)
            size = (size >> 1) ^ -(size & 1)
            position += 2
        else:
            size, position = _varint(payload, position)
        if size < 0:
            value = None
        else:
            value = payload[position : position + size]
            position += size
        # Headers
        headers: Headers | None = None
        byte = payload[position]
        if byte == 0:
            position += 1
        else:
            headers, position = _headers(payload, position, record_end)
        if position != record_end:
            raise MalformedError(
                f"a record differs from its length by {position - record_end:+} bytes"
            )
        if start <= offset < end:
            add_key(key)
            add_value(value)
            add_offset(offset)
            if -_MAX_TIMESTAMP_US <= timestamp <= _MAX_TIMESTAMP_US:
                add_timestamp(timestamp)
            else:
                add_timestamp(None)
                unfit = unfit or (offset, timestamp // 1000)
            if include_headers:
                add_headers(headers)
    if position != limit:
        raise MalformedError(f"{limit - position} bytes after its {count} records")
    return unfit


def _headers(payload: bytes, position: int, record_end: int) -> tuple[Headers, int]:
    count, position = _varint(payload, position)
    # The shortest header is an empty key and a null value, of a byte each.
    if not 0 < count <= (record_end - position) // 2:
        raise MalformedError(f"{count} headers in {record_end - position} bytes")
    headers: Headers = []
    for _ in range(count):
        size, position = _varint(payload, position)
        if not 0 <= size <= record_end - position:
            raise MalformedError(f"a header key of {size} bytes")
        # As in Java, a key that is not UTF-8 keeps the part that is.
        key = payload[position : position + size].decode("utf-8", "replace")
        position += size
        size, position = _varint(payload, position)
        if size > record_end - position:
            raise MalformedError(f"a header value of {size} bytes")
        value = None
        if size >= 0:
            value = payload[position : position + size]
            position += size
        headers.append((key, value))
    return headers, position
