"""Reconciliation: from the partitions a member owns to the coordinator's target (KIP-848). Pure.

The coordinator sends a *target*. Partitions that the member owns beyond it are to be revoked. While
that is deferred, the coordinator keeps the member at its epoch, and gives none of them away. It
waits for the member to acknowledge, by a heartbeat that lists its partitions, that it owns the
target and no more. Release is all or nothing: a heartbeat that still lists one revoked partition
frees none of them. The coordinator waits for the rebalance timeout, counted from the heartbeat that
it answered with the smaller target; then it fences the member, which loses all its partitions.

Partitions carry their topic's id here, because a topic that was deleted and recreated is a
different topic: its partitions are assigned only once the old ones of the same name are released.

Invariants:
 1. A heartbeat lists the owned partitions, and the assigned ones, which could be owned at any
    moment: the coordinator could give away any other. Partitions given up are removed before the
    heartbeat is sent.
 2. A target becomes acknowledged only by the answer to a heartbeat that listed exactly that target.
 3. The deadline of a revoke is never later than the broker's, even if answers were lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from kafka.structs import TopicPartition


@dataclass(frozen=True)
class Report:
    """The fields of a heartbeat in addition to the member epoch."""

    all_fields: bool  # send every field: on a join, or if the last answer is unknown
    #: The owned or assigned partitions; None leaves the field out.
    owned: Mapping[TopicPartition, UUID] | None


class Reconciliation:
    """Decides after each heartbeat which partitions to revoke, and which to acknowledge.

    Not thread-safe; the owner holds a lock.

    The member gives up partitions beyond a smaller target ``revoke_timeout_s`` after the heartbeat
    that brought it: the rebalance timeout sent to the coordinator, minus a margin.
    """

    def __init__(self, revoke_timeout_s: float) -> None:
        self._revoke_timeout_s = revoke_timeout_s
        self.owned: dict[TopicPartition, UUID] = {}  # including those being revoked
        self._target: dict[TopicPartition, UUID] = {}
        self.complete = True  # whether the target's topics are all known by name
        self._acknowledged = True
        self._resend = True
        self._unanswered_since: float | None = None
        self._target_since = 0.0
        #: When the surplus must be given up (the caller's clock, seconds); infinity if none is.
        self.revoke_by = math.inf

    @property
    def surplus(self) -> frozenset[TopicPartition]:
        """The owned partitions that are not in the target."""
        return frozenset(p for p, topic in self.owned.items() if self._target.get(p) != topic)

    @property
    def assignable(self) -> dict[TopicPartition, UUID]:
        """The target without partitions that are still owned under another topic id."""
        return {p: topic for p, topic in self._target.items() if self.owned.get(p, topic) == topic}

    @property
    def missing(self) -> bool:
        """Whether an assignable partition is not owned, such as one released unasked."""
        return not self.assignable.keys() <= self.owned.keys()

    @property
    def reconciled(self) -> bool:
        """Whether the coordinator knows that the member owns its target and nothing else."""
        return self._acknowledged and self.complete

    @property
    def acknowledgement_due(self) -> bool:
        """Whether a heartbeat should be sent at once."""
        return not self._acknowledged and self.complete and self._listed == self._target

    def sending(self, now: float, *, joining: bool) -> Report:
        """Return the fields of a heartbeat that is sent now."""
        if self._unanswered_since is None:
            self._unanswered_since = now
        everything = joining or self._resend
        if not everything and not self.acknowledgement_due:
            return Report(everything, None)
        return Report(everything, self._listed)

    def answered(self, report: Report) -> float:
        """Note an accepted heartbeat; return when the first one since the last answer was sent."""
        since = self._unanswered_since
        assert since is not None
        self._unanswered_since = None
        self._resend = False
        if self.complete and report.owned == self._listed == self._target:  # invariant 2
            self._acknowledged = True
        return since

    def not_answered(self) -> None:
        """Note a heartbeat that was refused or whose outcome is unknown: say everything next."""
        self._resend = True

    def retarget(
        self, target: Mapping[TopicPartition, UUID], since: float, *, complete: bool = True
    ) -> None:
        """Set the target: the coordinator wants exactly this owned.

        ``since`` is the earliest time at which the coordinator can have decided this; see
        ``answered``. It is not ``complete`` while some topic names are unknown; the target will be
        set again.
        """
        if dict(target) != self._target or complete != self.complete:
            self._target = dict(target)
            self.complete = complete
            self._target_since = since
            self._changed()

    def own(self, partitions: Mapping[TopicPartition, UUID]) -> None:
        """Add partitions that the member also owns from now on."""
        listed = self._listed
        self.owned |= {p: topic for p, topic in partitions.items() if p not in self.owned}
        if self._listed != listed:
            self._changed()

    def release(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that the member no longer owns."""
        gone = self.owned.keys() & set(partitions)
        if gone:
            self.owned = {p: topic for p, topic in self.owned.items() if p not in gone}
            self._changed()

    def give_up_overdue(self, now: float) -> frozenset[TopicPartition]:
        """At the deadline, release only the surplus, before the broker would fence everything."""
        if now < self.revoke_by:
            return frozenset()
        overdue = self.surplus
        self.release(overdue)
        return overdue

    @property
    def _listed(self) -> dict[TopicPartition, UUID]:
        """The partitions that are owned, or could be at any moment (invariant 1)."""
        return {**self.assignable, **self.owned}

    def _changed(self) -> None:
        self._acknowledged = False
        if not self.surplus:
            self.revoke_by = math.inf
        elif math.isinf(self.revoke_by):  # an earlier deadline stays (invariant 3)
            self.revoke_by = self._target_since + self._revoke_timeout_s
