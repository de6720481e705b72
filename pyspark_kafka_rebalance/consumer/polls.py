"""Polls: a poll takes part in the rebalance, reads, and reports both.

``Rebalancing`` executes a turn of the rebalance, and ``ListenerCalls`` calls the application's
listener in it. One poll runs at a time, on the polling thread; a wakeup can come from any thread.

Invariants:
 1. No turn of the rebalance starts before the last one was reported. The next poll reports a turn
    whose poll raised or was interrupted, or that only an iteration saw.
 2. A poll with news of the rebalance reports it without waiting; a later poll raises for an
    unreadable record.
"""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from .fetch_metadata import EndOffsets, FetchMetadata
from .member_record import AssignmentReceived, Lost
from .membership.group_membership import GroupMembership
from .membership.ownership import Ownership, Step
from .observer import Observed
from .poll_result import PollResult
from .progress.hand_outs import HandOuts
from .reading import Reading

if TYPE_CHECKING:
    from .kafka_python.coordinator import GroupCoordinator
    from .kafka_python.io_loop import IoLoop
    from .kafka_python.subscription import Subscription

log = logging.getLogger(__name__)


class ListenerCalls:
    """Calls to the rebalance listener of ``subscribe``, on the polling thread.

    A turn of the rebalance is carried out to its end even if the listener raises. Then the poll
    raises the listener's first error, as Java's consumer does.
    """

    def __init__(self, loop: IoLoop, subscription: Subscription, group_id: str) -> None:
        self._loop = loop
        self._subscription = subscription
        self._group_id = group_id
        self._failure: BaseException | None = None

    def assigned(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_assigned``, even without partitions."""
        self._call("on_partitions_assigned", partitions)

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_revoked`` if there are any: their revoke is being completed."""
        if partitions:
            self._call("on_partitions_revoked", partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Call ``on_partitions_lost`` if there are any."""
        if partitions:
            self._call("on_partitions_lost", partitions)

    def raise_failure(self) -> None:
        """Raise the first error of the listener since the last call."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _call(self, method: str, partitions: Collection[TopicPartition]) -> None:
        listener = self._subscription.rebalance_listener
        if listener is None:
            return
        callback, told = getattr(listener, method), set(partitions)
        if inspect.iscoroutinefunction(callback):
            callback = partial(self._loop.run, callback)
        try:
            callback(told)
        except BaseException as error:
            if self._failure is None:
                self._failure = error
            else:
                log.exception("group %s: the rebalance listener failed again", self._group_id)


class Rebalancing:
    """A poll's part in the rebalance, on the polling thread.

    The membership records events on the I/O loop, ``Ownership`` decides the steps that follow, and
    this class executes them: assignment, listener, dropped commits, releases.

    In a turn, losses come first: a lost revoke cannot be completed. Then come the due revokes, and
    then, repeatedly while the poll waits, releases, deadlines and the next event.

    A poll can be interrupted anywhere. The next one executes the unfinished step from its start:
    the listener may be called again for the same partitions.

    ``ownership`` is changed only here, except for delays and when the consumer leaves or closes;
    always under the lock of ``hand_outs``.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        membership: GroupMembership,
        ownership: Ownership,
        hand_outs: HandOuts,
        ends: EndOffsets,
        listener: ListenerCalls,
        revoke_timeout_ms: int,
        observed: Observed,
    ) -> None:
        self._io = io
        self._group_id = io.group_id
        self._subscription = io.subscription
        self.membership = membership
        self._ownership = ownership
        self._hand_outs = hand_outs
        self._ends = ends
        self.listener = listener
        self._revoke_timeout_ms = revoke_timeout_ms
        self._observed = observed
        # Taken, but not applied to its end; ``Ownership`` has the steps.
        self._event: AssignmentReceived | Lost | None = None

    def begin_poll(self) -> None:
        """Start the membership in the first poll; raise the error that ended it for good."""
        self._io.poll()

    def resume(self) -> None:
        """Execute the step that an interrupted poll left unfinished; it is to be reported."""
        if self._event is None and not self._ownership.undone:
            return
        self._ownership.resumed()
        with self._hand_outs.lock:
            if self._event is not None and not self._ownership.undone:
                self._apply(self._event)
        while self._ownership.undone:
            step = self._ownership.undone[-1]
            with self._hand_outs.lock:
                self._take_effect(step)
            outer = len(self._ownership.undone) == 1
            self._execute(step, self._event if outer else None)
        self._event = None

    def begin_turn(self) -> None:
        """Execute the KIP's steps at the start of a poll."""
        self.membership.lose_if_expired()
        with self._hand_outs.lock:
            step = self._ownership.begin(self._take_loss(), time.monotonic())
            if step.changes:
                self._take_effect(step)
        if step.changes:
            self._execute(step, self._event)
        self._event = None
        self._release_drained()

    def apply_events(self) -> bool:
        """Apply releases, deadlines and the next event; return whether to end the poll early.

        After a loss the next assignment waits for the next poll, so that no partition is ever both
        in the lost list and assigned.
        """
        self.membership.lose_if_expired()
        self._release_drained()
        self._lose_overdue()
        if self._ownership.lost:
            return True
        with self._hand_outs.lock:
            event = self._take_event()
            if event is None:
                return False
            step = self._apply(event)
            self._take_effect(step)
        self._execute(step, event)
        self._event = None
        return step.return_early

    def _take_loss(self) -> frozenset[TopicPartition]:
        """The partitions lost since the last poll; locked."""
        if self.membership.loss_waits():
            event = self._take_event()
            if isinstance(event, Lost):
                return self._lost_by(event)
        return frozenset()

    def _take_event(self) -> AssignmentReceived | Lost | None:
        """Take the next event, which is kept until it is applied to its end; locked."""
        with self.membership.record.lock:
            self._event = self.membership.record.next_event()
            return self.membership.take_event()

    def _apply(self, event: AssignmentReceived | Lost) -> Step:
        """The step that follows from an event; locked."""
        if isinstance(event, Lost):
            return self._ownership.lose(self._lost_by(event))
        now = time.monotonic()
        return self._ownership.assigned(event.partitions, event.generation, now)

    def _lost_by(self, event: Lost) -> frozenset[TopicPartition]:
        return self._ownership.owned if event.partitions is None else event.partitions

    def _take_effect(self, step: Step) -> None:
        """Apply a step to this consumer; locked."""
        self._subscription.set_assignment(step.owned, step.gated)
        self._ends.collect(step.owned)
        self._hand_outs.forget(step.lost | step.released)

    def _execute(self, step: Step, event: AssignmentReceived | Lost | None) -> None:
        """Execute a step that has taken effect, to its end."""
        if step.lost:
            self._tell_lost(step)
        if step.released:
            self._tell_released(step)
        if isinstance(event, AssignmentReceived):
            self._tell_assigned(event, step)
        else:
            self._complete(step)
        if step.changes:
            self._ownership.executed()
        self._release_drained()

    def _tell_lost(self, step: Step) -> None:
        if step.undrained:
            self.membership.commits.drop(step.lost)
            log.warning(
                "group %s: lost, not drained within revoke_timeout_ms=%d: %s",
                self._group_id,
                self._revoke_timeout_ms,
                sorted(step.lost),
            )
        else:
            log.warning("%s", self._describe(step))
        if (observer := self._observed.by) is not None:
            observer.lost(step.lost, undrained=step.undrained)
        self.listener.lost(step.lost)

    def _tell_released(self, step: Step) -> None:
        self.membership.protocol.released(step.released)
        if (observer := self._observed.by) is not None:
            observer.released(step.released)

    def _tell_assigned(self, event: AssignmentReceived, step: Step) -> None:
        if (observer := self._observed.by) is not None:
            observer.assigned(step.added, step.gated)
        self._complete(step)
        self._release_drained()
        self.membership.protocol.applied(event)
        log.info("%s", self._describe(step))
        if step.added or not step.owned:
            self.listener.assigned(step.added)

    def _complete(self, step: Step) -> None:
        """Complete revokes: fetching has stopped, but the listener may still commit."""
        if step.revoked:
            self.listener.revoked(step.revoked)
            with self._hand_outs.lock:
                self._ownership.give_up(step.revoked)
                self._hand_outs.leave(step.revoked)

    def _release_drained(self) -> None:
        """Release the partitions that were given up and have no outstanding commit."""
        with self._hand_outs.lock:
            releasing = self._ownership.releasing
            outstanding = {p for p in releasing if self.membership.commits.outstanding(p)}
            step = self._ownership.drained(outstanding)
            if step.released:
                self._take_effect(step)
        if step.released:
            self._tell_released(step)
            self._ownership.executed()

    def _lose_overdue(self) -> None:
        """Lose the partitions that are not drained by the deadline, and only those."""
        with self._hand_outs.lock:
            step = self._ownership.overdue(time.monotonic())
            if not step.lost:
                return
            self.membership.commits.drop(step.lost)
            self._take_effect(step)
        self._execute(step, None)

    def _describe(self, step: Step) -> str:
        standing = self._ownership.describe(time.monotonic(), len(step.added))
        return f"rebalance g={self._group_id} {standing}"


#: How long a poll waits for records before it checks for rebalance events again.
_SLICE_MS = 50


class Polls:
    """Runs one consumer's polls, on the polling thread; only ``woken`` is for any thread."""

    def __init__(
        self, reading: Reading, rebalancing: Rebalancing, ownership: Ownership, observed: Observed
    ) -> None:
        #: If set, the current poll ends early, or the next one if none runs.
        self.woken = threading.Event()
        self._reading = reading
        self._rebalancing = rebalancing
        self._ownership = ownership
        self._observed = observed
        # The last turn that was reported, and the one that the last poll reports if it returns.
        self._reported = self._reporting = 0
        self._told_in_passing = False

    def poll(
        self, form: Callable[..., Any], timeout_ms: float, max_records: int | None
    ) -> PollResult[Any]:
        """Poll, and hand out the records in this form; see `hand_out_as`."""
        self._reading.hand_out_as(form)
        if self._reading.is_left_to_library(timeout_ms):
            records = self._poll_manually_assigned(timeout_ms, max_records, True)
            return PollResult(records, metadata=self._fresh_metadata(records))
        return self._poll(form, timeout_ms, max_records, True)

    def poll_records(
        self,
        form: Callable[..., Any],
        timeout_ms: float,
        max_records: int | None,
        update_offsets: bool,
    ) -> dict[TopicPartition, list[Any]]:
        """As ``poll``, but only the records, merged; maybe without advancing the positions."""
        self._reading.hand_out_as(form)
        if self._reading.is_left_to_library(timeout_ms):
            return self._poll_manually_assigned(timeout_ms, max_records, update_offsets)
        return self._poll(form, timeout_ms, max_records, update_offsets).in_one()

    def poll_membership(self) -> PollResult:
        """A poll without records; does not count as a sign of life of the application."""
        self._rebalancing.membership.pumped()
        if (untold := self._take_untold()) is not None:
            return untold
        self._rebalancing.begin_poll()
        self._rebalancing.begin_turn()
        self._rebalancing.apply_events()
        self._rebalancing.listener.raise_failure()
        return self._result({}, {})

    def told_in_passing(self, was: bool) -> None:
        """Note whether only an iteration saw the last turn; its loop may have been left.

        If so, the next poll reports the turn, unless it is the iteration's own.
        """
        self._told_in_passing = was

    def forget_all(self) -> None:
        """No partition is assigned any longer, and nothing is left to report."""
        self._reported = self._reporting = self._ownership.turn
        self._told_in_passing = False
        self._reading.forget_ends()

    def not_returned(self) -> None:
        """A poll was interrupted, or raised: the next one reports its news."""
        self._reporting = self._reported

    def _poll_manually_assigned(
        self, timeout_ms: float, max_records: int | None, update_offsets: bool
    ) -> dict[TopicPartition, list[Any]]:
        """The library's own poll, a slice at a time, as ``_poll`` waits: it has no wakeup."""
        deadline = time.monotonic() + timeout_ms / 1000
        self._end_iteration(update_offsets)
        wait_ms = timeout_ms
        while True:
            records = self._reading.library_poll(
                min(wait_ms, _SLICE_MS), max_records, update_offsets
            )
            wait_ms = max(0.0, (deadline - time.monotonic()) * 1000)
            if records or wait_ms == 0 or self.woken.is_set() or self._reading.closed:
                self.woken.clear()
                self._reading.collect_ends()
                if (observer := self._observed.by) is not None:
                    observer.polled(records, {}, {})
                return records

    def _poll(
        self,
        form: Callable[..., Any],
        timeout_ms: float,
        max_records: int | None,
        update_offsets: bool,
    ) -> PollResult[Any]:
        # Waits until the timeout. Ended early by records, a requested revoke, a loss, or a wakeup.
        # In between, kafka-python's fetcher waits for data a slice at a time.
        reading, rebalancing = self._reading, self._rebalancing
        if max_records is None:
            max_records = reading.max_poll_records
        deadline = time.monotonic() + timeout_ms / 1000
        self._end_iteration(update_offsets)
        rebalancing.membership.polled()
        if (untold := self._take_untold()) is not None:
            return untold
        rebalancing.begin_poll()
        reading.collect_ends()  # before this poll changes the ownership
        rebalancing.begin_turn()
        while True:
            rebalancing.membership.polled()  # the application is alive while it waits in a poll
            return_early = rebalancing.apply_events()
            rebalancing.listener.raise_failure()
            left_ms = 0 if return_early else max(0.0, (deadline - time.monotonic()) * 1000)
            records, gaps = reading.step(
                form, min(left_ms, _SLICE_MS), max_records, update_offsets, has_news=return_early
            )
            woken = self.woken.is_set()
            if records or gaps or return_early or woken or time.monotonic() >= deadline:
                self.woken.clear()
                metadata = self._fresh_metadata(records)
                if (observer := self._observed.by) is not None:
                    observer.polled(records, gaps, metadata)
                return self._result(records, metadata, gaps)

    def _end_iteration(self, update_offsets: bool) -> None:
        """Drop the records that ``__next__`` fetched ahead, so that a poll in between returns them.

        ``__next__`` polls without updating the offsets.
        """
        if update_offsets:
            self._reading.end_iteration()

    def _take_untold(self) -> PollResult[Any] | None:
        """The news that no poll has reported yet; None if there are none.

        The next turn waits until they are reported: it would complete revokes that the application
        has not seen.
        """
        self._rebalancing.resume()
        self._reported = self._reporting
        if self._ownership.turn == self._reported and not self._told_in_passing:
            return None
        self._told_in_passing = False
        result = self._result({}, {})
        tells = result.to_be_revoked or result.lost or result.assigned or result.revoked
        return result if tells else None

    def _result(
        self,
        records: dict[TopicPartition, list[Any]],
        metadata: dict[TopicPartition, FetchMetadata],
        gaps: dict[TopicPartition, list[Any]] | None = None,
    ) -> PollResult[Any]:
        ownership = self._ownership
        self._reporting = ownership.turn
        return PollResult(
            records,
            ownership.to_be_revoked,
            ownership.lost,
            ownership.added,
            ownership.revoked,
            metadata,
            gaps or {},
        )

    def _fresh_metadata(
        self, records: Collection[TopicPartition]
    ) -> dict[TopicPartition, FetchMetadata]:
        return self._reading.fresh_metadata(records, self._ownership.gated)
