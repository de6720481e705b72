"""Rebalancing: a poll's part in the rebalance, on the polling thread.

The membership records events on the I/O loop, ``Ownership`` decides what follows from them, and
this class executes it: the library's assignment, the listener, dropped commits, releases.

In a turn, losses come first, since what is lost cannot be completed. Then come the revokes that are
due, and then, over and over while the poll waits, releases, deadlines and the next event.

A poll can be interrupted anywhere. The next one executes what that has left undone, from the start
of its step: the listener may be called again for the same partitions.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from .fetch_metadata import EndOffsets
from .membership.group_membership import GroupMembership
from .membership.ownership import Ownership, Step
from .observer import Observed
from .progress.hand_outs import HandOuts
from .protocol.member_record import AssignmentReceived, Lost
from .rebalance_listener import ListenerCalls

if TYPE_CHECKING:
    from .kafka_python.subscription import Subscription

log = logging.getLogger(__name__)


class Rebalancing:
    """Executes the steps of Ownership.

    Parameters
    ----------
    group_id : str
        For the log.
    subscription : Subscription
        Holds the library's assignment.
    membership : GroupMembership
        Source of the events; learns of the releases.
    ownership : Ownership
        Changed only here, except for delays and when the consumer leaves or closes; always under
        the lock of ``hand_outs``.
    hand_outs : HandOuts
        Forgets what was handed out of a partition that goes.
    ends : EndOffsets
        Likewise forgets where the partition ended.
    listener : ListenerCalls
        The application's.
    revoke_timeout_ms : int
        That of ``ownership``, for the log.
    observed : Observed
        Holds the observer, if any, that is called at each event.
    """

    def __init__(
        self,
        group_id: str,
        subscription: Subscription,
        membership: GroupMembership,
        ownership: Ownership,
        hand_outs: HandOuts,
        ends: EndOffsets,
        listener: ListenerCalls,
        revoke_timeout_ms: int,
        observed: Observed,
    ) -> None:
        self._group_id = group_id
        self._subscription = subscription
        self._membership = membership
        self._ownership = ownership
        self._hand_outs = hand_outs
        self._ends = ends
        self._listener = listener
        self._revoke_timeout_ms = revoke_timeout_ms
        self._observed = observed
        # Taken, and not applied to its end; ``Ownership`` has the steps.
        self._event: AssignmentReceived | Lost | None = None

    def resume(self) -> None:
        """Execute what an interrupted poll has left undone; it is to be reported."""
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
        self._membership.lose_if_expired()
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
        self._membership.lose_if_expired()
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
        """What was lost since the last poll; locked."""
        if self._membership.loss_waits():
            event = self._take_event()
            if isinstance(event, Lost):
                return self._lost_by(event)
        return frozenset()

    def _take_event(self) -> AssignmentReceived | Lost | None:
        """Take the next event, which is kept until it is applied to its end; locked."""
        with self._membership.record.lock:
            self._event = self._membership.record.next_event()
            return self._membership.take_event()

    def _apply(self, event: AssignmentReceived | Lost) -> Step:
        """What follows from an event; locked."""
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
            self._membership.commits.drop(step.lost)
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
        self._listener.lost(step.lost)

    def _tell_released(self, step: Step) -> None:
        self._membership.protocol.released(step.released)
        if (observer := self._observed.by) is not None:
            observer.released(step.released)

    def _tell_assigned(self, event: AssignmentReceived, step: Step) -> None:
        if (observer := self._observed.by) is not None:
            observer.assigned(step.added, step.gated)
        self._complete(step)
        self._release_drained()
        self._membership.protocol.applied(event)
        log.info("%s", self._describe(step))
        if step.added or not step.owned:
            self._listener.assigned(step.added)

    def _complete(self, step: Step) -> None:
        """Complete revokes: nothing more is fetched by now, but the listener may still commit."""
        if step.revoked:
            self._listener.revoked(step.revoked)
            with self._hand_outs.lock:
                self._ownership.give_up(step.revoked)
                self._hand_outs.leave(step.revoked)

    def _release_drained(self) -> None:
        """Release what was given up and has no commit outstanding."""
        with self._hand_outs.lock:
            releasing = self._ownership.releasing
            outstanding = {p for p in releasing if self._membership.commits.outstanding(p)}
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
            self._membership.commits.drop(step.lost)
            self._take_effect(step)
        self._execute(step, None)

    def _describe(self, step: Step) -> str:
        standing = self._ownership.describe(time.monotonic(), len(step.added))
        return f"rebalance g={self._group_id} {standing}"
