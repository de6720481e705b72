"""ForeignRanges: waits for the owners of what a batch reads and this query does not own.

Mostly a replay's: another member may have got what the process before this one had planned.
``marking`` decides which rows are marked ``lost``, and how long it is waited for.

The planner's thread waits (:meth:`ForeignRanges.lost_below`), the pump's asks for what the group
has committed meanwhile (:meth:`ForeignRanges.look`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...consumer.pump import Pump
from ...fetch.offset_range import OffsetRange
from .marking import Look, Standing, undecided, wait_for_owners
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState, SharedState

log = logging.getLogger(__name__)

#: How often the group's committed offsets are asked for of what a batch waits for.
_CHECK_EVERY_S = 0.2

#: How often it is looked whether they, or what is owned, have changed.
_TICK_S = 0.02


class ForeignRanges:
    """For one query.

    Parameters
    ----------
    state : QueryState
        Tells what is owned, and what the group is known to have.
    members : QueryMembers
        Whose client is asked.
    pump : Pump
        What ends it ends a wait.
    """

    def __init__(self, state: QueryState, members: QueryMembers, pump: Pump) -> None:
        self._state = state
        self._members = members
        self._pump = pump
        self._looked_at = 0.0
        # What another has, and a batch waits for; replaced, because two threads use it.
        self._awaited: frozenset[TopicPartition] = frozenset()

    @property
    def are_awaited(self) -> bool:
        """Whether a batch waits for the owners of its ranges: it is not read yet."""
        return bool(self._awaited)

    def lost_below(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        """Below which offsets another has delivered rows of a batch; waits until that is known.

        Raises what ended the membership.
        """
        there: set[TopicPartition] | None = None

        def look() -> Look:
            nonlocal there
            with self._state as state:
                looked = self._standings(state, ranges)
                open_ = undecided(ranges, looked.standings)
            if open_:  # of what it does not subscribe to, or what is deleted, it gets nothing
                there = self._members.partitions() if there is None else there
                standings = {p: at for p, at in looked.standings.items() if p not in open_ - there}
                looked = Look(looked.joined, standings)
            self._awaited = open_ & (there or set())
            return looked

        def wait() -> None:
            self._pump.wait(_TICK_S)
            self._pump.raise_failure()

        def session_s() -> float:
            return self._members.session_timeout_ms() / 1000

        try:
            return wait_for_owners(ranges, look, wait, session_s, time.monotonic)
        finally:
            self._awaited = frozenset()

    def look(self) -> None:
        """Ask how far others are with what a batch waits for, if one does and it is time."""
        now, awaited = time.monotonic(), self._awaited
        if not awaited or now - self._looked_at < _CHECK_EVERY_S:
            return
        self._looked_at = now
        try:
            committed = self._members[0].committed_offsets(sorted(awaited), LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("committed offsets of what a batch waits for not known: %r", error)
            return
        with self._state as state:
            state.assignment.acknowledge(committed)

    def _standings(self, state: SharedState, ranges: Mapping[TopicPartition, OffsetRange]) -> Look:
        """What the group is known to say of the partitions of a batch.

        Without those that are the query's own and of which nothing is committed, mostly all.
        """
        owned = state.assignment.partitions.all()
        sure = [member.may_hand_out() for member in self._members]
        standings = {}
        for partition, reads in ranges.items():
            found = owned.get(partition)
            is_own = found is not None and found.position is not None and sure[found.member]
            committed = state.assignment.marks.acknowledged(partition)
            if not is_own or (committed or 0) > reads.start:
                standings[partition] = Standing(is_own, committed)
        return Look(bool(state.generations) and self._members.are_stable(), standings)
