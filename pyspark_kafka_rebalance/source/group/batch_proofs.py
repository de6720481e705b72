"""BatchProofs: which of the query's batches are proven, by Spark's calls and by its commit log.

``open_batches`` describes the proofs. While something waits for a batch, and at the end, the source
also checks the query's commit log (option ``checkpointLocation``). The log has a batch before
Spark's next trigger, and is the only proof of the last batch.

The planner's thread reports Spark's calls; the pump's thread checks the log, and handles a batch
that takes too long (:class:`OverdueBatch`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Sequence
from typing import Any

from kafka.structs import TopicPartition

from ...errors import names_of
from ..checkpoint.commit_log_watch import CommitLogWatch
from ..plan.catch_up import Share
from .batches.batch import Batch
from .batches.open_batches import BatchTime, advice_on_overdue
from .clients.query_part import QueryCore, QueryPart
from .others.foreign_ranges import ForeignRanges
from .query_state import SharedState

log = logging.getLogger(__name__)

#: How often an empty batch keeps Spark going, when there is nothing new to read and Spark may not
#: have logged the end of a batch yet (async progress tracking logs once a second by default).
_ASK_FOR_COMMIT_S = 1.0


class BatchProofs(QueryPart):
    """Every call takes the state's lock, and wakes the pump if it proves a batch."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        location = core.options.checkpoint_location
        self._commit_log = CommitLogWatch(location) if location else None
        self._asked_at = 0.0

    # -- Spark's calls ----------------------------------------------------------------------------

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether Spark has been seen to track this query's progress asynchronously."""
        with self._state as state:
            return state.assignment.batches.progress_is_asynchronous

    def progress_is_synchronous(self) -> None:
        """Spark does not track progress asynchronously with this query's trigger."""
        with self._state as state:
            state.assignment.batches.progress_is_synchronous()

    def planned(self, offset: dict[str, Any]) -> None:
        """Spark gets this offset as the end of the next batch."""
        with self._state as state:
            batch = state.assignment.batches.give_to_spark(offset, time.monotonic())
            catch_up = self._options.catch_up
            measures = catch_up is not None and catch_up.max_offsets_per_trigger is None
            if measures and batch.catch_up:
                number = sum(len(piece) for pieces in batch.catch_up.values() for piece in pieces)
                batch.share = Share(number, state.pace.allowance)

    def begin_trigger(self, start: dict[str, Any]) -> None:
        """Spark plans the batch after ``start``: this proves the previous one if it is logged.

        Raises KafkaRebalanceError if ``start`` is not the end of the batch planned last.
        """
        with self._state as state:
            batches = state.assignment.batches
            batches.done(state.pace, time.monotonic())
            known = batches.progress_is_asynchronous
            self._prove(state, batches.begin_trigger(start))
            learned = batches.progress_is_asynchronous and not known
        if learned:
            log.info(
                "group %s: Spark tracks this query's progress asynchronously; offsets are "
                "committed when they are in its log",
                self._options.group_id,
            )

    def committed(self, offset: dict[str, Any]) -> None:
        """Spark called ``commit``: the batch that ends here is proven, and the pump commits it.

        An offset that ends no open batch is ignored: it was proven before.
        """
        with self._state as state:
            self._prove(state, state.assignment.batches.commit(offset))

    def done(self, offset: dict[str, Any]) -> None:
        """Spark's progress reports the batch that ends here as done: proven if it is logged."""
        with self._state as state:
            batches = state.assignment.batches
            if not batches.progress_is_asynchronous:
                self._prove(state, batches.commit(offset))

    def are_missing(self) -> bool:
        """Whether a batch with ranges is not proven."""
        with self._state as state:
            return state.assignment.batches.any()

    def want_commit(self) -> bool:
        """Whether an empty batch is due: Spark calls ``commit`` only when it builds a batch."""
        now = time.monotonic()
        with self._state as state:
            batches = state.assignment.batches
            unproven = batches.any() or bool(batches.requests())
        if not unproven or now - self._asked_at < _ASK_FOR_COMMIT_S:
            return False
        self._asked_at = now
        return True

    # -- the commit log, on the pump's thread -----------------------------------------------------

    @property
    def have_commit_log(self) -> bool:
        """Whether the source checks the query's commit log."""
        return self._commit_log is not None

    def begin(self) -> None:
        """Connect to the store of the commit log."""
        if self._commit_log is not None:
            self._commit_log.begin()

    def look_if_awaited(self, awaited: bool) -> None:
        """Check the log while a revoke waits for the batch, or if it is ``awaited`` otherwise.

        Also checks while the batch's duration is measured, since Spark's next trigger may be far
        off, but not in an object store, which charges for look-ups.
        """
        with self._state as state:
            awaited = awaited or state.assignment.waits_for_proof()
            measures = state.assignment.batches.are_timed()
        if measures and self._commit_log is not None and self._commit_log.answers_at_once:
            awaited = True
        if awaited:
            self.look()

    def look(self, wait_s: float | None = None) -> bool:
        """Check whether the commit log has the batch planned last, which proves it.

        Waits this long for a store's answer; by default a later call picks it up.
        """
        with self._state as state:
            offset = state.assignment.batches.last_end
        if self._commit_log is None or offset is None:
            return False
        found = (
            self._commit_log.is_committed(offset)
            if wait_s is None
            else self._commit_log.wait_for_answer(offset, wait_s)
        )
        if found:
            with self._state as state:
                self._prove(state, state.assignment.batches.prove(offset))
        return found

    def _prove(self, state: SharedState, batches: Sequence[Batch]) -> None:
        """Record that these are proven; does nothing for none."""
        undecided = [batch for batch in batches if batch.by_sink]
        for batch in undecided:
            log.warning(
                "group %s: Spark has committed a batch, and the source has not heard what its sink "
                "decided; the group's offsets tell: %s",
                *(self._options.group_id, names_of(batch.all_reads())),
            )
            state.assignment.drop(batch, is_known=False)
        batches = [batch for batch in batches if not batch.by_sink]
        if undecided:
            self._pump.wake()
        if batches:
            now = time.monotonic()
            for batch in batches:
                batch.done(state.pace, now)
            state.assignment.prove(batches)
            self._pump.wake()


#: How long to wait for the commit log to say that a seemingly overdue batch is done.
_PROBE_S = 1.0


class OverdueBatch(QueryPart):
    """Handles a batch that takes too long; runs on the pump's thread.

    If it takes longer than ``maxBatchDurationMs``, the query leaves the group until the batch is
    done, so that others can have its partitions. If a revoke waits for it longer than
    ``revokeTimeoutMs``, the member has given those partitions up, and one log line gives advice.
    """

    def __init__(self, core: QueryCore, proofs: BatchProofs, foreign_ranges: ForeignRanges) -> None:
        super().__init__(core)
        self._proofs = proofs
        self._foreign_ranges = foreign_ranges
        limit_ms = core.options.max_batch_duration_ms
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
        """Log advice once: these were lost while their revoke waited for the batch."""
        if not self._advised:
            self._advised = True
            advice = advice_on_overdue(overdue, self._proofs.have_commit_log)
            log.warning("group %s: %s", self._options.group_id, advice)

    def _is_over(self) -> bool:
        # While it waits for others, the batch is not being read yet, and its clock does not run.
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
