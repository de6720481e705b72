"""A batch that is ready to be sent, but for its sender."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any

from ...fetch.compression import NONE
from .batch_header import HEADER_SIZE, seal
from .compression import compress
from .settings import EncoderSettings


@dataclass(frozen=True, slots=True)
class EncodedBatch:
    """A record batch of format 2. Can be pickled, by protocol 5 without a copy.

    Attributes
    ----------
    partition : int
        Where it goes.
    data : memoryview
        The whole batch, valid as it is for a producer without an id; `stamp` writes to it.
    records : int
        How many it has. Its sequence numbers are as many.
    plain_bytes : int
        Its size before compression.
    """

    partition: int
    data: memoryview
    records: int
    plain_bytes: int

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., EncodedBatch], tuple[Any, ...]]:
        data = PickleBuffer(self.data) if protocol >= 5 else bytearray(self.data)
        return _unpickled, (self.partition, data, self.records, self.plain_bytes)


def _unpickled(
    partition: int, data: bytearray | PickleBuffer, records: int, plain_bytes: int
) -> EncodedBatch:
    return EncodedBatch(partition, memoryview(data), records, plain_bytes)


def encoded(
    partition: int, data: memoryview, records: int, settings: EncoderSettings
) -> EncodedBatch:
    """Return a closed batch, compressed if that makes it smaller.

    Parameters
    ----------
    partition, records : int
        See `EncodedBatch`.
    data : memoryview
        As `Records.take` returns it: sealed if there is no compression.
    settings : EncoderSettings
        Their codec and level count.
    """
    plain_bytes = len(data)
    if settings.codec != NONE:
        codec = settings.codec
        compressed = compress(codec, data[HEADER_SIZE:], settings.level)
        if len(compressed) < plain_bytes - HEADER_SIZE:
            data = memoryview(bytearray(data[:HEADER_SIZE]) + compressed)
        else:
            codec = NONE
        seal(data, codec)
    return EncodedBatch(partition, data, records, plain_bytes)
