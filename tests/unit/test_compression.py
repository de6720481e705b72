from __future__ import annotations

import contextlib
import gzip
import struct

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_kafka_rebalance.fetch import compression
from pyspark_kafka_rebalance.fetch.compression import GZIP, LZ4, SNAPPY, ZSTD, DecompressionError

NAMES = {GZIP: "gzip", SNAPPY: "snappy", LZ4: "lz4", ZSTD: "zstd"}
XERIAL_HEADER = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)


def compress(codec: int, data: bytes) -> bytes:
    return pa.Codec(NAMES[codec]).compress(data, asbytes=True)


def xerial(*blocks: bytes) -> bytes:
    framed = b"".join(
        struct.pack(">i", len(block)) + block
        for block in (compress(SNAPPY, plain) for plain in blocks)
    )
    return XERIAL_HEADER + framed


@given(data=st.binary(max_size=5000), repeats=st.integers(1, 50))
@settings(deadline=None)
@pytest.mark.parametrize("codec", NAMES)
def test_every_codec_gives_back_what_was_compressed(codec: int, data: bytes, repeats: int) -> None:
    plain = data * repeats
    assert compression.decompress(codec, compress(codec, plain)) == plain


@given(blocks=st.lists(st.binary(max_size=2000), max_size=5))
@settings(deadline=None)
def test_the_framing_of_java_snappy_is_unwrapped(blocks: list[bytes]) -> None:
    assert compression.decompress(SNAPPY, xerial(*blocks)) == b"".join(blocks)


def test_java_snappy_streams_may_follow_each_other() -> None:
    assert compression.decompress(SNAPPY, xerial(b"one", b"two") + xerial(b"three")) == (
        b"onetwothree"
    )


def test_more_than_one_piece_of_output() -> None:
    plain = bytes(range(256)) * 20_000
    for codec in NAMES:
        assert compression.decompress(codec, compress(codec, plain)) == plain


@pytest.mark.parametrize("codec", [GZIP, LZ4, ZSTD])
def test_a_bomb_is_refused_before_it_is_unpacked(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1024 * 1024)
    bomb = compress(codec, bytes(64 * 1024 * 1024))
    with pytest.raises(DecompressionError, match=r"become more than \d+"):
        compression.decompress(codec, bomb)
    assert len(compression.decompress(codec, compress(codec, bytes(1024 * 1024)))) == 1024 * 1024


@pytest.mark.parametrize("wrap", [bytes, xerial], ids=["block", "xerial"])
def test_a_snappy_bomb_is_refused(wrap: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1024)
    plain = bytes(1024 * 1024)
    data = xerial(plain) if wrap is xerial else compress(SNAPPY, plain)
    with pytest.raises(DecompressionError, match="more than"):
        compression.decompress(SNAPPY, data)


def test_many_small_snappy_blocks_are_one_bomb(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_BYTES", 1024)
    monkeypatch.setattr(compression, "MAX_DECOMPRESSED_RATIO", 1)
    with pytest.raises(DecompressionError, match="more than"):
        compression.decompress(SNAPPY, xerial(*[bytes(500)] * 20))


def test_a_snappy_block_that_claims_what_it_cannot_hold_takes_no_memory() -> None:
    with pytest.raises(DecompressionError, match="cannot become"):
        compression.decompress(SNAPPY, b"\xff\xff\xff\x7f\x00")  # 256 MiB out of 5 bytes


def test_unknown_codec() -> None:
    for codec in (0, 5, 7):
        with pytest.raises(DecompressionError, match=f"unknown codec {codec}"):
            compression.decompress(codec, b"")


def test_members_of_a_gzip_stream_are_all_read() -> None:
    assert compression.decompress(GZIP, gzip.compress(b"a" * 10) + gzip.compress(b"b")) == (
        b"aaaaaaaaaab"
    )


@given(data=st.binary(max_size=300))
@settings(deadline=None)
@pytest.mark.parametrize("codec", NAMES)
@pytest.mark.parametrize("prefix", [b"", XERIAL_HEADER], ids=["", "xerial"])
def test_any_bytes_decompress_or_are_refused(codec: int, prefix: bytes, data: bytes) -> None:
    with contextlib.suppress(DecompressionError):
        compression.decompress(codec, prefix + data)


@given(data=st.binary(min_size=1, max_size=2000), position=st.floats(0, 1), bit=st.integers(0, 7))
@settings(deadline=None)
@pytest.mark.parametrize("codec", NAMES)
def test_damaged_bytes_decompress_or_are_refused(
    codec: int, data: bytes, position: float, bit: int
) -> None:
    damaged = bytearray(compress(codec, data * 3))
    damaged[min(int(position * len(damaged)), len(damaged) - 1)] ^= 1 << bit
    with contextlib.suppress(DecompressionError):
        compression.decompress(codec, damaged)


@pytest.mark.parametrize("codec", NAMES)
def test_truncated_bytes_are_refused(codec: int) -> None:
    whole = compress(codec, b"some text, " * 100)
    for size in range(1, len(whole) - 1):
        with pytest.raises(DecompressionError):
            compression.decompress(codec, whole[:size])
