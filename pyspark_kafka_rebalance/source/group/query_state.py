"""QueryState: the state that the planner's calls and the pump share, and the one lock around it.

The locks of a planner process, from the outermost to the innermost. A thread that holds one takes
only those below it, and holds none of them over I/O::

    QueryState             all of SharedState: ownership, plans, proofs, starts
      a member's hand-outs   which offsets may be committed (progress/hand_outs.py)
        its membership         its generation and its losses (membership/group_membership.py)
          its commits            unanswered commits (commits/commit_loop.py)

Three calls to members are made under the lock of the state: whether they may hand out (the lease),
which commits are acknowledged, and forgetting commits. None of them blocks. Members never call
back: the pump polls them without the lock, and applies the results under it. Anything else that two
threads use is replaced as a whole (deleted partitions, partitions awaited from others), or is an
event of the pump.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...consumer.offsets.commit_metadata import GroupCommit, Remaining
from ..offsets.query_identity import QueryIdentity
from ..options.catch_up_options import CatchUpOptions
from ..plan.catch_up import CatchUpPace
from .owned.assignment import QueryAssignment
from .owned.own_commits import OwnCommits
from .owned.owned_partitions import LastChange
from .owned.starts import Starts

if TYPE_CHECKING:
    from ..options.source_options import SourceOptions


class SharedState:
    """The state under the lock: a function that takes it is called with the lock held."""

    def __init__(self, options: SourceOptions, own_commits: OwnCommits) -> None:
        self.own_commits = own_commits
        self.assignment = QueryAssignment(options.include_rebalance_events)
        self.starts = Starts(options)
        #: Of each member, in reader order; empty before the first has joined.
        self.generations: tuple[int, ...] = ()
        #: Positions to continue from after data loss, until the pump has moved the partitions.
        self.moves: dict[TopicPartition, int] = {}
        #: Found deleted, and how far each was read, until the planner has taken them.
        self.deleted: dict[TopicPartition, int | None] = {}
        #: Deleted while this query did not own them; likewise.
        self.gone_elsewhere: set[TopicPartition] = set()
        self.pace = CatchUpPace((options.catch_up or CatchUpOptions()).batch_ms / 1000)
        self.last_change = LastChange()
        #: Whose offsets are to be committed once more, to say that the sink decides the batches.
        self.to_say: set[TopicPartition] = set()
        #: Assigned since ``AwaitedPartitions`` last asked; empty without ``maxTaskIdleMs``.
        self.gained: set[TopicPartition] = set()

    def seen(self, partition: TopicPartition, commit: GroupCommit) -> Remaining:
        """The partition's remaining offsets for this query, as of this commit."""
        proven = self.assignment.marks.positions().get(partition)
        gaps = self.assignment.gaps.unproven(partition)
        return self.own_commits.seen(partition, commit, proven, gaps)

    def is_behind_by_sink(self, partition: TopicPartition, commit: GroupCommit) -> bool:
        """Whether the group wins over what this query knows, as its sink decides its batches.

        Not while a batch reads the partition that is not decided yet.
        """
        assignment = self.assignment
        return (
            self.own_commits.by_sink
            and not assignment.batches.have(partition)
            and assignment.positioning.is_beyond(partition, commit.remaining)
        )


class QueryState:
    """Use it as a context: ``with state as shared: shared.assignment.partitions.plannable()``.

    The lock is held only for decisions, never over I/O. The planner decides and records its ranges
    in one such block, so that a release and a new range cannot cross.
    """

    def __init__(self, options: SourceOptions, own_commits: OwnCommits | None = None) -> None:
        self._lock = threading.Lock()
        self._shared = SharedState(options, own_commits or OwnCommits(QueryIdentity()))

    def __enter__(self) -> SharedState:
        self._lock.acquire()
        return self._shared

    def __exit__(self, *exception: object) -> None:
        self._lock.release()

    def unchanged_s(self) -> float:
        """Seconds since the last change."""
        with self as state:
            return state.last_change.unchanged_s()

    def unpositioned(self) -> list[TopicPartition]:
        """Newly assigned partitions whose start is not known yet."""
        with self as state:
            return [
                p for found in state.assignment.partitions.unpositioned().values() for p in found
            ]

    def a_revoke_waits_for_a_batch(self, release_unread: bool = False) -> bool:
        """Whether nothing can settle before the next batch, because a revoke waits for a batch.

        ``release_unread`` releases first the partitions that this process has not read. This
        happens under the same lock: a revoke requested in between would seem to wait.
        """
        with self as state:
            if release_unread:
                state.assignment.release_unread()
            waiting = state.assignment.awaiting_batch(state.assignment.partitions.revoking())
            return bool(waiting) and not state.assignment.commits.by_member()
