"""When a member sends heartbeats, how long the membership is certain, who is alive. Pure.

The meaning of the answer to a heartbeat is in ``protocol/coordinator_answers.py``.

The clocks are the caller's. Nothing here is locked: the I/O loop and the thread that polls replace
times as a whole, and a heartbeat that is a little early or late does no harm.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from kafka import errors as kafka_errors

#: The margin is this share of the session timeout. It leaves time to record hand-outs from just
#: before the end of the lease, before the broker can give the partition away.
MARGIN_SHARE = 0.1


def suspend_aware_clock() -> float:
    """Seconds on a monotonic clock that runs while the machine is suspended (Linux: BOOTTIME)."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boottime is None else time.clock_gettime(boottime)


class Lease:
    """Bounds how long the membership is certain, by the clock alone.

    The broker fences a member that it has not heard from for the session timeout. A process that
    was stopped (SIGSTOP, a long garbage collection, a suspended machine) does not notice that; the
    lease does, from the clock alone, before anything is handed out.

    Dated by the *send* time of a request that the broker then accepted: the broker's session
    timer cannot have started earlier than that. A join is dated by its SyncGroup, not by its
    JoinGroup: the broker may hold a JoinGroup for longer than the session, and a newcomer, which is
    in no generation yet, cannot heartbeat yet. The broker expects no heartbeat from it: it
    starts the timer when the join completes, and again with the SyncGroup.

    The clock gives seconds, and must run during suspension.
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


#: A coordinator that shuts down gives one such answer, too; the next one comes from another.
_SO_MANY = 2


class UnheardWrites:
    """A coordinator that waits for a write that was replicated long ago.

    A Kafka 4 coordinator answers a heartbeat once its earlier writes for its groups are replicated.
    One that has just taken over may not notice that they are (seen with 4.3.0: the high watermark
    rises after the log was loaded, and before its listener is registered). It then answers every
    heartbeat with COORDINATOR_NOT_AVAILABLE after 5 s, until something else is written to that
    partition of ``__consumer_offsets``. A group that commits recovers with its next commit. Members
    of a quiet group would lose all their partitions when their sessions end, so they have to make
    it write.
    """

    def __init__(self) -> None:
        self._unavailable = 0

    def answered(self, error: type[Exception]) -> bool:
        """Note the answer to a heartbeat; return whether something should be written now."""
        if error is not kafka_errors.CoordinatorNotAvailableError:
            self._unavailable = 0
            return False
        self._unavailable += 1
        return self._unavailable % _SO_MANY == 0


#: After a generation change every member heartbeats this often for this long, because a member
#: learns of the rest of a rebalance with its next heartbeat.
HURRIED_HEARTBEAT_S = 0.15
HURRY_FOR_S = 5.0

#: The longest sleep of an idle loop; every change wakes it earlier.
IDLE_S = 5.0


class HeartbeatSchedule:
    """When the next heartbeat is due.

    The clock gives seconds.
    """

    def __init__(self, interval_s: float, clock: Callable[[], float]) -> None:
        #: The interval in force: as configured, or the shorter one that the coordinator names.
        self.interval_s = interval_s
        self.heard_at = -math.inf  # when the last heartbeat that was accepted was sent
        self._longest_s = interval_s
        self._clock = clock
        self._sent_at = -math.inf
        self._hurry_until = -math.inf
        self._held_until = -math.inf

    def sent(self) -> None:
        """A heartbeat is sent now."""
        self._sent_at = self._clock()

    def accepted(self) -> None:
        """The coordinator has accepted the heartbeat that was sent last."""
        self.heard_at = self._sent_at

    def agree(self, interval_s: float) -> None:
        """The coordinator names its interval (KIP-848)."""
        self.interval_s = min(interval_s, self._longest_s)

    def hurry(self) -> None:
        """The generation or the assignment has changed: heartbeat often for a while."""
        self._hurry_until = self._clock() + HURRY_FOR_S

    def hold(self, seconds: float) -> None:
        """Send no heartbeat for this long, even if one is due."""
        self._held_until = self._clock() + seconds

    def held_for(self) -> float:
        """For how many seconds no heartbeat may be sent; 0 if one may be sent now."""
        return max(0.0, self._held_until - self._clock())

    def until_due(self) -> float:
        """Seconds until the interval, maybe a hurried one, has passed; negative when overdue."""
        now = self._clock()
        hurried = now < self._hurry_until
        interval_s = min(HURRIED_HEARTBEAT_S, self.interval_s) if hurried else self.interval_s
        return self._sent_at + interval_s - now


class Liveness:
    """Whether the application that a member works for is alive.

    Two things are distinct. A member is *pumped* when ``poll_membership`` takes part in the
    rebalance. The application is *alive* when it polls itself, or reports so. By default pumping
    counts as a sign of life, because the application itself pumps: a query's pump ends with its
    query. If the pump is a thread that runs independently of the application (KIP-509), it must not
    count.

    An application that is silent for too long is out of the group until its next sign of life.

    The clock gives seconds. ``max_silence_ms``, ``pumping_counts`` and ``silence`` may be changed
    before the first heartbeat.
    """

    #: The sign of life that a silent application fails to give, and the option that bounds the
    #: silence.
    silence = "no poll for max_poll_interval_ms"

    def __init__(
        self, max_silence_ms: float, clock: Callable[[], float], *, pumping_counts: bool = True
    ) -> None:
        self.max_silence_ms = max_silence_ms
        self._clock = clock
        self.pumping_counts = pumping_counts
        self._alive_at = clock()
        self.out = False  # whether the member stays out of the group until the next sign of life

    def alive(self) -> bool:
        """The application gives a sign of life; whether that lets the member join again."""
        self._alive_at = self._clock()
        returns, self.out = self.out, False
        return returns

    def pumped(self) -> bool:
        """The member is pumped; whether that lets it join again."""
        return self.pumping_counts and self.alive()

    @property
    def silent_s(self) -> float:
        """How long ago the last sign of life is, in seconds."""
        return self._clock() - self._alive_at

    def silent_too_long(self) -> bool:
        """Whether the last sign of life is too long ago (livelock)."""
        return self.silent_s * 1000 > self.max_silence_ms

    @property
    def verdict(self) -> str:
        """Why an application that is silent for too long is out of the group."""
        return f"{self.silence}={self.max_silence_ms:.0f}"

    def stay_out(self) -> None:
        """The member leaves, and does not join before the next sign of life."""
        self.out = True
