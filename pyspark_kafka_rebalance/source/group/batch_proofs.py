"""BatchProofs: which of the query's batches are proven, by Spark's calls and by its commit log.

``open_batches`` says what each call proves. While something waits for a batch, or at the end, the
query's own commit log (the option ``checkpointLocation``) is asked: it knows of a batch before
Spark's next trigger, and after the last batch it alone knows.

The planner's thread tells of Spark's calls, the pump's looks into the log.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from ...consumer.pump import Pump
from ..checkpoint.commit_log_watch import CommitLogWatch
from .query_state import QueryState, SharedState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: Nothing new to read, and a batch whose end Spark may not have logged yet (async progress
#: tracking, which logs once a second by default): how often an empty batch makes Spark go on.
_ASK_FOR_COMMIT_S = 1.0


class BatchProofs:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Has the batches, and is told what is proven.
    pump : Pump
        Woken by a proof: it commits what is proven.
    """

    def __init__(self, options: SourceOptions, state: QueryState, pump: Pump) -> None:
        self._options = options
        self._state = state
        self._pump = pump
        self._commit_log = (
            CommitLogWatch(options.checkpoint_location) if options.checkpoint_location else None
        )
        self._asked_at = 0.0

    # -- Spark's calls ----------------------------------------------------------------------------

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether Spark was seen to track this query's progress asynchronously."""
        with self._state as state:
            return state.open_batches.progress_is_asynchronous

    def progress_is_synchronous(self) -> None:
        """The trigger is one with which Spark does not track its progress asynchronously."""
        with self._state as state:
            state.open_batches.progress_is_synchronous()

    def planned(self, offset: dict[str, Any]) -> None:
        """This offset goes to Spark as the end of the next batch."""
        with self._state as state:
            batches = state.assignment.batches
            state.open_batches.add(offset, batches.number)
            catch_up = self._options.catch_up
            measures = catch_up is not None and catch_up.max_offsets_per_trigger is None
            if measures and (caught_up := batches.caught_up()):
                number = sum(len(piece) for pieces in caught_up.values() for piece in pieces)
                state.pace.planned(batches.number, number, time.monotonic())

    def begin_trigger(self, start: dict[str, Any]) -> None:
        """Spark plans the batch after ``start``: proves the batch before if that is logged.

        Raises
        ------
        KafkaRebalanceError
            It goes on from somewhere else than where the batch planned last ends.
        """
        with self._state as state:
            # Done, whether or not that proves it.
            self._note_done(state, state.assignment.batches.number)
            known = state.open_batches.progress_is_asynchronous
            self._prove(state, state.open_batches.begin_trigger(start))
            learned = state.open_batches.progress_is_asynchronous and not known
        if learned:
            log.info(
                "group %s: Spark tracks this query's progress asynchronously; offsets are "
                "committed when they are in its log",
                self._options.group_id,
            )

    def committed(self, offset: dict[str, Any]) -> None:
        """Spark's ``commit``: the batch that ends here is proven; the pump commits its positions.

        An offset of no open batch says nothing: it was proven before.
        """
        with self._state as state:
            self._prove(state, state.open_batches.commit(offset))

    def done(self, offset: dict[str, Any]) -> None:
        """By Spark's progress the batch that ends here is done, which proves it if it is logged."""
        with self._state as state:
            if not state.open_batches.progress_is_asynchronous:
                self._prove(state, state.open_batches.commit(offset))

    def are_missing(self) -> bool:
        """Whether a batch with ranges is not proven."""
        with self._state as state:
            return state.assignment.batches.oldest() is not None

    def want_commit(self) -> bool:
        """Whether an empty batch is due, since only building one makes Spark call ``commit``."""
        now = time.monotonic()
        with self._state as state:
            batches, events = state.assignment.batches, state.assignment.events
            unproven = batches.any() or events.are_unproven()
        if not unproven or now - self._asked_at < _ASK_FOR_COMMIT_S:
            return False
        self._asked_at = now
        return True

    # -- the commit log, on the pump's thread -----------------------------------------------------

    @property
    def have_commit_log(self) -> bool:
        """Whether the source looks into the query's commit log."""
        return self._commit_log is not None

    def begin(self) -> None:
        """Connect to the store that has the commit log."""
        if self._commit_log is not None:
            self._commit_log.begin()

    def look_if_awaited(self, awaited: bool) -> None:
        """Look for the batch while a revoke waits for it, or whatever else is ``awaited``.

        And while it is measured: till Spark's next trigger may be long. Not in a store, which
        charges for look-ups.
        """
        with self._state as state:
            awaited = awaited or state.assignment.waits_for_proof()
            measures = state.pace.measures
        if measures and self._commit_log is not None and self._commit_log.answers_at_once:
            awaited = True
        if awaited:
            self.look()

    def look(self, wait_s: float | None = None) -> bool:
        """Look whether the batch planned last is in the commit log, which proves it.

        Parameters
        ----------
        wait_s : float, optional
            How long to wait for the answer of a store; by default it comes with a later look.
        """
        with self._state as state:
            offset = state.open_batches.last_end
        if self._commit_log is None or offset is None:
            return False
        found = (
            self._commit_log.is_committed(offset)
            if wait_s is None
            else self._commit_log.wait_for_answer(offset, wait_s)
        )
        if found:
            with self._state as state:
                self._prove(state, state.open_batches.prove(offset))
        return found

    def _prove(self, state: SharedState, batch: int | None) -> None:
        """Note that this batch is proven, if it is one."""
        if batch is not None:
            self._note_done(state, batch)
            state.assignment.prove(batch)
            self._pump.wake()

    def _note_done(self, state: SharedState, batch: int) -> None:
        """So long has the batch taken, if its duration matters."""
        if state.pace.measures:
            state.pace.done(batch, time.monotonic())
