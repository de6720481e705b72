"""Taken: what a poll has taken, until the application has it.

A poll can end anywhere: by Ctrl-C, or by any exception that a signal handler raises. Then nothing
of what it took was handed out, and the next poll brings it. So a poll changes nothing that counts
as handed out. It notes what is to change, and the last thing it does before it returns is to set
``returned``. The next call of any kind carries the notes out.

Invariants:
 1. A partition's position is kept here before the poll moves it. Until the poll has returned, this
    is where the application is: for ``position``, for commits, and for the next poll.
 2. Notes are carried out in order, once the poll has returned, and each is removed after that. To
    carry out a note twice is the same as once: that, too, may be interrupted.
 3. What is forgotten of a partition (a loss, a revoke, a seek) is forgotten here too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from kafka.structs import OffsetAndMetadata, TopicPartition

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

#: What is to be done for a partition once the poll has returned.
Note = tuple[TopicPartition, Callable[[], None]]


class Taken:
    """What one poll has taken."""

    __slots__ = ("_noted", "notes", "positions", "returned")

    def __init__(self, returned: bool = False) -> None:
        #: Whether the application has it. Set by the thread that polls; the rest needs the lock of
        #: ``HandOuts``, except that this thread also adds positions.
        self.returned = returned
        #: Where the application was when the poll began, in the partitions that it has moved.
        self.positions: dict[TopicPartition, OffsetAndMetadata] = {}
        self.notes: deque[Note] = deque()
        self._noted: set[TopicPartition] = set()

    def position(self, partition: TopicPartition) -> OffsetAndMetadata | None:
        """Where the application is, if the poll has gone further and not returned."""
        return None if self.returned else self.positions.get(partition)

    def note(self, partition: TopicPartition, returned: Callable[[], None]) -> None:
        """Carry this out once the poll has returned; locked."""
        self.notes.append((partition, returned))
        self._noted.add(partition)

    def carry_out(self) -> None:
        """Change what the hand-out changes, once the poll has returned; locked."""
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
    """Make a poll return what it has taken, or take nothing, whatever ends it.

    Python itself may raise an exception after the last statement here, before the caller has
    assigned the result: then that is lost to the caller, as that of any function is.
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
            # Python's Condition, interrupted as its wait ends, hides what the handler has raised.
            if str(error) == "release unlocked lock" and error.__context__ is not None:
                raise error.__context__ from None
            raise

    return poll_and_return
