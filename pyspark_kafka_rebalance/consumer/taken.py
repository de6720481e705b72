"""Taken: the records that a poll has taken, until the application has them.

A poll can end anywhere: by Ctrl-C, or any exception of a signal handler. Then none of its records
were handed out, and the next poll returns them. So a poll only notes its changes of the hand-outs,
and sets ``returned`` last, right before it returns. The next call of any kind carries the notes
out.

Invariants:
 1. A partition's position is kept here before the poll moves it. Until the poll has returned, this
    is the application's position, for ``position``, commits, and the next poll.
 2. Notes are carried out in order, once the poll has returned, and each is removed afterwards.
    Notes are idempotent, because this, too, may be interrupted.
 3. A partition that is forgotten (a loss, a revoke, a seek) is forgotten here, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kafka.structs import OffsetAndMetadata, TopicPartition

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: A change for a partition, to be made once the poll has returned.
Note = tuple[TopicPartition, Callable[[], None]]


class Taken:
    """One poll's notes, and the positions before it."""

    __slots__ = ("_noted", "notes", "positions", "returned")

    def __init__(self, returned: bool = False) -> None:
        #: Whether the application has the records. Set by the polling thread, which also adds
        #: positions; all else needs the lock of ``HandOuts``.
        self.returned = returned
        #: The application's positions at the start of the poll, in the partitions that it has
        #: moved.
        self.positions: dict[TopicPartition, OffsetAndMetadata] = {}
        self.notes: deque[Note] = deque()
        self._noted: set[TopicPartition] = set()

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """The application's position, if the poll has moved it and not returned."""
        return None if self.returned else self.positions.get(partition)

    def note(self, partition: TopicPartition, returned: Callable[[], None]) -> None:
        """Make this change once the poll has returned; locked."""
        self.notes.append((partition, returned))
        self._noted.add(partition)

    def carry_out(self) -> None:
        """Make the noted changes if the poll has returned; locked."""
        while self.returned and self.notes:
            self.notes[0][1]()
            self.notes.popleft()

    def has_noted(self, partition: TopicPartition) -> bool:
        """Whether the poll hands out records of the partition; locked."""
        return partition in self._noted

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions (invariant 3); locked."""
        for partition in self.positions.keys() & set(partitions):
            del self.positions[partition]
        if self.notes:
            self.notes = deque(note for note in self.notes if note[0] not in partitions)
            self._noted.difference_update(partitions)


class _TakesBack(Protocol):
    """``HandOuts``."""

    def begin_poll(self) -> Taken: ...

    def take_back(self) -> None: ...


def returns_what_it_takes(
    poll: Callable[Concatenate[Any, Parameters], Result],
) -> Callable[Concatenate[Any, Parameters], Result]:
    """Make a poll either return the records that it takes or take none, however it ends.

    Python may raise an exception after the last statement here, before the caller has assigned the
    result: then the caller loses it, as with any function.
    """

    @wraps(poll)
    def poll_and_return(self: Any, /, *args: Parameters.args, **named: Parameters.kwargs) -> Result:
        hand_outs: _TakesBack = self._hand_outs
        taken = hand_outs.begin_poll()
        try:
            result = poll(self, *args, **named)
            taken.returned = True
            return result
        except BaseException as error:
            taken.returned = False
            hand_outs.take_back()
            # Python's Condition, interrupted as its wait ends, hides the handler's exception.
            if str(error) == "release unlocked lock" and error.__context__ is not None:
                raise error.__context__ from None
            raise

    return poll_and_return
