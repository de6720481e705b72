"""CatchUp: plans the reads below the live positions (``parallelRebalance=live``).

Used by the planner's thread. ``plan/catch_up`` decides how much is read, lowest offsets first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap, without
from ..plan.available_now import AvailableNowRun
from ..plan.catch_up import plan_catch_up, within
from ..plan.data_loss import DataLoss, LostOfGap
from ..spark.read_limits import ReadAllAvailable, ReadLimit
from .batches.batch import NOTHING, CaughtUp
from .clients.query_part import QueryCore, QueryPart
from .logs.log_ends import LogEnds


class CatchUp(QueryPart):
    """Drops deleted offsets from the gaps, and shares the rest out to the next batch."""

    def __init__(self, core: QueryCore, log_ends: LogEnds) -> None:
        super().__init__(core)
        self._log_ends = log_ends

    def plan(
        self,
        limit: ReadLimit,
        run: AvailableNowRun | None,
        loss: DataLoss,
        ends: Mapping[TopicPartition, int],
    ) -> CaughtUp:
        """Decide which parts of gaps the next batch reads; handed out with the live ranges.

        ``ends`` are the ends that the live ranges were planned with. A gap can exceed the last
        stable offset if a ``read_uncommitted`` reader has set it aside: a batch that read that far
        would wait for the transaction, with all its live records.
        """
        if self._options.catch_up is None:
            return NOTHING
        gaps = self._plannable()
        if lost := self._lost_of(gaps):
            loss.gap_is_lost(lost)
            with self._state as state:
                for one in lost:
                    state.assignment.positioning.lose_gaps(one.partition, one.log_start)
            gaps = self._plannable()
        gaps = within(run.cut(ends) if run is not None else ends, gaps)
        if not gaps:
            return NOTHING
        at_most = self._options.catch_up.max_offsets_per_trigger
        if isinstance(limit, ReadAllAvailable):
            at_most = None
        elif at_most is None:
            with self._state as state:
                at_most = state.pace.allowance
        return plan_catch_up(gaps, at_most)

    def unread(self, run: AvailableNowRun | None) -> Collection[TopicPartition]:
        """The partitions with gaps that an AvailableNow run still has to read."""
        if run is None or self._options.catch_up is None:
            return ()
        return within(run.ends, self._plannable()).keys()

    def _plannable(self) -> Mapping[TopicPartition, Sequence[Gap]]:
        with self._state as state:
            return state.assignment.plannable_gaps()

    def _lost_of(self, gaps: Mapping[TopicPartition, Sequence[Gap]]) -> list[LostOfGap]:
        if not gaps:
            return []
        begins = self._log_ends.log_starts(gaps)
        return [
            LostOfGap(p, without(found, begins[p]), begins[p])
            for p, found in sorted(gaps.items())
            if found[0].start < begins.get(p, 0)
        ]
