"""The header of a record batch: sealed when the batch is closed, stamped when its sender is known.

A batch is built before its producer id, epoch and sequence number are known. These fields are under
the batch's CRC, so a stamp changes both.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

from ...fetch.checksum import crc32c
from .compiled import compiled

#: A whole record batch that may be written to.
Batch: TypeAlias = "bytearray | memoryview"

HEADER_SIZE = 61
NO_PRODUCER = -1
TRANSACTIONAL = 0x10

_LENGTH_FROM = 12
_CRC_AT = 17
_CRC_FROM = _ATTRIBUTES_AT = 21
_PRODUCER_AT = 43

# Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base and maximum
# timestamp, producer id, epoch, base sequence, number of records.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_pack_length = struct.Struct(">i").pack_into
_pack_crc = struct.Struct(">I").pack_into
_pack_attributes = struct.Struct(">h").pack_into
_unpack_attributes = struct.Struct(">h").unpack_from
_pack_producer = struct.Struct(">qhi").pack_into


class Stamp(NamedTuple):
    """Who sends a batch.

    Attributes
    ----------
    producer_id, epoch : int
        As InitProducerId has answered; -1 both for a producer that is not idempotent.
    base_sequence : int
        The sequence number of the batch's first record in its partition; -1 without a producer.
    transactional : bool
        Whether the batch is part of a transaction.
    """

    producer_id: int = NO_PRODUCER
    epoch: int = -1
    base_sequence: int = -1
    transactional: bool = False


def open_header(records: int, base_timestamp: int, max_timestamp: int) -> bytes:
    """Return the header of a batch that is not sealed or stamped.

    Parameters
    ----------
    records : int
        How many records the batch has, at least one.
    base_timestamp, max_timestamp : int
        Of its first record, and the latest of all; milliseconds since the epoch.
    """
    offset, leader_epoch = 0, -1  # the broker sets both
    return _HEADER.pack(
        offset, 0, leader_epoch, 2, 0, 0, records - 1, base_timestamp, max_timestamp, *Stamp()[:3],
        records,
    )  # fmt: skip


def seal(batch: Batch, codec: int) -> None:
    """Set length, codec and CRC in the header of a batch that is otherwise complete."""
    _pack_length(batch, _LENGTH_FROM - 4, len(batch) - _LENGTH_FROM)
    _pack_attributes(batch, _ATTRIBUTES_AT, codec)
    _pack_crc(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))


def stamp_in_python(batch: Batch, stamp: Stamp, /) -> None:
    """See `stamp`."""
    if not HEADER_SIZE <= len(batch) < 2**31:
        raise ValueError(f"a record batch of {len(batch)} bytes")
    (attributes,) = _unpack_attributes(batch, _ATTRIBUTES_AT)
    flag = TRANSACTIONAL if stamp.transactional else 0
    _pack_attributes(batch, _ATTRIBUTES_AT, attributes & ~TRANSACTIONAL | flag)
    _pack_producer(batch, _PRODUCER_AT, *stamp[:3])
    _pack_crc(batch, _CRC_AT, crc32c(memoryview(batch)[_CRC_FROM:]))


def stamped_header_in_python(batch: Batch, stamp: Stamp, /) -> bytes:
    """See `stamped_header`."""
    copy = bytearray(batch)
    stamp_in_python(copy, stamp)
    return bytes(copy[:HEADER_SIZE])


def stamp(batch: Batch, stamp: Stamp) -> None:
    """Write the sender into a batch, in place.

    Only for a batch that no socket is sending: otherwise use `stamped_header`. The compiled form
    takes the same time for a batch of any size.

    Parameters
    ----------
    batch : bytearray or memoryview
        A whole record batch, stamped before or not.
    stamp : Stamp
        Who sends it.

    Raises
    ------
    ValueError
        The batch is shorter than its header.
    """
    (compiled.stamp if compiled else stamp_in_python)(batch, stamp)


def stamped_header(batch: Batch, stamp: Stamp) -> bytes:
    """Return the header that a batch has with this sender; the batch stays as it is.

    What to send is this header and the batch from byte `HEADER_SIZE` on.

    Parameters and errors are those of `stamp`.
    """
    header: bytes = (compiled.stamped_header if compiled else stamped_header_in_python)(
        batch, stamp
    )
    return header
