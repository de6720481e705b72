"""Restart points as records of the group's topic; pure.

A source partition's records are in the topic's partition of the same number. Their key is the group
and the number, so compaction keeps the last one of each group that uses the topic. The value is the
restart point as UTF-8; a tombstone removes it. Any Kafka tool can read and write them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ..consumer.offsets.checked_arguments import as_integer
from ..errors import OptionError, PartitionsLostError

#: The largest restart point, as UTF-8.
MAX_BYTES = 1024 * 1024

#: Room for what a record batch adds to a restart point.
OVERHEAD_BYTES = 64 * 1024


class RestartPoint(NamedTuple):
    """A restart point, and the offset of its record."""

    value: str | None
    offset: int


def topic_of(group_id: str) -> str:
    """The name of a group's topic."""
    return f"__producer_group.{group_id}"


def key_of(group_id: str, source_partition: int) -> bytes:
    """The key of a source partition's records."""
    return f"{group_id}/{source_partition}".encode()


def encoded(point: object) -> bytes:
    """Encode a restart point as the value of a record.

    Raises
    ------
    OptionError
        It is not a string, cannot be encoded as UTF-8, or is larger than 1 MiB.
    """
    if not isinstance(point, str):
        raise OptionError("restart_point", point, "a string")
    try:
        value = point.encode()
    except UnicodeEncodeError as error:
        raise OptionError("restart_point", point, "a string that UTF-8 can encode") from error
    if len(value) > MAX_BYTES:
        raise OptionError(
            "restart_point", point, f"at most {MAX_BYTES} bytes of UTF-8, not {len(value)}"
        )
    return value


def check(point: object) -> None:
    """Raise as :func:`encoded`; fast for an ASCII string."""
    if type(point) is not str or not point.isascii() or len(point) > MAX_BYTES:
        encoded(point)


def number_of(source_partition: object) -> int | None:
    """The number of a source partition as a plain integer; None if none is given.

    Raises
    ------
    TypeError
        It is no integer. A float would be found under the integer that equals it.
    """
    number = as_integer(source_partition)
    if number is None and source_partition is not None:
        raise TypeError(f"source_partition must be an integer, and is {source_partition!r}")
    return number


def last_of(
    key: bytes, rows: Iterable[tuple[int, bytes | None, bytes | None]]
) -> RestartPoint | None:
    """Return the last restart point in these records; None if none has this key.

    Parameters
    ----------
    key : bytes
        As :func:`key_of`.
    rows : iterable of (offset, key, value)
        In offset order.
    """
    found = None
    for offset, of, value in rows:
        if of == key:
            found = RestartPoint(None if value is None else value.decode(), offset)
    return found


def _by_number(points: object) -> dict[int, str]:
    """The restart points by plain numbers; raises OptionError if they are not by integers."""
    allowed = "a string, or a dict of source partitions (integers) and strings"
    if not isinstance(points, Mapping):
        raise OptionError("restart_points", points, allowed)
    found = {as_integer(number): point for number, point in points.items()}
    if None in found:
        raise OptionError("restart_points", dict(points), allowed)
    return {number: point for number, point in found.items() if number is not None}


def chosen_points(
    points: str | Mapping[int, str], touched: frozenset[int], owned: Mapping[int, object]
) -> dict[int, str]:
    """Return the restart points a commit moves, including every source partition with records.

    Parameters
    ----------
    points : str or mapping of int to str
        From the application. A single string is for all source partitions that the transaction has
        records of, or for all that are owned if it has none.
    touched : frozenset of int
        The source partitions that the transaction has records of.
    owned : mapping
        The owned source partitions, as keys.

    Raises
    ------
    OptionError
        A source partition has records and no restart point, so they would be sent again; or what is
        given is not by source partition.
    PartitionsLostError
        A source partition is not owned (any more).
    """
    if isinstance(points, str):
        return dict.fromkeys(touched or owned, points)
    points = _by_number(points)
    if without := sorted(touched - points.keys()):
        raise OptionError(
            "restart_points",
            dict(points),
            "one for each source partition that records were sent of; source partitions "
            f"without: {', '.join(map(str, without))}",
        )
    if strangers := sorted(points.keys() - owned.keys()):
        raise PartitionsLostError(
            f"source partitions {strangers} are not owned by this member, which owns "
            f"{sorted(owned)}; leave out their restart points to commit the transaction"
        )
    return dict(points)
