"""ClassicMembership: the classic cooperative protocol (KIP-429) with deferred revoke.

Runs on the consumer's I/O loop, so that heartbeats and joins go on however rarely the application
polls. It never applies anything: what happens to the assignment is recorded as an event and
applied by the consumer in its next poll.

The idea of the deferral: to the group this member goes on *owning* a partition whose revoke is
requested. It says so in every JoinGroup until the partition is released, and only then asks for
the rebalance that lets the new owner have it. The broker has no timer on that; the deadline is
the consumer's.

Invariants:
 1. At most one join is in flight, and none begins before the result of the last is applied.
 2. What a JoinGroup claims as owned is the applied assignment at the moment of sending. A release
    after that moment asks for one more join.
 3. A loss invalidates whatever was in flight: a join that was sent before it is not applied.
 4. Events are taken in the order in which they happened; a loss drops an unapplied assignment.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import MembershipError, PartitionsLostError
from .commit_loop import CommitLoop
from .join import JoinProtocol
from .lane import Lane, Member, Verdict, verdict_of
from .lease import Lease

if TYPE_CHECKING:
    from ._kafka_python import GroupCoordinator

log = logging.getLogger(__name__)

#: After a generation change every member heartbeats this often for this long: the members that
#: must still learn of the rebalance do so at their next heartbeat (DESIGN, rule 5).
HURRIED_HEARTBEAT_S = 0.15
HURRY_FOR_S = 5.0

#: How long an idle loop sleeps at most before it looks again; every change wakes it earlier.
_IDLE_S = 5.0


@dataclass(frozen=True)
class AssignmentReceived:
    """A join completed: the *whole* assignment of this member in the new generation."""

    generation: int
    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class MembershipLost:
    """This member is out of the group: whatever it owned is lost."""

    reason: str


def refuse_strangers(
    offsets: Mapping[TopicPartition, int], committable: frozenset[TopicPartition]
) -> None:
    """Raise PartitionsLostError, naming them, when some partitions may not be committed."""
    strangers = sorted(set(offsets) - committable)
    if strangers:
        named = ", ".join(f"{p.topic}-{p.partition} at {offsets[p]}" for p in strangers)
        raise PartitionsLostError(f"nothing committed, because these are not owned: {named}")


class ClassicMembership:
    """One member of a classic group.

    Parameters
    ----------
    io : GroupCoordinator
        The seam to kafka-python.
    config : mapping
        kafka-python's consumer configuration.
    revoking : callable
        The partitions whose revoke is requested and not released yet.
    committable : callable
        The partitions that may be committed: owned, and their revoke not completed.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        config: Mapping[str, Any],
        revoking: Callable[[], Collection[TopicPartition]],
        committable: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        self._io = io
        self._config = config
        self._revoking = revoking
        self._committable = committable
        self._protocol = JoinProtocol(io, config)
        self._group_id: str = config["group_id"]
        self._instance_id: str | None = config["group_instance_id"]
        self._interval_s: float = config["heartbeat_interval_ms"] / 1000
        self._backoff_s: float = config["retry_backoff_ms"] / 1000
        # A lost answer must be noticed while the session still leaves time to try again.
        timeout_ms = min(config["request_timeout_ms"], config["session_timeout_ms"] / 3)
        self._lane = Lane(io, self._group_id, self._instance_id, timeout_ms)
        self.lease = Lease(config["session_timeout_ms"])

        self._lock = threading.Lock()
        self._member = Member()
        self._events: list[AssignmentReceived | MembershipLost] = []
        self._commits = CommitLoop(
            io,
            self._lane,
            self._backoff_s,
            member=lambda: self._member,
            on_accepted=self.lease.renew,
            on_verdict=self._consider_commit,
            clock=self.lease.clock,
        )
        self._failure: Exception | None = None
        self._losses = 0  # counts; a join compares it before and after (invariant 3)

        self._must_rejoin = True
        self._released_at: float | None = None
        self._joining = False
        self._unapplied = False
        self._left_idle = False
        self._joined_topics: frozenset[str] = frozenset()
        self._led_counts: dict[str, int] | None = None  # partitions per topic, while leader
        self._last_poll = time.monotonic()
        self._hurry_until = 0.0

        self._started = False
        self._closed = False
        self._join_alarm = io.alarm()
        self._heartbeat_alarm = io.alarm()

    # -- read by any thread -----------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation joined last; -1 outside the group."""
        return self._member.generation

    @property
    def member_id(self) -> str:
        """The id that the coordinator gave this member; empty before the first join."""
        return self._member.member_id

    def is_stable(self) -> bool:
        """Joined, with no join under way and no assignment waiting to be applied."""
        return self._member.joined and not self._joining and not self._unapplied

    # -- called by the consumer, on the thread that polls ------------------------------------------

    def start(self) -> None:
        """Start the loops; idempotent. The first call is the first poll."""
        if not self._started:
            self._started = True
            self._last_poll = time.monotonic()
            for loop in (self._join_loop, self._heartbeat_loop, self._commit_loop):
                self._io.spawn(self._guarded, loop)

    def polled(self) -> None:
        """The application is alive (``max_poll_interval_ms`` counts from here)."""
        self._last_poll = time.monotonic()
        if self._left_idle:
            self._left_idle = False
            self._join_alarm.notify()

    def raise_if_failed(self) -> None:
        """Raise what ended the membership for good."""
        if self._failure is not None:
            raise self._failure

    def take_event(self) -> AssignmentReceived | MembershipLost | None:
        """The next event to apply, in order."""
        with self._lock:
            return self._events.pop(0) if self._events else None

    def loss_waits(self) -> bool:
        """Whether the next event is a loss."""
        with self._lock:
            return bool(self._events) and isinstance(self._events[0], MembershipLost)

    def applied(self) -> None:
        """The last assignment is in force: the next join may begin (invariant 1)."""
        self._unapplied = False
        self._join_alarm.notify()

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up: rejoin, so that they can go to their new owner.

        Releases that come close together share one join, because each join round costs every
        member a heartbeat interval: it begins once nothing is being revoked any more, and at the
        latest one heartbeat interval after the first release.
        """
        self._commits.drop(partitions)
        with self._lock:
            if self._released_at is None:
                self._released_at = time.monotonic()
        self._join_alarm.notify()

    def lose_if_expired(self) -> None:
        """Without a successful heartbeat for the session timeout, the membership is lost."""
        if self._member.joined and self.lease.expired():
            self._lose(
                f"no successful heartbeat for {self._config['session_timeout_ms']} ms",
                keep_member_id=True,
            )

    def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets when the lane is free, merged with what waits.

        Raises
        ------
        PartitionsLostError
            The membership is lost, even if no poll has said so yet.
        """
        with self._lock:
            if self._events and isinstance(self._events[0], MembershipLost):
                refuse_strangers(offsets, frozenset())
            self._commits.add(offsets)

    @property
    def commits(self) -> CommitLoop:
        """What waits to be committed, and what is acknowledged."""
        return self._commits

    def leave(self, timeout_ms: float | None = None, reason: str = "unsubscribed") -> None:
        """Leave the group over the lane; a static member stays until its session times out."""
        member = self._member
        self._lose_quietly()
        if member.joined and self._instance_id is None:
            self._io.run(self._leave_async, member, reason, timeout_ms)

    def close(self, timeout_ms: float | None = None) -> None:
        """Leave the group and end the loops."""
        if self._closed:
            return
        self._closed = True
        try:
            self.leave(timeout_ms, "closed")
        finally:
            for wake in (self._join_alarm.notify, self._heartbeat_alarm.notify, self._commits.wake):
                wake()

    # -- called by the seam -----------------------------------------------------------------------

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed."""
        self._join_alarm.notify()

    async def commit_now(self, offsets: Mapping[TopicPartition, int]) -> None:
        """kafka-python's ``commit()``: one attempt; raises what the library retries or reports."""
        member = self._member
        if not member.joined:
            # Outside a generation the broker would take it for a commit by hand and accept it.
            refuse_strangers(offsets, frozenset())
        refuse_strangers(offsets, self._committable())
        results = await self._lane.commit(member, offsets)
        for error in results.values():
            verdict = verdict_of(error)
            if verdict is Verdict.ACCEPTED:
                continue
            self._consider(verdict, error)
            if verdict in (Verdict.AFTER_JOIN, Verdict.BUSY, Verdict.COORDINATOR_GONE):
                raise kafka_errors.CoordinatorLoadInProgressError(str(error.__name__))
            raise error()

    # -- losing -----------------------------------------------------------------------------------

    def _lose(self, reason: str, keep_member_id: bool = False) -> None:
        """Record the loss of everything owned; thread-safe."""
        with self._lock:
            member = self._member
            if not member.joined:
                return
            self._losses += 1
            self._member = Member(member_id=member.member_id if keep_member_id else "")
            self._events = [MembershipLost(reason)]  # invariant 4
            self._commits.forget_all()
            self._unapplied = False
            self._must_rejoin = True
            self._led_counts = None
            self.lease.give_up()
        log.warning(
            "group %s: member %s of generation %d is out of the group: %s",
            self._group_id,
            member.member_id,
            member.generation,
            reason,
        )
        self._join_alarm.notify()

    def _lose_quietly(self) -> None:
        """Forget the membership because we ended it ourselves."""
        with self._lock:
            self._losses += 1
            self._member = Member()
            self._events = []
            self._commits.forget_all()
            self._unapplied = False
            self._must_rejoin = True
            self._led_counts = None
            self.lease.give_up()

    def _fail(self, error: Exception) -> None:
        self._failure = MembershipError(
            f"group {self._group_id!r}: the coordinator refuses this member for good: {error!r}"
        )
        self._failure.__cause__ = error
        log.error("%s", self._failure)

    def _consider(self, verdict: Verdict, error: type[Exception]) -> None:
        """Draw the consequences of an answer that was not an acceptance."""
        if verdict is Verdict.COORDINATOR_GONE:
            self._io.coordinator_dead(error.__name__)
        elif verdict is Verdict.FENCED:
            self._lose(error.__name__)
        elif verdict is Verdict.INSTANCE_FENCED:
            self._lose(f"{error.__name__}: another process uses {self._instance_id!r}")
            self._fail(error(self._instance_id))

    # -- the loops --------------------------------------------------------------------------------

    async def _guarded(self, loop: Callable[[], Any]) -> None:
        """A loop that dies ends the membership, and the next poll says why."""
        try:
            await loop()
        except Exception as error:
            log.exception("group %s: the membership's loop failed", self._group_id)
            self._failure = error

    def _active(self) -> bool:
        return not self._closed and not self._io.loop_closed and self._failure is None

    async def _join_loop(self) -> None:
        while self._active():
            wait = self._until_join()
            if wait > 0:
                await self._join_alarm(wait)
                continue
            self._joining = True
            try:
                retry_after = await self._join()
            finally:
                self._joining = False
            if retry_after > 0 and self._active():
                await self._io.sleep(retry_after)

    def _until_join(self) -> float:
        """Seconds until the next join is due; 0 now."""
        if self._unapplied or self._left_idle or not self._io.subscribed:
            return _IDLE_S
        if self._must_rejoin or self._metadata_changed():
            return 0
        with self._lock:
            released_at = self._released_at
        if released_at is None:
            return _IDLE_S
        if not self._revoking():
            return 0
        wait: float = max(0.0, released_at + self._interval_s - time.monotonic())
        return wait

    def _metadata_changed(self) -> bool:
        if self._io.topics != self._joined_topics:
            return True
        led = self._led_counts
        return led is not None and self._io.partition_counts(led) != led

    async def _join(self) -> float:
        """One JoinGroup and SyncGroup; seconds to wait before the next attempt is made."""
        losses = self._losses
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            await self._protocol.know_topics(self._io.topics)
            if self._closed:
                return 0
            return await self._join_and_sync(losses)
        except kafka_errors.KafkaError as error:
            return self._join_failed(type(error), error)

    async def _join_and_sync(self, losses: int) -> float:
        topics = self._io.topics
        with self._lock:  # before the claim is taken: a later release asks again (invariant 2)
            self._must_rejoin = False
            self._released_at = None
            member = self._member
        claim = self._io.owned() if member.joined else frozenset()
        sent_at = self.lease.clock()
        log.info("group %s: joining, claims %d partitions", self._group_id, len(claim))
        joined = await self._protocol.join(member, topics, claim)
        if joined.error is kafka_errors.MemberIdRequiredError:
            with self._lock:
                self._member = joined.member
                self._must_rejoin = True
            return 0
        assigned = await self._protocol.assign(joined.members) if joined.leads else None
        with self._lock:
            if losses != self._losses:  # invariant 3: what was claimed has been given up meanwhile
                self._member = Member(member_id=joined.member.member_id)
                self._must_rejoin = True
                return 0
            self._member = joined.member
        partitions = await self._protocol.sync(joined, assigned.by_member if assigned else [])
        with self._lock:
            if losses != self._losses:
                self._must_rejoin = True
                return 0
            self.lease.renew(sent_at)
            self._joined_topics = topics
            self._led_counts = assigned.partition_counts if assigned else None
            self._unapplied = True
            self._events.append(AssignmentReceived(joined.member.generation, partitions))
        self._hurry()
        self._commits.wake()
        return 0

    def _join_failed(self, kind: type[Exception], error: Exception) -> float:
        """Draw the consequences of a failed join; seconds to wait before the next."""
        self._must_rejoin = True
        verdict = verdict_of(kind)
        if kind is kafka_errors.IllegalGenerationError:
            # In SyncGroup: the group went on without this member.
            self._lose(kind.__name__, keep_member_id=True)
            return 0
        self._consider(verdict, kind)
        if verdict is Verdict.FENCED:
            self._member = Member()  # also where it had not joined a generation yet
            return 0
        if verdict is Verdict.AFTER_JOIN:
            return 0
        if verdict is Verdict.REFUSED:
            self._lose(kind.__name__)
            self._fail(error)
        return self._backoff_s

    async def _heartbeat_loop(self) -> None:
        last_sent = 0.0
        while self._active():
            now = time.monotonic()
            interval = HURRIED_HEARTBEAT_S if now < self._hurry_until else self._interval_s
            wait = last_sent + min(interval, self._interval_s) - now
            if not self._member.joined:
                wait = _IDLE_S
            if wait > 0:
                await self._heartbeat_alarm(wait)
                continue
            last_sent = now
            self.lose_if_expired()
            if await self._leave_if_idle():
                continue
            await self._beat()

    async def _beat(self) -> None:
        member = self._member
        if not member.joined:
            return
        sent_at = self.lease.clock()
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            error = await self._lane.heartbeat(member)
        except kafka_errors.KafkaError as failure:
            error = type(failure)
        if member != self._member:
            return  # answers the generation before; the join has said all there is to say
        verdict = verdict_of(error)
        if verdict is Verdict.ACCEPTED or error is kafka_errors.RebalanceInProgressError:
            self.lease.renew(sent_at)
            if verdict is Verdict.AFTER_JOIN and not self._joining:
                self._must_rejoin = True
                self._join_alarm.notify()
        elif error is kafka_errors.IllegalGenerationError:
            # While a join is held the broker may already be in the generation that it answers
            # with; otherwise the group has gone on without this member.
            if not self._joining:
                self._lose(error.__name__, keep_member_id=True)
        elif verdict is Verdict.REFUSED:
            self._lose(error.__name__)
            self._fail(error())
        else:
            self._consider(verdict, error)

    async def _leave_if_idle(self) -> bool:
        """Leave when the application has not polled for ``max_poll_interval_ms`` (livelock)."""
        limit_ms = self._config["max_poll_interval_ms"]
        if (time.monotonic() - self._last_poll) * 1000 <= limit_ms:
            return False
        member = self._member
        self._left_idle = True
        self._lose(f"no poll for max_poll_interval_ms={limit_ms}")
        if self._instance_id is None:
            await self._leave_async(member, f"no poll for {limit_ms} ms", None)
        return True

    async def _leave_async(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Tell the coordinator; when that fails, the session timeout does the same."""
        try:
            if self._io.coordinator_unknown():
                await self._io.wait_for(self._io.lookup_coordinator(), timeout_ms)
            future = self._io.spawn(self._lane.leave, member, reason)
            error = await self._io.wait_for(future, timeout_ms)
            log.info("group %s: member %s left: %s", self._group_id, member.member_id, reason)
        except kafka_errors.KafkaError as failure:
            error = type(failure)
        if error is not kafka_errors.NoError:
            log.warning("group %s: leaving failed: %s", self._group_id, error.__name__)

    async def _commit_loop(self) -> None:
        await self._commits.run(self._active)

    def _consider_commit(self, verdict: Verdict, error: type[Exception]) -> None:
        if verdict is Verdict.REFUSED:
            self._fail(error())
        self._consider(verdict, error)

    def _hurry(self) -> None:
        self._hurry_until = time.monotonic() + HURRY_FOR_S
        self._heartbeat_alarm.notify()
