"""ClassicMembership: the classic cooperative protocol (KIP-429) with deferred revoke.

The idea of the deferral: to the group this member goes on *owning* a partition whose revoke is
requested. It says so in every JoinGroup until the partition is released, and only then asks for
the rebalance that lets the new owner have it. The broker has no timer on that; the deadline is
the consumer's.

Invariants, beside those of ``group_membership.py``:
 1. At most one join is in flight, and none begins before the result of the last is applied.
 2. What a JoinGroup claims as owned is the applied assignment at the moment of sending. A release
    after that moment asks for one more join.
 3. A generation that the coordinator does not know is no loss: the next join claims what is owned
    (``claim.py`` says why that is safe). Until then the member speaks for the generation that it
    synced last, which is the one that a coordinator that has failed over knows.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from .claim import Claim
from .group_membership import IDLE_S, AssignmentReceived, GroupMembership
from .join import Joined, JoinProtocol, Review
from .lane import Member, Verdict, verdict_of

if TYPE_CHECKING:
    from .kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class ClassicMembership(GroupMembership):
    """One member of a classic group; parameters of ``GroupMembership``."""

    def __init__(
        self,
        io: GroupCoordinator,
        config: Mapping[str, Any],
        revoking: Callable[[], Collection[TopicPartition]],
        committable: Callable[[], frozenset[TopicPartition]],
    ) -> None:
        super().__init__(io, config, revoking, committable)
        self._protocol = JoinProtocol(io, config)
        self._claim = Claim(
            self._instance_id is not None, config["max_poll_interval_ms"], self.lease.clock
        )
        self._synced = Member()  # of the generation whose assignment came last
        self._must_rejoin = True
        self._released_at: float | None = None
        self._joining = False
        self._nameless = False  # the answer to a JoinGroup under way brings the member id
        self._named = io.alarm()
        self._unapplied = False
        self._joined_topics: frozenset[str] = frozenset()
        self._led_counts: dict[str, int] | None = None  # partitions per topic, while leader
        self._join_alarm = io.alarm()

    def is_stable(self) -> bool:
        """Joined, with no join under way and no assignment waiting to be applied."""
        return self._member.joined and not self._joining and not self._unapplied

    def applied(self, event: AssignmentReceived) -> None:
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

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed."""
        self._join_alarm.notify()

    def leave(self, timeout_ms: float | None = None, reason: str = "unsubscribed") -> None:
        """Leave the group over the lane; once a member id that is on its way has come."""
        super().leave(timeout_ms, reason)
        if self._nameless:
            self._io.run(self._until_named, timeout_ms or self._config["request_timeout_ms"])

    def _forget(self) -> None:
        self._synced = Member()
        self._unapplied = False
        self._must_rejoin = True
        self._led_counts = None

    def _wake(self) -> None:
        super()._wake()
        self._join_alarm.notify()

    def _loops(self) -> tuple[Callable[[], Any], ...]:
        return (self._join_loop,)

    # -- joining ----------------------------------------------------------------------------------

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
            return IDLE_S
        if self._must_rejoin or self._metadata_changed():
            return 0
        with self._lock:
            released_at = self._released_at
        if released_at is None:
            return IDLE_S
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
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            await self._protocol.know_topics(self._io.topics)
            if self._closed:
                return 0
            return await self._join_and_sync()
        except kafka_errors.KafkaError as error:
            return self._join_failed(type(error), error)

    async def _join_and_sync(self) -> float:
        if self._synced.joined and not self._claim.stands():
            self._lose("the group may have gone on without it", keep_member_id=True)
        losses = self._losses
        topics = self._io.topics
        with self._lock:  # before the claim is taken: a later release asks again (invariant 2)
            if self._closed:
                return 0
            self._must_rejoin = False
            self._released_at = None
            member, departures = self._member, self._departures
            mine = self._synced.joined
            self._nameless = self._protocol.names_at_once and not member.member_id
        # Without a generation synced, what no poll has given up since a loss is somebody else's.
        claim = self._io.owned() if mine else frozenset()
        log.info("group %s: joining, claims %d partitions", self._group_id, len(claim))
        try:
            joined = await self._protocol.join(member, topics, claim)
            if departures != self._departures or self._left_idle:
                if not member.member_id and self._tells_leave():
                    await self._leave_async(joined.member, "left while it joined", None)
                return 0
        finally:
            self._nameless = False
            self._named.notify()
        if joined.error is kafka_errors.MemberIdRequiredError:
            with self._lock:
                self._member = joined.member
                self._must_rejoin = True
            return 0
        assigned = await self._protocol.assign(joined.members) if joined.leads else None
        with self._lock:
            if (
                losses != self._losses
            ):  # invariant 2 there: what was claimed has been given up meanwhile
                self._member = Member(member_id=joined.member.member_id)
                self._must_rejoin = True
                return 0
            self._member = joined.member
        synced_at = self.lease.clock()
        partitions = await self._protocol.sync(joined, assigned.by_member if assigned else [])
        returned = self._instance_id is not None and not member.member_id and not joined.leads
        review = await self._review(joined) if returned else Review(rebalance=False)
        with self._lock:
            if losses != self._losses:
                self._must_rejoin = True
                return 0
            self.lease.renew(synced_at)
            self._claim.stood(synced_at)
            self._member = self._synced = joined.member  # again: a heartbeat may have been refused
            self._joined_topics = topics
            self._led_counts = assigned.partition_counts if assigned else review.led_counts
            self._must_rejoin |= review.rebalance
            self._unapplied = True
            self._events.append(AssignmentReceived(joined.member.generation, partitions))
        self._hurry()
        self._commits.wake()
        return 0

    async def _review(self, joined: Joined) -> Review:
        """Whether the group must rebalance because this static member is new to it, or returns."""
        try:
            return await self._protocol.review(joined)
        except kafka_errors.KafkaError as error:
            log.info("group %s: not reviewed, joining again: %r", self._group_id, error)
            return Review(rebalance=True)

    async def _until_named(self, timeout_ms: float) -> None:
        """Wait for the answer that brings the member id, and until it is left with."""
        deadline = time.monotonic() + timeout_ms / 1000
        while self._nameless and (left := deadline - time.monotonic()) > 0:
            await self._named(left)

    def _join_failed(self, kind: type[Exception], error: Exception) -> float:
        """Draw the consequences of a failed join; seconds to wait before the next."""
        self._must_rejoin = True
        verdict = verdict_of(kind)
        if kind is kafka_errors.IllegalGenerationError:
            self._fall_back(self._member)
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

    def _fall_back(self, refused: Member) -> None:
        """The coordinator knows the member, and not this generation (invariant 3)."""
        with self._lock:
            if refused == self._member and self._synced.generation < refused.generation:
                self._member = Member(self._synced.generation, refused.member_id)
                log.info(
                    "group %s: generation %d is not known, back to %d until the next join",
                    self._group_id,
                    refused.generation,
                    self._synced.generation,
                )

    # -- heartbeats and leaving -------------------------------------------------------------------

    def _until_heartbeat(self, last_sent: float) -> float:
        beats = self._member.joined or self._joining
        return self._until_interval(last_sent) if beats else IDLE_S

    async def _beat(self) -> None:
        """A heartbeat; of a newcomer that is joining, to see whether the coordinator is there."""
        member = self._member
        if not member.joined and not self._joining:
            return
        sent_at = self.lease.clock()
        unanswered: Exception | None = None
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            error = await self._lane.heartbeat(member)
        except kafka_errors.KafkaError as failure:
            error, unanswered = type(failure), failure
        verdict = verdict_of(error)
        if unanswered is not None and verdict is Verdict.BUSY:
            verdict = Verdict.COORDINATOR_GONE  # nor will it answer a JoinGroup that it holds
        if verdict is Verdict.COORDINATOR_GONE:
            self._consider(verdict, error)
            return
        if member != self._member or not member.joined:
            return  # answers the generation before; the join has said all there is to say
        if verdict is Verdict.ACCEPTED:
            self.lease.renew(sent_at)
            self._claim.stood(sent_at)
        elif verdict is Verdict.AFTER_JOIN:
            if error is kafka_errors.RebalanceInProgressError:
                self.lease.renew(sent_at)
            else:
                self._fall_back(member)
            # While a join is held the broker may already be in the generation that it answers with.
            if not self._joining:
                self._must_rejoin = True
                self._join_alarm.notify()
        elif verdict is Verdict.REFUSED:
            self._lose(error.__name__)
            self._fail(unanswered or error())
        else:
            self._consider(verdict, error)

    async def _send_leave(self, member: Member, reason: str) -> type[Exception]:
        return await self._lane.leave(member, reason)

    def _tells_leave(self) -> bool:
        """A static member stays until its session times out."""
        return self._instance_id is None

    def _commit_accepted(self, sent_at: float) -> None:
        self.lease.renew(sent_at)  # to the broker a commit is a sign of life
