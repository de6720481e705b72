"""Checks of the partitions and offsets that an application passes to a call. Pure.

An argument that would fail later, when a request is encoded on the I/O loop, is refused in the
call, before anything changes. Python's integers (``operator.index``: NumPy's too) are accepted.
Floats are not, even whole ones: pandas turns offsets into floats, and above 2**53 into others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from operator import index
from typing import Any

from kafka.structs import OffsetAndMetadata, TopicPartition

#: Kafka's offsets and timestamps are signed 64-bit integers.
_LARGEST = 2**63 - 1
#: Kafka's partition numbers are signed 32-bit integers.
_LARGEST_PARTITION = 2**31 - 1


def checked_partition(call: str, partition: Any) -> TopicPartition:
    """The partition, with a plain number.

    Raises TypeError if it is no ``TopicPartition`` of a string and an integer, and ValueError if
    its number is not in [0, 2**31).
    """
    if not isinstance(partition, TopicPartition):
        raise TypeError(f"{call}: {partition!r} is not a TopicPartition(topic, partition)")
    topic, number = partition
    if type(number) is int and isinstance(topic, str) and 0 <= number <= _LARGEST_PARTITION:
        return partition
    if not isinstance(topic, str) or (found := as_integer(number)) is None:
        raise TypeError(f"{call}: {partition!r} is not of a string and an integer")
    if not 0 <= found <= _LARGEST_PARTITION:
        raise ValueError(
            f"{call}: the partition number of {partition!r} must be 0 or more, and less than 2**31"
        )
    return TopicPartition(topic, found)


def checked_partitions(call: str, partitions: Iterable[Any]) -> list[TopicPartition]:
    """The partitions, in the same order; raises as ``checked_partition``."""
    if isinstance(partitions, (str, TopicPartition)):
        raise TypeError(f"{call}: {partitions!r} is not a collection of TopicPartition")
    return [checked_partition(call, partition) for partition in partitions]


def checked_offset(call: str, partition: TopicPartition, offset: Any, what: str = "offset") -> int:
    """The offset, or another such number, as a plain integer.

    Raises TypeError if it is no integer, and ValueError if it is not in [0, 2**63).
    """
    if type(offset) is int and 0 <= offset <= _LARGEST:  # called for every record
        return offset
    found = as_integer(offset)
    if found is None:
        raise TypeError(
            f"{call}: the {what} of {partition.topic}-{partition.partition} must be an integer, "
            f"and is {offset!r} ({type(offset).__name__})"
        )
    if not 0 <= found <= _LARGEST:
        raise ValueError(
            f"{call}: the {what} of {partition.topic}-{partition.partition} must be 0 or more, and "
            f"less than 2**63, and is {found}"
        )
    return found


def checked_offsets(call: str, offsets: Any, what: str = "offset") -> dict[TopicPartition, int]:
    """Numbers by partition; raises as ``checked_partition`` and ``checked_offset``."""
    return {
        (found := checked_partition(call, partition)): checked_offset(call, found, offset, what)
        for partition, offset in _items(call, offsets)
    }


def checked_commit(call: str, offsets: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """The commits: next offsets, alone or as ``OffsetAndMetadata``.

    In those, None means no metadata, or an unknown leader epoch. Raises as ``checked_offsets``.
    """
    entries = {}
    for given, value in _items(call, offsets):
        partition = checked_partition(call, given)
        if not isinstance(value, OffsetAndMetadata):
            value = OffsetAndMetadata(value, "", -1)
        metadata = "" if value.metadata is None else value.metadata
        if not isinstance(metadata, str):
            raise TypeError(
                f"{call}: the metadata of {partition.topic}-{partition.partition} must be a "
                f"string, and are {metadata!r}"
            )
        offset = checked_offset(call, partition, value.offset)
        epoch = _checked_epoch(call, partition, value.leader_epoch)
        entries[partition] = OffsetAndMetadata(offset, metadata, epoch)
    return entries


def _checked_epoch(call: str, partition: TopicPartition, epoch: Any) -> int:
    found = -1 if epoch is None else as_integer(epoch)
    if found is None or not -1 <= found < 2**31:
        kind = TypeError if found is None else ValueError
        raise kind(
            f"{call}: the leader epoch of {partition.topic}-{partition.partition} must be an "
            f"integer from -1 (unknown) to 2**31 - 1, and is {epoch!r}"
        )
    return found


def _items(call: str, given: Any) -> Collection[tuple[Any, Any]]:
    if not isinstance(given, Mapping):
        raise TypeError(f"{call}: {given!r} is not a dict by TopicPartition")
    return given.items()


def as_integer(number: Any) -> int | None:
    """The number as a plain integer; None if it is not one, as a truth value is not."""
    if type(number) is int:
        return number
    if isinstance(number, bool) or type(number).__name__ in ("bool", "bool_"):  # NumPy's too
        return None
    try:
        return index(number)
    except TypeError:
        return None
