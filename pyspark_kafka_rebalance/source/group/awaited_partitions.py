"""AwaitedPartitions: the partitions to wait for before the planner orders by timestamps.

A partition can be on its way from one member of the query to another, above all while they join.
Its records would come late if the other partitions were read in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kafka.structs import TopicPartition

from .query_members import QueryMembers
from .query_state import QueryState

#: How long to wait for a missing partition. It may have gone to another query of the group, whose
#: members can keep ours from settling.
_IN_TRANSIT_AT_MOST_S = 10.0

#: How long nothing must change before the members have settled.
_SETTLED_FOR_S = 1.0

#: How much longer if a partition is missing, besides a heartbeat interval: a member learns with its
#: next heartbeat what another one has released, and until then nothing shows that the partition is
#: on its way. On a busy machine a heartbeat and its answer have taken more than a second.
_HEARD_WITHIN_S = 1.0


class AwaitedPartitions:
    """Tracks them for one query; used only by the planner's thread.

    Parameters
    ----------
    state : QueryState
        Knows what is owned.
    members : QueryMembers
        Know whether they have settled.
    heartbeat_interval_s : float
        How often each member hears from the coordinator.
    clock : callable
        Seconds, monotonic.
    """

    def __init__(
        self,
        state: QueryState,
        members: QueryMembers,
        heartbeat_interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._members = members
        self._heard_within_s = heartbeat_interval_s + _HEARD_WITHIN_S
        self._clock = clock
        #: What the query had when the members last had settled, and has had since; None before.
        self._had: frozenset[TopicPartition] | None = None
        self._missing_since: dict[TopicPartition, float] = {}

    def now(self, planned: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Partitions that cannot be read now, and those that may come back to a member.

        A batch is planned from the positions of ``planned``, which is older than the ends of their
        logs: a broker may have taken seconds to tell these. What has come since is not read.

        A revoked partition is left out once the members have settled, or at once if there is only
        one member. Before they first settle, every partition of the query's topics is expected.
        """
        with self._state as state:
            partitions = state.assignment.partitions
            positions, owned = partitions.plannable(), partitions.all()
            starting = {p for found in partitions.unpositioned().values() for p in found}
            starting.update(positions.keys() - planned)
            certain = [member.may_hand_out() for member in self._members]
            if not all(certain):
                starting.update(p for p in positions if not certain[owned[p].member])
        had = frozenset(self._members.partitions()) if self._had is None else self._had
        missing = had - positions.keys()
        quiet_s = _SETTLED_FOR_S + (self._heard_within_s if missing else 0.0)
        if self._members.have_settled() and self._state.unchanged_s() >= quiet_s:
            self._had, self._missing_since = frozenset(positions), {}
            return starting
        if self._had is not None:
            # One that is read before all are quiet can move again, and again be awaited.
            self._had = had = had | positions.keys()
            if len(self._members) == 1:
                return starting  # a partition that leaves the only member leaves the query
        now = self._clock()
        # Dated anew for what was there in the meantime: joins can follow each other for minutes.
        self._missing_since = {p: self._missing_since.get(p, now) for p in missing}
        gone = {p for p, at in self._missing_since.items() if now - at >= _IN_TRANSIT_AT_MOST_S}
        if gone:
            self._had = (had | positions.keys()) - gone
        return starting | (missing - gone)
