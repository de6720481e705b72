"""AwaitedPartitions: of what the planner has yet to hear before it may order by timestamps.

A partition may be on its way from one member of the query to another, most of all when they join:
what it has would come late if the others were read meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kafka.structs import TopicPartition

from .query_members import QueryMembers
from .query_state import QueryState

#: So long it is waited for what may as well have gone to another query of the group, whose
#: members may keep ours from settling.
_IN_TRANSIT_AT_MOST_S = 10.0

#: In the consumer protocol what one member has released another learns of by its next heartbeat,
#: and meanwhile nothing tells that anything is on its way.
_SETTLED_FOR_S = 1.0


class AwaitedPartitions:
    """For one query; the planner's thread alone asks.

    Parameters
    ----------
    state : QueryState
        Tells what is owned.
    members : QueryMembers
        Tell whether they have settled.
    clock : callable
        Seconds that pass.
    """

    def __init__(
        self,
        state: QueryState,
        members: QueryMembers,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._state = state
        self._members = members
        self._clock = clock
        self._had: Collection[TopicPartition] | None = None  # when the members had settled last
        self._missing_since: float | None = None

    def now(self) -> Collection[TopicPartition]:
        """Those that cannot be read now, and those that may come back to one of the members.

        Not what is revoked. Before the members have first settled, all that the query reads as one
        of its group.
        """
        with self._state as state:
            partitions = state.assignment.partitions
            positions, owned = partitions.plannable(), partitions.all()
            starting = {p for found in partitions.unpositioned().values() for p in found}
            certain = [member.may_hand_out() for member in self._members]
            if not all(certain):
                starting.update(p for p in positions if not certain[owned[p].member])
        if self._members.have_settled() and self._state.unchanged_s() >= _SETTLED_FOR_S:
            self._had, self._missing_since = positions.keys(), None
            return starting
        if self._had is not None and len(self._members) == 1:
            return starting  # what leaves the one member leaves the query
        had = self._members.partitions() if self._had is None else self._had
        missing = frozenset(had) - positions.keys()
        if not missing:
            return starting
        now = self._clock()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= _IN_TRANSIT_AT_MOST_S:
            self._had = positions.keys()
        return starting | missing
