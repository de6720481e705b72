"""Records that need no more than a copy into an open batch, without the producer's lock.

Only compiled code can do that safely: it holds the GIL from its first check to its last. In Python
a record is never appended at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .compiled import compiled
from .compiled_encoder import Records

#: ``append(transaction, key, value, headers, partition, timestamp_ms)`` of an `Appender`.
Append = Callable[[int, Any, Any, Any, "int | None", "int | None"], bool]


class Room(Protocol):
    """What all topics of a producer share.

    Attributes
    ----------
    used, most : int
        Bytes of records, and below how many one more may come.
    accepts : int
        The transaction that takes records.
    locked : callable or None
        Says whether the lock is held that guards all of this; None: nothing comes at once.
    """

    used: int
    most: int
    accepts: int
    locked: Callable[[], bool] | None


class Appender(Protocol):
    """The open batches of one topic; guarded by the producer's lock, but for ``append``.

    Attributes
    ----------
    size : int
        Bytes in all of them.
    partitions : int
        How many the topic has.
    sticky : int
        Where records without a key go.
    ready : bool
        Whether records may come at once.
    """

    size: int
    partitions: int
    sticky: int
    ready: bool

    def append(
        self,
        transaction: int,
        key: Any,
        value: Any,
        headers: Any,
        partition: int | None,
        timestamp_ms: int | None,
        /,
    ) -> bool:
        """Append a record and return True.

        Or do nothing and return False, if there is more to do, to wait for, or to complain about.
        Any thread, without the lock; False if another one has it.
        """
        ...

    def know(self, partition: int, records: Any, /) -> None:
        """Append a partition's records to these from now on; None: to none that are known."""
        ...

    def open(self) -> list[int]:
        """The partitions that have records, in order."""
        ...


class PythonRoom:
    """See `Room`."""

    def __init__(self, most: int) -> None:
        self.used = self.accepts = 0
        self.most = most
        self.locked: Callable[[], bool] | None = None


class PythonAppender:
    """See `Appender`; it never appends."""

    def __init__(self, room: Room) -> None:
        self.size = self.partitions = self.sticky = 0
        self.ready = False
        self._records: dict[int, Records] = {}

    def append(self, *_: Any) -> bool:
        """See `Appender.append`."""
        return False

    def know(self, partition: int, records: Records | None, /) -> None:
        """See `Appender.know`."""
        self._records.pop(partition, None)
        if records is not None:
            self._records[partition] = records

    def open(self) -> list[int]:
        """See `Appender.open`."""
        return sorted(partition for partition, records in self._records.items() if len(records))


def new_room(most: int) -> Room:
    """Return an empty one, compiled if possible."""
    room: Room = (compiled.Room if compiled else PythonRoom)(most)
    return room


def new_appender(room: Room) -> Appender:
    """Return one without batches, compiled if possible."""
    appender: Appender = (compiled.Appender if compiled else PythonAppender)(room)
    return appender
