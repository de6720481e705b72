"""Record batches in a file, one after the other. Pure.

Each is preceded by the length of its topic, its partition, records, size before compression and
size. At the end there is one that has no topic, and the number of batches instead of a partition:
a file that was not written to its end lacks it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from ...produce.encoder.encoded_batch import EncodedBatch

_FRAME = struct.Struct(">iiiqq")


class SpillFormatError(Exception):
    """The file is cut short, or is none of these."""


def frame_of(topic: str, batch: EncodedBatch) -> bytes:
    """Return what comes in front of the batch's data."""
    name = topic.encode()
    size = len(batch.data)
    return _FRAME.pack(len(name), batch.partition, batch.records, batch.plain_bytes, size) + name


def end_frame(batches: int) -> bytes:
    """Return what comes after so many batches."""
    return _FRAME.pack(0, batches, 0, 0, 0)


def read_frames(read: Callable[[int], bytes]) -> Iterator[tuple[str, EncodedBatch]]:
    """Yield topic and batch.

    Parameters
    ----------
    read : callable
        Returns so many bytes of the file, or fewer at its end.

    Raises
    ------
    SpillFormatError
    """
    batches = 0
    while True:
        length, partition, records, plain_bytes, size = _FRAME.unpack(_exactly(read, _FRAME.size))
        if not length:
            if partition != batches:
                raise SpillFormatError(f"{batches} batches instead of {partition}")
            return
        topic = _exactly(read, length).decode()
        data = memoryview(bytearray(_exactly(read, size)))
        yield topic, EncodedBatch(partition, data, records, plain_bytes)
        batches += 1


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = read(size)
    if len(data) != size:
        raise SpillFormatError("it is cut short")
    return data
