"""AwaitedPartitions: the partitions to wait for before the planner orders by timestamps.

A partition can be on its way from one member of the query to another, above all while they join.
Its records would come late if the other partitions were read in the meantime.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from kafka.structs import TopicPartition

from ..clients.query_members import QueryMembers
from ..query_state import QueryState

#: How long to wait for a partition that no member owns. It may have gone to another query of the
#: group, whose members can keep ours from settling.
_IN_TRANSIT_AT_MOST_S = 10.0

#: How long nothing must change before the members have settled. If a partition is missing, all of
#: them must also have been told what has become of it (``LastChange``).
_SETTLED_FOR_S = 1.0


class AwaitedPartitions:
    """Tracks them for one query; used only by the planner's thread.

    Parameters
    ----------
    state : QueryState
        Knows what is owned.
    members : QueryMembers
        Know whether they have settled.
    clock : callable
        Seconds, monotonic.
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
        #: What the query had when the members last had settled, and has had since; None before.
        self._had: frozenset[TopicPartition] | None = None
        self._missing_since: dict[TopicPartition, float] = {}

    def now(self, planned: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Partitions that cannot be read now, and those that may come back to a member.

        A batch is planned from the positions of ``planned``, which is older than the ends of their
        logs: a broker may have taken seconds to tell these. What has come since is not read.

        A revoked partition is left out once the members have settled, or at once if there is only
        one member. One whose revoke is requested is still the query's: the group may take the
        request back. Before they first settle, every partition of the query's topics is expected.
        """
        with self._state as state:
            partitions = state.assignment.partitions
            positions, owned = partitions.plannable(), partitions.all()
            starting = {p for found in partitions.unpositioned().values() for p in found}
            starting.update(positions.keys() - planned)
            certain = [member.may_hand_out() for member in self._members]
            if not all(certain):
                starting.update(p for p in positions if not certain[owned[p].member])
            gained, state.gained = state.gained, set()
            known = state.assignment.marks.known() if self._had is None else {}
            change = state.last_change
            is_quiet, all_told = change.unchanged_s() >= _SETTLED_FOR_S, change.all_told
        had = frozenset(self._members.partitions()) if self._had is None else self._had
        # What a member got can have moved on by now, even if no batch was planned in between.
        had |= owned.keys() | gained
        missing = had - positions.keys()
        if self._had is not None and len(self._members) == 1:
            missing &= owned.keys()  # what has left the only member has left the query
        # A killed planner's members own what they had until their sessions end, and in KIP-848 ours
        # are told so: that is not theirs for good, if the checkpoint knows it.
        is_settled = not missing or (all_told and missing.isdisjoint(known))
        if self._members.have_settled() and is_quiet and is_settled:
            self._had, self._missing_since = frozenset(owned), {}
            return starting
        awaited = self._maybe_in_transit(missing, owned, gained)
        gone = missing - awaited
        if self._had is not None or gone:
            self._had = had - gone
        return starting | awaited

    def _maybe_in_transit(
        self,
        missing: frozenset[TopicPartition],
        owned: Collection[TopicPartition],
        gained: Collection[TopicPartition],
    ) -> frozenset[TopicPartition]:
        """Those of the missing partitions that are owned, or were within the last ten seconds.

        Joins can follow each other for minutes, and a revoke can wait for a batch for as long.
        """
        now, since = self._clock(), self._missing_since
        self._missing_since = {
            p: now if p in gained else since.get(p, now) for p in missing.difference(owned)
        }
        gone = {p for p, at in self._missing_since.items() if now - at >= _IN_TRANSIT_AT_MOST_S}
        return missing - gone
