"""A coordinator of the consumer protocol, as a model.

Written from KIP-848 and from what the broker makes of it (``CurrentAssignmentBuilder``): of a
heartbeat that lists what is owned, whatever is not listed counts as revoked, at once, also when its
revoke was never asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from kafka import errors as kafka_errors

REBALANCE_TIMEOUT_S = 100.0

#: Of one topic, by number.
Partitions = frozenset[int]


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Seat:
    """A member as the coordinator knows it."""

    epoch: int = 0
    previous_epoch: int = -1
    assigned: Partitions = frozenset()
    to_be_revoked: Partitions = frozenset()
    unreleased: bool = False
    fences_at: float = math.inf


class Coordinator:
    def __init__(self, clock: Clock, rebalance_timeout_s: float = REBALANCE_TIMEOUT_S) -> None:
        self.clock = clock
        self.rebalance_timeout_s = rebalance_timeout_s
        self.seats: dict[Any, Seat] = {}
        self.target: dict[Any, Partitions] = {}
        self.target_epoch = 0

    def retarget(self, target: dict[Any, Partitions]) -> None:
        self.target, self.target_epoch = target, self.target_epoch + 1

    def fence_overdue(self) -> None:
        """A member that does not revoke within its rebalance timeout is out of the group."""
        for member, seat in list(self.seats.items()):
            if self.clock.now >= seat.fences_at:
                del self.seats[member]

    def heartbeat(
        self, member: Any, epoch: int, owned: Partitions | None, everything: bool
    ) -> tuple[int, Partitions | None] | type[Exception]:
        self.fence_overdue()
        if epoch == 0:
            assert owned == frozenset(), "whoever joins owns nothing"
            self.seats[member] = Seat()
        elif member not in self.seats:
            return kafka_errors.UnknownMemberIdError
        seat = self.seats[member]
        if epoch not in (0, seat.epoch):
            # The answer with the next epoch did not reach it: known by what it owns.
            behind = epoch == seat.previous_epoch and owned is not None
            if not (behind and owned is not None and owned <= seat.assigned):
                return kafka_errors.FencedMemberEpochError
        before = seat.assigned
        self._reconcile(member, seat, owned)
        told = seat.assigned if everything or seat.assigned != before else None
        return seat.epoch, told

    def _reconcile(self, member: Any, seat: Seat, owned: Partitions | None) -> None:
        def still_owned(partitions: Partitions) -> bool:
            return bool(partitions) and (owned is None or bool(owned & partitions))

        if seat.to_be_revoked:
            if still_owned(seat.to_be_revoked):
                return
        elif seat.epoch == self.target_epoch and not seat.unreleased:
            return
        target = self.target[member]
        taken = {
            number
            for other, theirs in self.seats.items()
            if other != member
            for number in theirs.assigned | theirs.to_be_revoked
        }
        to_be_revoked = seat.assigned - target
        kept = seat.assigned & target
        if still_owned(to_be_revoked):
            seat.fences_at = self.clock.now + self.rebalance_timeout_s
            seat.assigned, seat.to_be_revoked = kept, to_be_revoked
            return
        seat.assigned, seat.to_be_revoked = kept | (target - taken), frozenset()
        seat.unreleased = bool((target - kept) & taken)
        seat.fences_at = math.inf
        seat.previous_epoch, seat.epoch = seat.epoch, self.target_epoch
