"""EndOfRun: the waits before a run with an end (AvailableNow, Once) ends.

A trigger without a batch ends such a run. So its members join before the first batch, and a trigger
waits for brokers that do not answer, and for partitions that no live member owns.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import KafkaRebalanceError, names_of
from .group.others.coverage import COVERAGE_TICK_S
from .plan.available_now import AvailableNowRun
from .plan.batch_planner import Postponed
from .plan.data_loss import DataLoss
from .spark.read_limits import ReadAllAvailable, ReadLimit

if TYPE_CHECKING:
    from .group.membership import QueryMembership
    from .query_run import QueryRun

#: How long a run with an end waits for brokers that restart, and for a rebalance.
POSTPONED_AT_MOST_S = 60.0

#: How long one trigger waits for partitions of others, if another source of this driver is in the
#: group. That may be another ``load()`` of this query, whose members release nothing of this batch
#: before Spark has committed it. AvailableNow checks again in its next batch. Once has none, and
#: gives a member that owes no batch the time to release (two heartbeats, of 5 s each in the
#: consumer protocol).
_BESIDE_A_SIBLING_S = 1.0
_BESIDE_A_SIBLING_ONCE_S = 10.0


class EndOfRun:
    """Decides in each trigger whether a run with an end has to wait, and why."""

    def __init__(self, data_loss: DataLoss) -> None:
        self._data_loss = data_loss
        self._waited_s = 0.0  # for partitions of others, since the last batch with records

    def wait_for_members(
        self, run: QueryRun, limit: ReadLimit, available_now: AvailableNowRun | None
    ) -> None:
        """Wait, before the first batch, until all unread partitions have a live owner."""
        ends = None if available_now is None else available_now.ends
        run.membership.coverage.wait(ends, run.is_asked_to_stop, lambda: _patience_s(run, limit))

    def has_read(self) -> None:
        """Note that a batch has records."""
        self._waited_s = 0.0

    def wait_for_batch(
        self,
        run: QueryRun,
        limit: ReadLimit,
        available_now: AvailableNowRun | None,
        plan: Callable[[], dict[str, Any] | Postponed],
    ) -> dict[str, Any] | Postponed | None:
        """Plan until there is a batch, or nothing is left to read; returns the last plan.

        None if another ``load()`` of the query may own the rest: this waits only briefly for it,
        and an empty batch brings another trigger. The wait ends once the run is asked to stop. It
        plans at least once; ``available_now`` is None with Once.

        Raises KafkaRebalanceError if the wait timed out; names the partitions.
        """
        membership = run.membership
        planned = plan()
        began_at = answered_at = time.monotonic()
        while isinstance(planned, Postponed) and not run.is_asked_to_stop():
            now = time.monotonic()
            if planned.partitions:
                if now - answered_at >= POSTPONED_AT_MOST_S:
                    raise KafkaRebalanceError(
                        f"these partitions were not read to the end within {POSTPONED_AT_MOST_S:g} "
                        "s, because their brokers or the group coordinator do not answer: "
                        f"{names_of(planned.partitions)}"
                    )
                membership.wait_for_change()
            elif uncovered := self._uncovered(membership, available_now):
                waited_s = now - began_at
                if self._waited_s + waited_s >= membership.coverage.within_s:
                    raise membership.coverage.error(uncovered)
                patience_s = _patience_s(run, limit)
                if patience_s is not None and waited_s >= patience_s:
                    self._waited_s += waited_s
                    return None
                membership.wait_for_change(COVERAGE_TICK_S)
                answered_at = now
            else:
                return planned
            planned = plan()
        return planned

    def _uncovered(
        self, membership: QueryMembership, run: AvailableNowRun | None
    ) -> list[TopicPartition]:
        """The partitions that this run would leave unread and that no other live member owns."""
        if run is None:
            return []
        uncovered = membership.coverage.uncovered(run.ends)
        left_behind = run.left_behind(membership.plannable())
        if not (asked := {*uncovered, *left_behind}):
            return []
        try:
            deleted = membership.deletions.ask(asked)
        except kafka_errors.KafkaTimeoutError:
            return sorted(asked)
        run.read_by_group(membership.coverage.read_by_group)
        self._data_loss.run_does_without(run, deleted)
        return [p for p in uncovered if p in run.ends]


def _patience_s(run: QueryRun, limit: ReadLimit) -> float | None:
    """How long one trigger waits for partitions of others; None: as long as the group may take."""
    if not run.may_have_siblings():
        return None
    return _BESIDE_A_SIBLING_ONCE_S if isinstance(limit, ReadAllAvailable) else _BESIDE_A_SIBLING_S
