"""Lease: how long the membership is certain. Pure.

The broker fences a member that it has not heard from for the session timeout. A process that was
stopped (SIGSTOP, a long garbage collection, a suspended machine) does not notice that; the lease
does, from the clock alone, before anything is handed out.
"""

from __future__ import annotations

import time
from collections.abc import Callable

#: The margin is this share of the session timeout. It leaves time to record what was handed out
#: just before the lease ends, before the broker can give the partition away.
MARGIN_SHARE = 0.1


def suspend_aware_clock() -> float:
    """Seconds on a monotonic clock that runs while the machine is suspended (Linux: BOOTTIME)."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Lease:
    """The time up to which the broker cannot have fenced this member.

    Dated by the *send* time of a request that the broker then accepted: the broker's session
    timer cannot have started earlier than that. A join is dated by its SyncGroup, not by its
    JoinGroup: the broker may hold a JoinGroup for longer than the session, and a newcomer, which is
    in no generation yet, cannot heartbeat meanwhile. The broker expects no heartbeat from it: it
    starts the timer when the join completes, and again with the SyncGroup.

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
        """Whether records may be handed out now: the session minus its margin has not passed."""
        return self._age() < self.session_timeout_ms / 1000 * (1 - MARGIN_SHARE)

    def expired(self) -> bool:
        """Whether the last renewal is a whole session old: the member may have been fenced."""
        return self._renewed_at is not None and self._age() >= self.session_timeout_ms / 1000

    def _age(self) -> float:
        return float("inf") if self._renewed_at is None else self.clock() - self._renewed_at
