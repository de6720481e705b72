"""Which partition a record goes to: Java's hash of its key, or the sticky partition without one."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence

from .compiled import compiled


def murmur2_in_python(data: bytes) -> int:
    """Return the hash of Java's ``Utils.murmur2``, as Java does: 32 bits with a sign."""
    size = len(data)
    whole = size & ~3
    value = 0x9747B28C ^ size
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * 0x5BD1E995 & 0xFFFFFFFF
        word = (word ^ word >> 24) * 0x5BD1E995
        value = (value * 0x5BD1E995 ^ word) & 0xFFFFFFFF
    if whole < size:
        value ^= int.from_bytes(data[whole:], "little")
        value = value * 0x5BD1E995 & 0xFFFFFFFF
    value = (value ^ value >> 13) * 0x5BD1E995 & 0xFFFFFFFF
    value ^= value >> 15
    return value - (value >> 31 << 32)


#: The same, compiled if possible.
murmur2: Callable[[bytes], int] = compiled.murmur2 if compiled else murmur2_in_python


def partition_of_key(key: bytes, partitions: int) -> int:
    """Return the partition that Java's producer chooses for a key.

    Parameters
    ----------
    key : bytes
        The record's key, serialized.
    partitions : int
        How many partitions the topic has, whether or not they have a leader now.
    """
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class StickyPartition:
    """The partition of records without a key (KIP-480, KIP-794): one until its batch is closed.

    The partitions take turns in a random order, so none gets more batches than another.

    Parameters
    ----------
    partitions : int
        How many partitions the topic has.
    available : sequence of int, optional
        Those that have a leader; all, if there are none.
    shuffle : random.Random, optional
        What the order comes from.
    """

    def __init__(
        self,
        partitions: int,
        available: Sequence[int] | None = None,
        shuffle: random.Random | None = None,
    ) -> None:
        self._shuffle = shuffle or random.Random()
        self.set_partitions(partitions, available)

    def set_partitions(self, partitions: int, available: Sequence[int] | None = None) -> None:
        """Take new metadata of the topic; see the class."""
        if partitions < 1:
            raise ValueError(f"a topic with {partitions} partitions")
        order = list(available or range(partitions))
        if not all(0 <= partition < partitions for partition in order):
            raise ValueError(f"of {partitions} partitions, {sorted(order)} are available")
        self._shuffle.shuffle(order)
        #: The partitions in turn, as C ints.
        self.order = array("i", order)
        #: Which of them it is now.
        self.at = 0

    @property
    def partition(self) -> int:
        """Where a record without a key goes now."""
        return self.order[self.at]

    def closed(self, partition: int) -> None:
        """Move on to the next partition, if it is this one whose batch was closed."""
        if partition == self.partition:
            self.at = (self.at + 1) % len(self.order)
