"""GroupMembership: what a member of a consumer group does in either protocol.

Runs on the consumer's I/O loop, so that heartbeats go on however rarely the application polls. It
never applies anything: what happens to the assignment is recorded as an event and applied by the
consumer in its next poll. How to join and what a heartbeat says is the protocols' own:
``classic.py`` and ``next_generation.py``.

Invariants:
 1. Events are taken in the order in which they happened; a loss drops an unapplied assignment.
 2. A loss invalidates whatever was in flight: an answer to a request sent before it is not applied.
"""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import (
    AuthenticationError,
    AuthorizationError,
    KafkaRebalanceError,
    MembershipError,
)
from .commit_loop import CommitLoop, EnteredCommit, not_owned
from .lane import Lane, Member, Verdict, verdict_of
from .lease import Lease
from .progress import Committable

if TYPE_CHECKING:
    from .kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: After a generation change every member heartbeats this often for this long: the members that
#: must still learn of the rebalance do so at their next heartbeat (DESIGN, rule 5).
HURRIED_HEARTBEAT_S = 0.15
HURRY_FOR_S = 5.0

#: How long an idle loop sleeps at most before it looks again; every change wakes it earlier.
IDLE_S = 5.0


@dataclass(frozen=True)
class AssignmentReceived:
    """The *whole* assignment of this member in a generation, or at a member epoch.

    Attributes
    ----------
    generation : int
        Generation (classic) or member epoch.
    partitions : frozenset of TopicPartition
        What the member shall own.
    topic_ids : dict of TopicPartition to UUID
        Under which topic id each is assigned; empty in the classic protocol, which has none.
    """

    generation: int
    partitions: frozenset[TopicPartition]
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)


@dataclass(frozen=True)
class Lost:
    """Partitions are lost; with ``partitions`` None the membership, and whatever it owned."""

    reason: str
    partitions: frozenset[TopicPartition] | None = None


def refuse_strangers(
    offsets: Mapping[TopicPartition, Committable], committable: frozenset[TopicPartition]
) -> None:
    """Raise PartitionsLostError, naming them, when some partitions may not be committed."""
    strangers = offsets.keys() - committable
    if strangers:
        raise not_owned({p: offsets[p] for p in strangers})


