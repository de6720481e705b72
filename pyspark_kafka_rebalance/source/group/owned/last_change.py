"""LastChange: when the members of a query last changed, and whether all know what came of it. Pure.

A partition that one member has released is on its way unseen: the coordinator gives it to another
member in the answer to that one's heartbeat. So nothing is on its way once every member has had two
answers: one to a heartbeat after the change, by which the coordinator knows what was released, and
one to a heartbeat after the coordinator has had time to assign that.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: Default of ``group.consumer.assignment.interval.ms`` (Kafka 4.3): for so long a coordinator may
#: put off a new assignment. In the classic protocol nothing is put off: all members rejoin.
_ASSIGNED_WITHIN_S = 1.0


class LastChange:
    """The last change, and what the members have heard from the coordinator since.

    Parameters
    ----------
    clock : callable
        Seconds, monotonic.

    Attributes
    ----------
    at : float
        When it was.
    all_told : bool
        Whether every member knows which partitions it owns after the change.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at = 0.0
        self.all_told = False
        self._known_at: float | None = None  # to the coordinator
        self.note()

    def note(self) -> None:
        """Something changes now."""
        self.at, self.all_told, self._known_at = self._clock(), False, None

    def heard(self, sent_at: float) -> None:
        """Every member has had the answer to a heartbeat that it sent at ``sent_at`` or later."""
        if self._known_at is None:
            if sent_at >= self.at:
                self._known_at = self._clock()
        elif sent_at >= self._known_at + _ASSIGNED_WITHIN_S:
            self.all_told = True

    def unchanged_s(self) -> float:
        """Seconds since it was."""
        return self._clock() - self.at
