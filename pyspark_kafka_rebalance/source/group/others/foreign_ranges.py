"""ForeignRanges: waits for the owners of partitions that a batch reads but the query does not own.

This happens mostly in a replay: another member may have got what the previous process had planned.
``marking`` decides which rows are marked ``lost``, and how long to wait.

The planner's thread waits (:meth:`ForeignRanges.lost_below`). Meanwhile the pump's thread asks what
the group has committed (:meth:`ForeignRanges.look`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....consumer.pump import Pump
from ....fetch.offset_range import OffsetRange
from ..clients.query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from ..query_state import QueryState, SharedState
from .marking import Look, Reads, Standing, marked_below, undecided, wait_for_owners

if TYPE_CHECKING:
    from ...options import SourceOptions

log = logging.getLogger(__name__)

#: How often to fetch the committed offsets of the partitions that a batch waits for.
_CHECK_EVERY_S = 0.2

#: How often to check whether those offsets, or the ownership, have changed.
_TICK_S = 0.02


class ForeignRanges:
    """Waits on behalf of one query.

    Parameters
    ----------
    options : SourceOptions
        The stream's options.
    state : QueryState
        Knows what is owned, and what the group is known to have.
    members : QueryMembers
        Their client makes the look-ups.
    pump : Pump
        Waits end when it ends.
    """

    def __init__(
        self, options: SourceOptions, state: QueryState, members: QueryMembers, pump: Pump
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._pump = pump
        self._looked_at = 0.0
        # Partitions of others that a batch waits for. Replaced, never changed: two threads use it.
        self._awaited: frozenset[TopicPartition] = frozenset()
        # Those of them whose committed offsets are in the state, which protects this as well.
        self._answered: frozenset[TopicPartition] = frozenset()

    @property
    def are_awaited(self) -> bool:
        """Whether a batch waits for the owners of its ranges, and so is not being read yet."""
        return bool(self._awaited)

    def lost_below(self, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, int]:
        """The offsets below which others have delivered rows of a batch; waits until known.

        Raises what ended the membership.
        """
        return marked_below(ranges, self._decided({p: (one,) for p, one in ranges.items()}))

    def owed(self, reads: Reads) -> dict[TopicPartition, Remaining]:
        """What the group is owed of the partitions where others may have delivered rows.

        As :meth:`lost_below`, but the batch may read several ranges of a partition, some of them
        below the live position.
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
                looked, answered = self._standings(state, reads), self._answered
            if open_ := undecided(reads, looked.standings):
                there = self._members.partitions() if there is None else there
                left_out = {
                    p: looked.standings[p]._replace(is_left_out=True)
                    for p in open_ & answered
                    if p not in there
                }
                looked = Look(looked.joined, {**looked.standings, **left_out})
                open_ = open_.difference(left_out)
            self._awaited = open_
            return looked

        def wait() -> None:
            self._pump.wait(_TICK_S)
            self._pump.raise_failure()

        def session_s() -> float:
            return self._members.session_timeout_ms() / 1000

        try:
            return wait_for_owners(reads, look, wait, session_s, time.monotonic)
        finally:
            with self._state:
                self._awaited = self._answered = frozenset()

    def look(self) -> None:
        """Ask how far others are with what a batch waits for, if one waits and it is time."""
        now, awaited = time.monotonic(), self._awaited
        if not awaited or now - self._looked_at < _CHECK_EVERY_S:
            return
        self._looked_at = now
        try:
            committed = self._members.committed(sorted(awaited), LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info(
                "cannot look up the committed offsets of the partitions that a batch waits for: %r",
                error,
            )
            return
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
            if self._awaited:
                self._answered = awaited

    def _standings(self, state: SharedState, reads: Reads) -> Look:
        """The standings of a batch's partitions, as far as they are known.

        Leaves out partitions that the query owns and of which the group has nothing of the batch:
        usually all of them.
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
            # Nearly all are the query's own, and this runs for thousands of them in each batch.
            known = marks.group_has(partition) if has_gaps else None
            if is_own and known is None and (committed or 0) <= pieces[0].start:
                continue
            standing = Standing(is_own, committed, known)
            if not is_own or standing.has_any_of(pieces):
                standings[partition] = standing
        return Look(bool(state.generations) and self._members.are_stable(), standings)
