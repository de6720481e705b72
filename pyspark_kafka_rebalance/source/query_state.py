"""QueryState: what the planner's calls and the pump share, and the one lock around it."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from .assignment import QueryAssignment
from .open_batches import OpenBatches
from .starts import Starts

if TYPE_CHECKING:
    from .options import SourceOptions


class QueryState:
    """Entered to be used: ``with state: state.assignment.plannable()``.

    Held for decisions only, never over I/O. What a planner hands out is decided and recorded in
    one such block, so that a release and a new range cannot cross. Members' own locks may be taken
    inside it (``may_hand_out``, for the lease), never the other way round.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.

    Attributes
    ----------
    assignment : QueryAssignment
        What is owned, and how far each partition has come.
    open_batches : OpenBatches
        What Spark was given and has not proven.
    starts : Starts
        What is known of where partitions start.
    generations : tuple of int
        Of each member, in the order of the readers; empty before the first has joined.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._lock = threading.Lock()
        self.assignment = QueryAssignment(options.include_rebalance_events)
        self.open_batches = OpenBatches()
        self.starts = Starts(options)
        self.generations: tuple[int, ...] = ()
        self._changed_at = time.monotonic()

    def __enter__(self) -> QueryState:
        self._lock.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def note_change(self) -> None:
        """Something has changed in the group, or in what is known of the partitions."""
        self._changed_at = time.monotonic()

    def unchanged_s(self) -> float:
        """For how many seconds nothing has; one number, so it takes no lock."""
        return time.monotonic() - self._changed_at

    def unpositioned(self) -> list[TopicPartition]:
        """Partitions that were assigned just now, and whose start is still to be found out."""
        with self:
            return [p for found in self.assignment.unpositioned().values() for p in found]
