"""Compress the records of a batch as Kafka's Java client reads them: all through pyarrow.

Two codecs need a frame that pyarrow does not write. Java reads lz4 frames only if their blocks are
independent, and pyarrow links them. Its snappy is a stream of blocks (xerial), and pyarrow writes
one block.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from ...fetch.compression import GZIP, LZ4, SNAPPY, ZSTD

# Java's defaults (KIP-390). pyarrow's are 9 for gzip, which takes several times as long, and 1 for
# zstd.
_DEFAULT_LEVELS = {GZIP: 6, ZSTD: 3}
_STREAMS = {GZIP: "gzip", ZSTD: "zstd"}

#: As many bytes as Java's client puts into a block of either codec.
_LZ4_BLOCK = 64 * 1024
_SNAPPY_BLOCK = 32 * 1024

# Magic number; version 1 with independent blocks and no checksums; blocks of up to 64 KiB; the
# second byte of the xxHash of the two bytes before.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_END = bytes(4)
_LZ4_STORED = 0x80000000  # in a block's size: it is not compressed

_XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)

_pack_lz4_size = struct.Struct("<I").pack
_pack_snappy_size = struct.Struct(">i").pack


def compress(codec: int, data: memoryview, level: int | None = None) -> bytes:
    """Compress the records of one batch.

    Parameters
    ----------
    codec : int
        As in the batch's attributes: 1 gzip, 2 snappy, 3 lz4, 4 zstd.
    data : memoryview
        The records.
    level : int, optional
        Of gzip, lz4 and zstd; None for Java's default.

    Returns
    -------
    bytes

    Raises
    ------
    ValueError
        The codec is unknown, or does not know the level.
    """
    if codec == SNAPPY:
        return _snappy(data)
    if codec == LZ4:
        return _lz4(data, level)
    name = _STREAMS.get(codec)
    if name is None:
        raise ValueError(f"unknown codec {codec}")
    return _block(pa.Codec(name, _DEFAULT_LEVELS[codec] if level is None else level), data)


def _block(codec: pa.Codec, data: memoryview) -> bytes:
    compressed: bytes = codec.compress(pa.py_buffer(data), asbytes=True)
    return compressed


def _lz4(data: memoryview, level: int | None) -> bytes:
    codec = pa.Codec("lz4_raw", level)
    pieces = [_LZ4_HEADER]
    for at in range(0, len(data), _LZ4_BLOCK):
        plain = data[at : at + _LZ4_BLOCK]
        block = _block(codec, plain)
        if len(block) < len(plain):
            pieces += (_pack_lz4_size(len(block)), block)
        else:
            pieces += (_pack_lz4_size(len(plain) | _LZ4_STORED), bytes(plain))
    return b"".join([*pieces, _LZ4_END])


def _snappy(data: memoryview) -> bytes:
    codec = pa.Codec("snappy")
    pieces = [_XERIAL_HEADER]
    for at in range(0, len(data), _SNAPPY_BLOCK):
        block = _block(codec, data[at : at + _SNAPPY_BLOCK])
        pieces += (_pack_snappy_size(len(block)), block)
    return b"".join(pieces)
