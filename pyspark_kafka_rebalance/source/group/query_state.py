"""QueryState: what the planner's calls and the pump share, and the one lock around it.

Which lock protects what in a planner process, from the outermost to the innermost. A thread that
holds one takes only those below it, and holds none of them over I/O::

    QueryState             all of SharedState: what is owned, planned, proven; where to start
      a member's hand-outs   what of it may be committed (consumer/hand_outs.py)
        its membership         its generation and its losses (consumer/group_membership.py)
          its commits            what waits for the broker's answer (consumer/commit_loop.py)

Members are asked under the lock of the state whether they may hand out (the lease), what of their
commits is acknowledged, and told to forget commits; all three end at once. They never call back:
the pump polls them without the lock, and applies under it what they say. Whatever else two threads
use is replaced as a whole (what is deleted, what is awaited of others), or is an event of the pump.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ..catch_up_options import CatchUpOptions
from ..plan.catch_up import CatchUpPace
from .assignment import QueryAssignment
from .open_batches import OpenBatches
from .starts import Starts

if TYPE_CHECKING:
    from ..options import SourceOptions


class SharedState:
    """What is under the lock: a function that is given it is called with the lock held.

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
    moves : dict
        Where partitions are to go on after data loss, until the pump has moved them.
    deleted : dict
        Partitions found deleted, and how far each was read, until the planner has taken them.
    pace : CatchUpPace
        How much of gaps a batch reads.
    gone_elsewhere : set
        Partitions that were deleted when this query did not own them, likewise.
    changed_at : float
        When something has changed last in the group, or in what is known of the partitions.
    """

    def __init__(self, options: SourceOptions) -> None:
        self.assignment = QueryAssignment(options.include_rebalance_events)
        self.open_batches = OpenBatches()
        self.starts = Starts(options)
        self.generations: tuple[int, ...] = ()
        self.moves: dict[TopicPartition, int] = {}
        self.deleted: dict[TopicPartition, int | None] = {}
        self.pace = CatchUpPace((options.catch_up or CatchUpOptions()).batch_ms / 1000)
        self.gone_elsewhere: set[TopicPartition] = set()
        self.changed_at = time.monotonic()

    def note_change(self) -> None:
        """Something has changed in the group, or in what is known of the partitions."""
        self.changed_at = time.monotonic()


class QueryState:
    """Entered to be used: ``with state as shared: shared.assignment.partitions.plannable()``.

    Held for decisions only, never over I/O. What a planner hands out is decided and recorded in
    one such block, so that a release and a new range cannot cross.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._lock = threading.Lock()
        self._shared = SharedState(options)

    def __enter__(self) -> SharedState:
        self._lock.acquire()
        return self._shared

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()

    def unchanged_s(self) -> float:
        """For how many seconds nothing has changed."""
        with self as state:
            return time.monotonic() - state.changed_at

    def unpositioned(self) -> list[TopicPartition]:
        """Partitions that were assigned just now, and whose start is still to be found out."""
        with self as state:
            return [
                p for found in state.assignment.partitions.unpositioned().values() for p in found
            ]

    def a_revoke_waits_for_a_batch(self, release_unread: bool = False) -> bool:
        """Whether nothing settles before the next batch: a revoke waits for its row in that.

        Parameters
        ----------
        release_unread : bool
            Whether to let go first what this process has read nothing of. Not in a block of its
            own: a revoke that came between the two would seem to wait.
        """
        with self as state:
            if release_unread:
                state.assignment.release_unread()
            waiting = state.assignment.awaiting_batch(state.assignment.partitions.revoking())
            return bool(waiting) and not state.assignment.commits.by_member()
