"""Message formats 0 and 1, of brokers before 0.11, through kafka-python's decoder.

Kafka 4 no longer writes them, but old segments keep them until retention or compaction removes
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from kafka.record.legacy_records import LegacyRecordBatch

from .columns import CREATE_TIME
from .compression import LZ4, decompress

#: Offset, length, CRC, magic, attributes; no timestamp, empty key and value.
_SMALLEST_MESSAGE = 22
_LOG_OVERHEAD = 12

LegacyRow = tuple[int, int, int, bytes | None, bytes | None]


class _BoundedBatch(LegacyRecordBatch):  # type: ignore[misc]
    """kafka-python's decoder with our codecs, whose output is bounded."""

    def _decompress(self, key_offset: int) -> bytes:
        view = self._buffer
        position = key_offset
        (key_size,) = struct.unpack_from(">i", view, position)
        position += 4 + max(0, key_size)
        (size,) = struct.unpack_from(">i", view, position)
        position += 4
        if size < 0 or position + size > len(view):
            raise ValueError(f"compressed value of {size} bytes in a message of {len(view)}")
        if self._magic == 0 and self.compression_type == LZ4:
            # The first clients computed the frame's header checksum over the wrong bytes.
            inner = super()._decompress(key_offset)
        else:
            inner = decompress(self.compression_type, view[position : position + size])
        _check_lengths(inner)
        return bytes(inner)


def _check_lengths(messages: bytes) -> None:
    """Check that every inner message is whole; kafka-python loops for ever on a negative length."""
    position, end = 0, len(messages)
    while position < end:
        if end - position < _SMALLEST_MESSAGE:
            raise ValueError(f"{end - position} bytes are left for an inner message")
        (length,) = struct.unpack_from(">i", messages, position + 8)
        if not _SMALLEST_MESSAGE - _LOG_OVERHEAD <= length <= end - position - _LOG_OVERHEAD:
            raise ValueError(f"inner message of {length} bytes")
        position += _LOG_OVERHEAD + length


def legacy_rows(batch: memoryview, magic: int, check_crc: bool) -> Iterator[LegacyRow]:
    """Yield the records of one message, or of the messages in a compressed one.

    The message has its offset and length, and magic 0 or 1. The CRC-32 is that of the (outer)
    message.

    Yields
    ------
    offset, timestamp in ms, timestamp type, key, value
        Timestamp -1 and type 0 for magic 0, which has neither.

    Raises
    ------
    Exception
        Damaged bytes can raise any of kafka-python's, struct's or the codecs' errors.
    """
    records = _BoundedBatch(batch, magic)
    if check_crc and not records.validate_crc():
        raise ValueError("the CRC-32 does not match")
    for record in records:
        yield (
            record.offset,
            -1 if record.timestamp is None else record.timestamp,
            CREATE_TIME if record.timestamp_type is None else record.timestamp_type,
            record.key,
            record.value,
        )
