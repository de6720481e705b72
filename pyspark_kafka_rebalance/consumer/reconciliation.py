"""Reconciliation: from what a member owns to what the coordinator wants it to own (KIP-848), pure.

The coordinator sends a *target*. What the member owns beyond it is to be revoked; while that is
deferred the coordinator keeps the member at its epoch, and gives nothing of it away until the
member acknowledges, by a heartbeat that lists what it owns, that it owns the target and no more.
Release is all or nothing: a heartbeat that still lists one revoked partition frees none of them.
The coordinator waits for the rebalance timeout, counted from the heartbeat that it answered with
the smaller target; then it fences the member, with all that it owns.

Partitions carry their topic's id here, because a topic that was deleted and created again is
another topic: its partitions are assigned only when those of the same name are released.

Invariants:
 1. What a heartbeat lists is what is owned, or may be at any time since it is assigned: whatever
    it left out the coordinator could give away. What is given up is gone before it is sent.
 2. A target counts as acknowledged only by the answer to a heartbeat that listed exactly it.
 3. The deadline of a revoke is never later than the broker's, also when answers were lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kafka.structs import TopicPartition


@dataclass(frozen=True)
class Report:
    """What a heartbeat says beside the member epoch.

    Attributes
    ----------
    all_fields : bool
        Send every field: a join, or the last answer is not known.
    owned : dict of TopicPartition to UUID, or None
        What is owned or assigned; None leaves it out.
    """

    all_fields: bool
    owned: Mapping[TopicPartition, UUID] | None


class Reconciliation:
    """The reconciliation of one member. Not thread-safe; the owner holds a lock.

    Parameters
    ----------
    revoke_timeout_s : float
        How long after the heartbeat that brought a smaller target the member gives up what it
        still owns beyond it: the rebalance timeout that the coordinator was told, minus a margin.
    """

    def __init__(self, revoke_timeout_s: float) -> None:
        self._revoke_timeout_s = revoke_timeout_s
        self._owned: dict[TopicPartition, UUID] = {}
        self._target: dict[TopicPartition, UUID] = {}
        self._complete = True  # whether the target's topics are all known by name
        self._acknowledged = True
        self._resend = True
        self._unanswered_since: float | None = None
        self._target_since = 0.0
        self._revoke_by = math.inf

    @property
    def owned(self) -> Mapping[TopicPartition, UUID]:
        """What the member owns, what is being revoked included."""
        return self._owned

    @property
    def surplus(self) -> frozenset[TopicPartition]:
        """What the member owns beyond its target."""
        return frozenset(p for p, topic in self._owned.items() if self._target.get(p) != topic)

    @property
    def assignable(self) -> dict[TopicPartition, UUID]:
        """The target without partitions that are still owned under another topic id."""
        return {p: topic for p, topic in self._target.items() if self._owned.get(p, topic) == topic}

    @property
    def missing(self) -> bool:
        """Whether something may be owned that is not, such as what was released unasked."""
        return not self.assignable.keys() <= self._owned.keys()

    @property
    def complete(self) -> bool:
        """Whether all of the target is known by name."""
        return self._complete

    @property
    def reconciled(self) -> bool:
        """Whether the coordinator knows that the member owns its target and nothing else."""
        return self._acknowledged and self._complete

    @property
    def acknowledgement_due(self) -> bool:
        """Whether a heartbeat should be sent at once."""
        return not self._acknowledged and self._complete and self._listed == self._target

    @property
    def revoke_by(self) -> float:
        """When the surplus must be given up (the caller's clock, seconds); infinity if none is."""
        return self._revoke_by

    def sending(self, now: float, *, joining: bool) -> Report:
        """A heartbeat is sent now: what it says."""
        if self._unanswered_since is None:
            self._unanswered_since = now
        everything = joining or self._resend
        if not everything and not self.acknowledgement_due:
            return Report(everything, None)
        return Report(everything, self._listed)

    def answered(self, report: Report) -> float:
        """The heartbeat was accepted; since when none before it had been."""
        since = self._unanswered_since
        assert since is not None
        self._unanswered_since = None
        self._resend = False
        if self._complete and report.owned == self._listed == self._target:  # invariant 2
            self._acknowledged = True
        return since

    def not_answered(self) -> None:
        """It was refused, or it is not known what became of it: say everything in the next."""
        self._resend = True

    def retarget(
        self, target: Mapping[TopicPartition, UUID], since: float, *, complete: bool = True
    ) -> None:
        """The coordinator wants exactly this owned.

        Parameters
        ----------
        target : mapping of TopicPartition to UUID
            The whole assignment.
        since : float
            The earliest time at which it may have decided so; see ``answered``.
        complete : bool
            False while some of it cannot be named yet; it will be given again.
        """
        if dict(target) != self._target or complete != self._complete:
            self._target = dict(target)
            self._complete = complete
            self._target_since = since
            self._changed()

    def own(self, partitions: Mapping[TopicPartition, UUID]) -> None:
        """The member owns these as well from now on."""
        listed = self._listed
        self._owned |= {p: topic for p, topic in partitions.items() if p not in self._owned}
        if self._listed != listed:
            self._changed()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """The member does not own these any more."""
        gone = self._owned.keys() & set(partitions)
        if gone:
            self._owned = {p: topic for p, topic in self._owned.items() if p not in gone}
            self._changed()

    def give_up_overdue(self, now: float) -> frozenset[TopicPartition]:
        """At the deadline: release the surplus, and only that, before all would be fenced."""
        if now < self._revoke_by:
            return frozenset()
        overdue = self.surplus
        self.release(overdue)
        return overdue

    @property
    def _listed(self) -> dict[TopicPartition, UUID]:
        """What is owned, and what may be at any time (invariant 1)."""
        return {**self.assignable, **self._owned}

    def _changed(self) -> None:
        self._acknowledged = False
        if not self.surplus:
            self._revoke_by = math.inf
        elif math.isinf(self._revoke_by):  # an earlier deadline stands (invariant 3)
            self._revoke_by = self._target_since + self._revoke_timeout_s
