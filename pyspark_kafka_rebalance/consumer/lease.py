"""Lease: until when the membership is certain, pure.

The broker fences a member when it has not heard of it for the session timeout. A process that was
stopped (SIGSTOP, a long garbage collection, a suspended machine) does not notice that; the lease
does, from the clock alone, before anything is handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: The margin is this share of the session timeout: what is handed out just before the lease ends
#: still has time to be recorded before the broker can give the partition away.
MARGIN_SHARE = 0.1


def suspend_aware_clock() -> float:
    """Seconds on a monotonic clock that runs while the machine is suspended (Linux: BOOTTIME)."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Lease:
    """The time up to which the broker cannot have fenced this member.

    Dated by the *send* time of a request that the broker then accepted: the broker's session
    timer cannot have started earlier than that. A join counts from when its SyncGroup is sent, not
    its JoinGroup: that may be held for longer than the session while a newcomer, which is in no
    generation yet, cannot heartbeat. The broker expects none of it: it starts the timer when the
    join completes, and again with the SyncGroup.

    Parameters
    ----------
    session_timeout_ms : int
        ``session.timeout.ms`` of the member.
    clock : callable
        Seconds; must run during suspension.
    """

    def __init__(
        self, session_timeout_ms: int, clock: Callable[[], float] = suspend_aware_clock
    ) -> None:
        self.session_timeout_ms = session_timeout_ms
        self.clock = clock
        self._renewed_at: float | None = None

    def renew(self, sent_at: float) -> None:
        """The broker accepted a heartbeat, commit or SyncGroup that was sent at ``sent_at``."""
        if self._renewed_at is None or sent_at > self._renewed_at:
            self._renewed_at = sent_at

    def give_up(self) -> None:
        """The membership ended: nothing is certain until the next renewal."""
        self._renewed_at = None

    def holds(self) -> bool:
        """Whether something may be handed out now: the session minus its margin has not passed."""
        return self._age() < self.session_timeout_ms / 1000 * (1 - MARGIN_SHARE)

    def expired(self) -> bool:
        """Whether a membership that was there may have been fenced: the whole session passed."""
        return self._renewed_at is not None and self._age() >= self.session_timeout_ms / 1000

    def _age(self) -> float:
        return float("inf") if self._renewed_at is None else self.clock() - self._renewed_at
