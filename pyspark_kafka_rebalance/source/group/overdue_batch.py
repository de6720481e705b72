"""OverdueBatch: what to do and what to log when a batch takes too long.

If it takes longer than ``maxBatchDurationMs``, the query leaves the group until the batch is done,
so that others can have its partitions. If a revoke waits for it longer than ``revokeTimeoutMs``,
the member has given those partitions up, and the log says once what would help.

Runs on the pump's thread.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...errors import names_of
from .batch_proofs import BatchProofs
from .batches.batch_time import BatchTime, advice_on_overdue
from .clients.query_members import QueryMembers
from .others.foreign_ranges import ForeignRanges
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How long to wait for the commit log to say that a seemingly overdue batch is done.
_PROBE_S = 1.0


class OverdueBatch:
    """Watches the batches of one query.

    Parameters
    ----------
    options : SourceOptions
        The stream's options.
    state : QueryState
        Knows which batch is under way, and records what is given up.
    members : QueryMembers
        The members that leave.
    proofs : BatchProofs
        May know that the batch is done.
    foreign_ranges : ForeignRanges
        While it waits for others, the batch is not being read yet, and its clock does not run.
    """

    def __init__(
        self,
        options: SourceOptions,
        state: QueryState,
        members: QueryMembers,
        proofs: BatchProofs,
        foreign_ranges: ForeignRanges,
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._proofs = proofs
        self._foreign_ranges = foreign_ranges
        limit_ms = options.max_batch_duration_ms
        self._time = BatchTime(None if limit_ms is None else limit_ms / 1000)
        self._stands_aside = False
        self._advised = False

    @property
    def stands_aside(self) -> bool:
        """Whether the query is out of the group until the batch under way is done."""
        return self._stands_aside

    def look(self) -> None:
        """Leave the group while a batch takes longer than ``maxBatchDurationMs``.

        Once the batch is done, the members rejoin with their next poll. Their partitions are lost,
        so they are not committed; the batch has delivered those that come back later.
        """
        limit_ms = self._options.max_batch_duration_ms
        if limit_ms is None:
            return
        over = self._is_over()
        if over == self._stands_aside:
            return
        self._stands_aside = over
        if over:
            self._leave(f"a batch takes longer than maxBatchDurationMs={limit_ms}")
        else:
            log.info("group %s: the batch is done; joining again", self._options.group_id)

    def advise(self, overdue: Collection[TopicPartition]) -> None:
        """Log once what would help: these were lost while their revoke waited for the batch."""
        if not self._advised:
            self._advised = True
            advice = advice_on_overdue(overdue, self._proofs.have_commit_log)
            log.warning("group %s: %s", self._options.group_id, advice)

    def _is_over(self) -> bool:
        waits = self._foreign_ranges.are_awaited
        with self._state as state:
            batch = None if waits else state.assignment.batches.oldest()
            over = self._time.is_over(batch, time.monotonic())
        if over and not self._stands_aside:
            self._proofs.look(
                wait_s=_PROBE_S
            )  # the batch may be done while Spark waits for its next trigger
            with self._state as state:
                over = state.assignment.batches.oldest() == batch
        return over

    def _leave(self, reason: str) -> None:
        with self._state as state:
            owned = sorted(state.assignment.partitions.all())
        log.warning(
            "group %s: %s; leaving the group until it is done: %s",
            self._options.group_id,
            reason,
            names_of(owned),
        )
        for index, member in enumerate(self._members):
            with self._state as state:
                mine = [
                    p for p, o in state.assignment.partitions.all().items() if o.member == index
                ]
                state.assignment.lose(index, mine)
                state.last_change.note()
            member.leave_until_polled(reason)
