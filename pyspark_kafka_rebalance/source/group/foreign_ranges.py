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
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...consumer.pump import Pump
from ...consumer.remaining import Remaining
from ...fetch.offset_range import OffsetRange
from .marking import Look, Reads, Standing, marked_below, undecided, wait_for_owners
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState, SharedState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How often the group's committed offsets are asked for of what a batch waits for.
_CHECK_EVERY_S = 0.2

#: How often it is looked whether they, or what is owned, have changed.
_TICK_S = 0.02


class ForeignRanges:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Tells what is owned, and what the group is known to have.
    members : QueryMembers
        Whose client is asked.
    pump : Pump
        What ends it ends a wait.
    """

    def __init__(
        self, options: SourceOptions, state: QueryState, members: QueryMembers, pump: Pump
    ) -> None:
        self._options = options
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
        return marked_below(ranges, self._decided({p: (one,) for p, one in ranges.items()}))

    def owed(self, reads: Reads) -> dict[TopicPartition, Remaining]:
        """What the group is owed, where others may have delivered rows of a batch; as before.

        Of a partition the batch may read several ranges, some of them below the live position.
        """
        return {
            p: standing.owed
            for p, standing in self._decided(reads).items()
            if standing.owed is not None
        }

    def _decided(self, reads: Reads) -> Mapping[TopicPartition, Standing]:
        there: set[TopicPartition] | None = None

        def look() -> Look:
            nonlocal there
            with self._state as state:
                looked = self._standings(state, reads)
                open_ = undecided(reads, looked.standings)
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
            return wait_for_owners(reads, look, wait, session_s, time.monotonic)
        finally:
            self._awaited = frozenset()

    def look(self) -> None:
        """Ask how far others are with what a batch waits for, if one does and it is time."""
        now, awaited = time.monotonic(), self._awaited
        if not awaited or now - self._looked_at < _CHECK_EVERY_S:
            return
        self._looked_at = now
        try:
            committed = self._members.committed(sorted(awaited), LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("committed offsets of what a batch waits for not known: %r", error)
            return
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)

    def _standings(self, state: SharedState, reads: Reads) -> Look:
        """What the group is known to say of the partitions of a batch.

        Without those that are the query's own and of which nothing is committed, mostly all.
        """
        owned = state.assignment.partitions.all()
        sure = [member.may_hand_out() for member in self._members]
        marks = state.assignment.marks
        has_gaps = self._options.catch_up is not None and bool(marks.with_gaps())
        heard, standings = marks.heard(), {}
        for partition, pieces in reads.items():
            found = owned.get(partition)
            is_own = found is not None and found.position is not None and sure[found.member]
            committed = heard.get(partition)
            # Nearly all are their own, and of thousands each is looked at for each batch.
            known = marks.group_has(partition) if has_gaps else None
            if is_own and known is None and (committed or 0) <= pieces[0].start:
                continue
            standing = Standing(is_own, committed, known)
            if not is_own or standing.has_any_of(pieces):
                standings[partition] = standing
        return Look(bool(state.generations) and self._members.are_stable(), standings)
