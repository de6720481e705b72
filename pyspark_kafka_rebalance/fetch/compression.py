"""The codecs of Kafka's record batches: gzip, snappy, lz4 and zstd, all through pyarrow.

A record batch says which codec it has (attributes, bits 0 to 2) but not how large its decompressed
records are. So they are read in pieces and bounded: a few bytes cannot claim all memory.
"""

from __future__ import annotations

import struct

import pyarrow as pa

from .damage import is_damage

NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)

#: One record batch may decompress to this much, or to this multiple of its compressed size if that
#: is more, but never to more than an Arrow column can hold. Brokers bound the *compressed* size
#: (``message.max.bytes``, 1 MB by default), and repetitive records of real producers reach some
#: hundred to one; anything beyond is a bomb.
MAX_DECOMPRESSED_BYTES = 256 * 1024 * 1024
MAX_DECOMPRESSED_RATIO = 16
_MAX_ARROW_BYTES = 1024 * 1024 * 1024

_CODECS = {GZIP: "gzip", LZ4: "lz4", ZSTD: "zstd"}

# Java's snappy producers use the xerial stream: this magic, two version numbers, then blocks, each
# preceded by its length. A stream appended to another repeats the header between two blocks.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_SIZE = len(_XERIAL_MAGIC) + 8

_PIECE = 1024 * 1024

_unpack_int32 = struct.Struct(">i").unpack_from


class DecompressionError(Exception):
    """The bytes are damaged or of another codec, or become too many."""


def decompress(codec: int, data: bytes | memoryview) -> bytes:
    """Decompress the records of one batch; codecs are 1 gzip, 2 snappy, 3 lz4, 4 zstd.

    Raises
    ------
    DecompressionError
        The codec is unknown, the data is damaged, or it is larger than allowed
        (`MAX_DECOMPRESSED_BYTES`). Any other failure, such as a codec that pyarrow was built
        without or exhausted memory, is raised as it is.
    """
    limit = min(max(MAX_DECOMPRESSED_BYTES, MAX_DECOMPRESSED_RATIO * len(data)), _MAX_ARROW_BYTES)
    try:
        return _decompressed(codec, data, limit)
    except DecompressionError:
        raise
    except Exception as error:
        if not is_damage(error, lambda: _decompressed(codec, data, limit)):
            raise
        name = "snappy" if codec == SNAPPY else _CODECS[codec]
        raise DecompressionError(f"{name}: {error}") from error


def _decompressed(codec: int, data: bytes | memoryview, limit: int) -> bytes:
    if codec == SNAPPY:
        return _snappy(memoryview(data), limit)
    name = _CODECS.get(codec)
    if name is None:
        raise DecompressionError(f"unknown codec {codec}")
    return _stream(name, data, limit)


def _stream(name: str, data: bytes | memoryview, limit: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    with pa.CompressedInputStream(pa.BufferReader(data), name) as stream:
        while piece := stream.read(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise DecompressionError(f"{name}: {len(data)} bytes become more than {limit}")
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _snappy(data: memoryview, limit: int) -> bytes:
    if data[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _snappy_block(data, limit)
    pieces: list[bytes] = []
    position = 0
    end = len(data)
    while position < end:
        if data[position : position + len(_XERIAL_MAGIC)] == _XERIAL_MAGIC:
            position += _XERIAL_HEADER_SIZE
            continue
        (length,) = _unpack_int32(data, position)
        position += 4
        if not 0 <= length <= end - position:
            raise DecompressionError(f"snappy: block of {length} bytes, {end - position} are left")
        pieces.append(_snappy_block(data[position : position + length], limit))
        limit -= len(pieces[-1])
        position += length
    if position > end:
        raise DecompressionError("snappy: truncated header")
    return b"".join(pieces)


def _snappy_block(block: memoryview, limit: int) -> bytes:
    size = 0
    for index, byte in enumerate(block[:5]):
        size |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            break
    else:
        raise DecompressionError("snappy: block without a valid size")
    if size > limit:
        raise DecompressionError(f"snappy: a block claims {size} bytes, more than {limit}")
    # A block cannot expand more than its densest element, a copy of 64 bytes in 3. Do not allocate
    # memory for a size that the data cannot have.
    if size > 64 * len(block):
        raise DecompressionError(f"snappy: {len(block)} bytes cannot become {size}")
    return bytes(
        pa.Codec("snappy").decompress(pa.py_buffer(block), decompressed_size=size, asbytes=True)
    )