class GroupMembership(ABC):
    """One member of a group, in either protocol.

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

    #: OffsetCommit: up to v8 the classic protocol's meaning, from v9 on a member epoch fences.
    _commit_version = 8

    #: Whether the member id stays the same when the member is fenced.
    _member_id_survives = False

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
        self._group_id: str = config["group_id"]
        self._instance_id: str | None = config["group_instance_id"]
        self._interval_s: float = config["heartbeat_interval_ms"] / 1000
        self._backoff_s: float = config["retry_backoff_ms"] / 1000
        # A lost answer must be noticed while the session still leaves time to try again.
        timeout_ms = min(config["request_timeout_ms"], config["session_timeout_ms"] / 3)
        self._lane = Lane(io, self._group_id, self._instance_id, timeout_ms, self._commit_version)
        self.lease = Lease(config["session_timeout_ms"])

        self._lock = threading.Lock()
        self._member = Member()
        self._events: list[AssignmentReceived | Lost] = []
        self._commits = CommitLoop(
            io,
            self._lane,
            self._backoff_s,
            member=lambda: self._member if self._member.joined else None,
            on_accepted=self._commit_accepted,
            on_verdict=self._consider_commit,
            clock=self.lease.clock,
        )
        self._failure: Exception | None = None
        self._losses = 0  # counts; what is in flight compares it before and after (invariant 2)

        self._departures = 0  # likewise, of what this member ended itself

        self._left_idle = False
        self._last_poll = time.monotonic()
        self._hurry_until = 0.0
        self._started = False
        self._closed = False
        self._heartbeat_alarm = io.alarm()

    # -- what the protocols differ in -------------------------------------------------------------

    @abstractmethod
    def is_stable(self) -> bool:
        """Joined, with no join under way and no assignment waiting to be applied."""

    @abstractmethod
    def applied(self, event: AssignmentReceived) -> None:
        """The assignment is in force."""

    @abstractmethod
    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up, so that they can go to their new owner."""

    @abstractmethod
    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed."""

    @abstractmethod
    def _loops(self) -> tuple[Callable[[], Any], ...]:
        """The protocol's coroutines beside heartbeats and commits."""

    @abstractmethod
    def _until_heartbeat(self, last_sent: float) -> float:
        """Seconds until the next heartbeat is due; 0 now."""

    @abstractmethod
    async def _beat(self) -> None:
        """Send one heartbeat and draw the consequences of its answer."""

    @abstractmethod
    def _forget(self) -> None:
        """The membership ended, and with it whatever the protocol had under way; locked."""

    @abstractmethod
    async def _send_leave(self, member: Member, reason: str) -> type[Exception]:
        """Tell the coordinator that this member leaves; the broker's error class."""

    @abstractmethod
    def _tells_leave(self) -> bool:
        """Whether the coordinator is told at all that this member leaves."""

    @abstractmethod
    def _commit_accepted(self, sent_at: float) -> None:
        """A commit that was sent at ``sent_at`` was accepted."""

    # -- read by any thread -----------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation or member epoch joined last; -1 outside the group."""
        return self._member.generation

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows this member; empty before the first join."""
        return self._member.member_id

    @property
    def commits(self) -> CommitLoop:
        """What waits to be committed, and what is acknowledged."""
        return self._commits

    # -- called by the consumer, on the thread that polls ------------------------------------------

    def start(self) -> None:
        """Start the loops; idempotent. The first call is the first poll."""
        if not self._started:
            self._started = True
            self._last_poll = time.monotonic()
            for loop in (*self._loops(), self._heartbeat_loop, self._commit_loop):
                self._io.spawn(self._guarded, loop)

    def polled(self) -> None:
        """The application is alive (``max_poll_interval_ms`` counts from here)."""
        self._last_poll = time.monotonic()
        if self._left_idle:
            self._left_idle = False
            self._wake()

    def raise_if_failed(self) -> None:
        """Raise what ended the membership for good."""
        if self._failure is not None:
            raise self._failure

    def take_event(self) -> AssignmentReceived | Lost | None:
        """The next event to apply, in order."""
        with self._lock:
            return self._events.pop(0) if self._events else None

    def loss_waits(self) -> bool:
        """Whether the next event is a loss."""
        with self._lock:
            return bool(self._events) and isinstance(self._events[0], Lost)

    def lose_if_expired(self) -> None:
        """Without a successful heartbeat for the session timeout, the membership is lost."""
        if self._member.joined and self.lease.expired():
            self._lose(
                f"no successful heartbeat for {self.lease.session_timeout_ms:g} ms",
                keep_member_id=True,
            )

    def commit(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Commit these next offsets when the lane is free, merged with what waits.

        Raises
        ------
        PartitionsLostError
            They are lost, even if no poll has said so yet.
        """
        with self._lock:
            self._refuse_lost(offsets)
            self._commits.add(offsets)

    def commit_by_hand(self, by_hand: EnteredCommit) -> None:
        """Commit what the application commits itself, in one order with all other commits.

        Raises
        ------
        PartitionsLostError
            As ``commit`` does; also outside a generation, where the broker would take it for the
            commit of a group without members and accept it.
        """
        committable = self._committable()
        with self._lock:
            refuse_strangers(by_hand.offsets, committable if self._member.joined else frozenset())
            self._refuse_lost(by_hand.offsets)
            self._commits.enter(by_hand)

    def refuse_lost(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        """Raise PartitionsLostError, naming them, when some are lost, as ``commit`` does."""
        with self._lock:
            self._refuse_lost(offsets)

    def any_lost(self, partitions: Collection[TopicPartition]) -> bool:
        """Whether some of these are lost, even if no poll has said so yet."""
        with self._lock:
            losses = [event for event in self._events if isinstance(event, Lost)]
        return any(
            bool(partitions)
            if loss.partitions is None
            else not loss.partitions.isdisjoint(partitions)
            for loss in losses
        )

    def leave(self, timeout_ms: float | None = None, reason: str = "unsubscribed") -> None:
        """Leave the group over the lane.

        In the midst of the first join, too: the coordinator has the member by then, and would keep
        it, and what it assigns to it, until the session times out.
        """
        member = self._member
        self._lose_quietly()
        if member.member_id and self._tells_leave():
            self._io.run(self._leave_async, member, reason, timeout_ms)

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group now, as an application that does not poll; the next poll joins again."""
        self._io.spawn(self._leave_idle, reason)

    def close(self, timeout_ms: float | None = None) -> None:
        """Leave the group and end the loops."""
        if self._closed:
            return
        self._closed = True
        try:
            self.leave(timeout_ms, "closed")
        finally:
            self._wake()
            self._commits.wake()

    # -- losing -----------------------------------------------------------------------------------

    def _refuse_lost(self, offsets: Mapping[TopicPartition, Committable]) -> None:
        for event in self._events:
            if isinstance(event, Lost):
                gone = event.partitions
                kept = frozenset() if gone is None else frozenset(offsets) - gone
                refuse_strangers(offsets, kept)

    def _lose(self, reason: str, keep_member_id: bool = False) -> None:
        """Record the loss of everything owned; thread-safe."""
        with self._lock:
            member = self._member
            if not member.joined:
                return
            kept = keep_member_id or self._member_id_survives
            self._end_membership(Member(member_id=member.member_id if kept else ""))
            self._events = [Lost(reason)]  # invariant 1
        log.warning(
            "group %s: member %s of generation %d is out of the group: %s",
            self._group_id,
            member.member_id,
            member.generation,
            reason,
        )
        self._wake()

    def _lose_quietly(self) -> None:
        """Forget the membership because we ended it ourselves."""
        with self._lock:
            self._departures += 1
            self._end_membership(Member())
            self._events = []

    def _end_membership(self, member: Member) -> None:
        self._losses += 1
        self._member = member
        self._commits.forget_all()
        self.lease.give_up()
        self._forget()

    def _fail(self, error: Exception) -> None:
        self._failure = self._explained(error)
        self._failure.__cause__ = error
        log.error("%s", self._failure)

    def _explained(self, error: Exception) -> KafkaRebalanceError:
        group = f"group {self._group_id!r}"
        if isinstance(error, AuthenticationError):
            return AuthenticationError(f"{group}: {error}")
        if isinstance(error, kafka_errors.GroupAuthorizationFailedError):
            return AuthorizationError(f"{group}: membership takes READ on the group: {error!r}")
        if isinstance(error, kafka_errors.TopicAuthorizationFailedError):
            return AuthorizationError(
                f"{group}: membership takes READ on each of its topics, here "
                f"{', '.join(sorted(self._io.topics))}: {error!r}"
            )
        return MembershipError(f"{group}: the coordinator refuses this member for good: {error!r}")

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
            if self._closed or self._io.loop_closed:
                # Whatever the loop waited for went away with the connections.
                log.debug(
                    "group %s: a loop ended as the client was closed: %r", self._group_id, error
                )
                return
            log.exception("group %s: the membership's loop failed", self._group_id)
            self._failure = error

    def _active(self) -> bool:
        return not self._closed and not self._io.loop_closed and self._failure is None

    def _wake(self) -> None:
        """Something changed that a waiting loop must look at."""
        self._heartbeat_alarm.notify()

    async def _heartbeat_loop(self) -> None:
        last_sent = 0.0
        while self._active():
            wait = self._until_heartbeat(last_sent)
            if wait > 0:
                await self._heartbeat_alarm(wait)
                continue
            last_sent = time.monotonic()
            self.lose_if_expired()
            if await self._leave_if_idle():
                continue
            await self._beat()

    def _until_interval(self, last_sent: float) -> float:
        """Seconds until the heartbeat interval, maybe a hurried one, has passed."""
        now = time.monotonic()
        interval = HURRIED_HEARTBEAT_S if now < self._hurry_until else self._interval_s
        return last_sent + min(interval, self._interval_s) - now

    def _hurry(self) -> None:
        self._hurry_until = time.monotonic() + HURRY_FOR_S
        self._heartbeat_alarm.notify()

    async def _leave_if_idle(self) -> bool:
        """Leave when the application has not polled for ``max_poll_interval_ms`` (livelock)."""
        limit_ms = self._config["max_poll_interval_ms"]
        if (time.monotonic() - self._last_poll) * 1000 <= limit_ms:
            return False
        await self._leave_idle(f"no poll for max_poll_interval_ms={limit_ms}")
        return True

    async def _leave_idle(self, reason: str) -> None:
        """Leave, and stay out of the group until the next poll."""
        member = self._member
        self._left_idle = True
        self._lose(reason)
        if member.member_id and self._tells_leave():
            await self._leave_async(member, reason, None)

    async def _leave_async(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Tell the coordinator; when that fails, the session timeout does the same."""
        try:
            if self._io.coordinator_unknown():
                await self._io.wait_for(self._io.lookup_coordinator(), timeout_ms)
            error = await self._io.wait_for(
                self._io.spawn(self._send_leave, member, reason), timeout_ms
            )
        except kafka_errors.KafkaError as failure:
            error = type(failure)
        if error is kafka_errors.NoError:
            log.info("group %s: member %s left: %s", self._group_id, member.member_id, reason)
        elif verdict_of(error) in (Verdict.FENCED, Verdict.INSTANCE_FENCED):
            log.info("group %s: member %s is gone already", self._group_id, member.member_id)
        else:
            log.warning("group %s: leaving failed: %s", self._group_id, error.__name__)

    async def _commit_loop(self) -> None:
        await self._commits.run(self._active)

    def _consider_commit(self, verdict: Verdict, error: type[Exception], detail: str) -> None:
        if verdict is Verdict.REFUSED:
            self._fail(error(detail))
        self._consider(verdict, error)
