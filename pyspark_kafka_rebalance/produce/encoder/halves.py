"""A record batch that is too large for its topic, as two smaller ones."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...fetch.compression import NONE, decompress
from .batch_builder import BatchBuilder
from .batch_header import HEADER_SIZE
from .encoded_batch import EncodedBatch
from .python_records import Headers
from .settings import MOST_BYTES, MOST_RECORDS, EncoderSettings

_ATTRIBUTES_AT = 21
_CODEC = 0x07
_BASE_TIMESTAMP_AT = 27
_unpack_attributes = struct.Struct(">h").unpack_from
_unpack_timestamp = struct.Struct(">q").unpack_from

_Record = tuple["bytes | None", "bytes | None", Headers, int]


def halves_of(
    batch: EncodedBatch, records: int, settings: EncoderSettings
) -> tuple[EncodedBatch, EncodedBatch]:
    """Return the first records of a batch, and the rest; both are encoded and compressed again.

    Parameters
    ----------
    batch : EncodedBatch
        Of this encoder: nothing in it is checked.
    records : int
        How many the first half has: at least one, and fewer than the batch.
    settings : EncoderSettings
        For the compression.
    """
    unbounded = replace(
        settings, batch_bytes=MOST_BYTES, batch_records=MOST_RECORDS, max_request_bytes=MOST_BYTES
    )
    left = _records_of(batch)

    def build(count: int) -> EncodedBatch:
        builder = BatchBuilder("", batch.partition, unbounded)
        for record in islice(left, count):
            builder.append(*record)
        return builder.close()

    return build(records), build(batch.records - records)


def _records_of(batch: EncodedBatch) -> Iterator[_Record]:
    """Yield key, value, headers and timestamp of each record."""
    codec = _unpack_attributes(batch.data, _ATTRIBUTES_AT)[0] & _CODEC
    (base_timestamp,) = _unpack_timestamp(batch.data, _BASE_TIMESTAMP_AT)
    payload = bytes(batch.data[HEADER_SIZE:])
    if codec != NONE:
        payload = bytes(decompress(codec, payload))
    at = 0
    for _ in range(batch.records):
        _, at = _varint(payload, at)
        delta, at = _varint(payload, at + 1)  # no attributes are defined
        _, at = _varint(payload, at)
        key, at = _bytes(payload, at)
        value, at = _bytes(payload, at)
        count, at = _varint(payload, at)
        headers = []
        for _ in range(count):
            name, at = _bytes(payload, at)
            content, at = _bytes(payload, at)
            headers.append((name or b"", content))
        timestamp = (base_timestamp + delta + 2**63) % 2**64 - 2**63  # as Java's addition
        yield key, value, headers, timestamp


def _bytes(payload: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(payload, at)
    return (None, at) if size < 0 else (payload[at : at + size], at + size)


def _varint(payload: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = payload[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
        shift += 7
