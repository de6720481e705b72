"""ClassicProtocol: the classic cooperative protocol (KIP-429) with deferred revoke.

The idea of the deferral: to the group, this member keeps *owning* a partition whose revoke is
requested. It says so in every JoinGroup until the partition is released, and only then requests the
rebalance that lets the new owner have it. The broker has no timer on that; the deadline is the
consumer's.

Invariants, in addition to ``member_record.py``'s:
 1. At most one join is in flight, and none starts before the last one's result is applied.
 2. A JoinGroup claims as owned the applied assignment at the moment of sending. A release after
    that moment requests one more join.
 3. A generation that the coordinator does not know is no loss: the next join claims the owned
    partitions (``Claim`` explains why that is safe). Until then the member uses the generation that
    it synced last, which a coordinator knows after a failover.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..member_record import AssignmentReceived, Attempt, Member
from ..protocol.coordinator_answers import Consequence, after_heartbeat, after_join, gone_already
from ..protocol.join import Joined, JoinProtocol, Review
from .liveness import IDLE_S, UnheardWrites
from .member_parts import BrokerRules, MemberParts

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class Claim:
    """Until when no other member can have been given the partitions that a member owns.

    ILLEGAL_GENERATION says that the coordinator knows the member, in another generation. There are
    three ways to get there:

    * The coordinator has failed over. It persists a generation when the leader's assignment
      arrives; a generation that was not persisted is forgotten. The group is in the previous
      generation, and the owners of partitions in it still own them.
    * An answer to this member was lost. Its JoinGroup has claimed its partitions, and no other
      member gets claimed ones.
    * The group has continued without the member. A dynamic member is removed then, and gets
      UNKNOWN_MEMBER_ID. A static member stays, with the claims of its last JoinGroup, and the
      leader may have given the rest away. Before that, the coordinator waits for its JoinGroup for
      the rebalance timeout.

    So the claim of a dynamic member holds as long as the coordinator knows the member. The claim
    of a static member holds for the rebalance timeout after the group was last known to be in its
    generation.

    The clock gives seconds, and must run during suspension.
    """

    def __init__(self, static: bool, rebalance_timeout_ms: int, clock: Callable[[], float]) -> None:
        self._lasts_s = rebalance_timeout_ms / 1000 if static else math.inf
        self._clock = clock
        self._stood_at = -math.inf

    def stood(self, sent_at: float) -> None:
        """The coordinator accepted the member's generation in a request sent at ``sent_at``."""
        self._stood_at = max(self._stood_at, sent_at)

    def stands(self) -> bool:
        """Whether the owned partitions may be claimed: no other member was given any of them."""
        return self._clock() - self._stood_at < self._lasts_s or self._lasts_s == math.inf


class Leaving:
    """Sends a member's leave to the coordinator, by its protocol's ``send``.

    A member can leave during its first join, too. The coordinator already knows the member by then,
    and would keep it, and the partitions assigned to it, until the session times out.

    ``send`` is a coroutine function that sends the leave and returns the broker's error class.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        group_id: str,
        send: Callable[[Member, str], Coroutine[Any, Any, type[Exception]]],
    ) -> None:
        self._io = io
        self._loop = io.loop
        self._group_id = group_id
        self._send = send

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Leave, if the coordinator knows the member; not to be called on the I/O loop."""
        if member.member_id:
            self._loop.run(self.leave_async, member, reason, timeout_ms)

    async def leave_async(
        self, member: Member, reason: str, timeout_ms: float | None = None
    ) -> None:
        """Leave, if the coordinator knows the member.

        If that fails, the session timeout has the same effect.
        """
        if not member.member_id:
            return
        try:
            if self._io.coordinator_unknown():
                await self._loop.wait_for(self._io.lookup_coordinator(), timeout_ms)
            error = await self._loop.wait_for(
                self._loop.spawn(self._send, member, reason), timeout_ms
            )
        except kafka_errors.KafkaError as failure:
            error = type(failure)
        if error is kafka_errors.NoError:
            log.info("group %s: member %s left: %s", self._group_id, member.member_id, reason)
        elif gone_already(error):
            log.info("group %s: member %s had left before", self._group_id, member.member_id)
        else:
            log.warning("group %s: leaving failed: %s", self._group_id, error.__name__)


RULES = BrokerRules(commit_version=8, member_id_survives=False, commits_are_signs_of_life=True)


class ClassicProtocol:
    """Joins, heartbeats and rejoins one classic member.

    ``revoking`` returns the partitions whose revoke is requested and that are not released yet.
    """

    by_topic_id = False

    def __init__(
        self, parts: MemberParts, revoking: Callable[[], Collection[TopicPartition]]
    ) -> None:
        self._parts = parts
        self._io = parts.io
        self._loop = parts.loop
        self._metadata = parts.metadata
        self._subscription = parts.subscription
        self._record = parts.record
        self._revoking = revoking
        self._joins = JoinProtocol(parts.io, parts.config)
        self._static = parts.instance_id is not None
        self._claim = Claim(self._static, parts.config["max_poll_interval_ms"], parts.lease.clock)
        self._leaving = Leaving(parts.io, parts.group_id, parts.lane.leave)
        self._synced = Member()  # in the generation whose assignment came last
        self._must_rejoin = True
        self._released_at: float | None = None
        self._joining = False
        self._nameless = False  # the answer to a JoinGroup under way brings the member id
        self._named = parts.loop.alarm()
        self._unapplied = False
        self._joined_topics: frozenset[str] = frozenset()
        self._led_counts: dict[str, int] | None = None  # partitions per topic, while leader
        self._join_alarm = parts.loop.alarm()
        self._unheard = UnheardWrites()

    def topic_id_of(self, partition: TopicPartition) -> None:
        """None: this protocol assigns by name."""

    def is_stable(self) -> bool:
        """Whether it has joined, with no join due or under way and no assignment to be applied."""
        joins = self._must_rejoin or self._released_at is not None or self._joining
        return self._record.member.joined and not joins and not self._unapplied

    def taken(self, event: AssignmentReceived) -> None:
        """Nothing to do: no join starts until the assignment is applied."""

    def applied(self, event: AssignmentReceived) -> None:
        """The last assignment is in force: the next join may start (invariant 1)."""
        self._unapplied = False
        self._join_alarm.notify()

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up: rejoin, so that they can go to their new owner.

        Releases that come close together share one join, because each join round costs every
        member a heartbeat interval. The join starts once nothing is being revoked any more, and at
        the latest one heartbeat interval after the first release.
        """
        self._parts.commits.drop(partitions)
        with self._record.lock:
            if self._released_at is None:
                self._released_at = self._parts.clock()
        self._join_alarm.notify()

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed."""
        self._join_alarm.notify()

    def wake(self) -> None:
        """Check again whether a join is due."""
        self._join_alarm.notify()

    def forget(self) -> None:
        """The membership ended; the record is locked."""
        self._synced = Member()
        self._unapplied = False
        self._must_rejoin = True
        self._led_counts = None

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Leave the group, and wait for a member id that is on its way.

        A static member sends nothing: it stays until its session times out.
        """
        if self._static:
            return
        self._leaving.leave(member, reason, timeout_ms)
        if self._nameless:
            request_timeout_ms: float = self._parts.config["request_timeout_ms"]
            self._loop.run(self._until_named, timeout_ms or request_timeout_ms)

    async def leave_async(self, member: Member, reason: str) -> None:
        """Leave the group; a member id that is on its way leaves when it comes."""
        if not self._static:
            await self._leaving.leave_async(member, reason)

    # -- joining ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Join whenever a join is due."""
        while self._parts.active():
            wait = self._until_join()
            if wait > 0:
                await self._join_alarm(wait)
                continue
            self._joining = True
            try:
                retry_after = await self._join()
            finally:
                self._joining = False
            if retry_after > 0 and self._parts.active():
                await self._loop.sleep(retry_after)

    def _until_join(self) -> float:
        """Seconds until the next join is due; 0 if it is due now."""
        if self._unapplied or self._parts.liveness.out or not self._subscription.subscribed:
            return IDLE_S
        if self._must_rejoin or self._metadata_changed():
            return 0
        with self._record.lock:
            released_at = self._released_at
        if released_at is None:
            return IDLE_S
        if not self._revoking():
            return 0
        return max(0.0, released_at + self._parts.schedule.interval_s - self._parts.clock())

    def _metadata_changed(self) -> bool:
        if self._subscription.topics != self._joined_topics:
            return True
        led = self._led_counts
        return led is not None and self._metadata.partition_counts(led) != led

    async def _join(self) -> float:
        """One JoinGroup and SyncGroup; returns the seconds to wait before the next attempt."""
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            await self._joins.know_topics(self._subscription.topics)
            if self._record.closed:
                return 0
            return await self._join_and_sync()
        except kafka_errors.KafkaError as error:
            refused = self._record.member
            retry_after = self._join_failed(type(error), error)
            if self._record.failure is not None:
                await self.leave_async(refused, "failed for good")  # so that no member waits for it
            return retry_after

    async def _join_and_sync(self) -> float:
        record, lease = self._record, self._parts.lease
        if self._synced.joined and not self._claim.stands():
            record.lose("the group may have gone on without it", keep_member_id=True)
        topics = self._subscription.topics
        with record.lock:  # before the claim is taken: a later release asks again (invariant 2)
            if record.closed:
                return 0
            self._must_rejoin = False
            self._released_at = None
            attempt = record.attempt()
            mine = self._synced.joined
            self._nameless = self._joins.names_at_once and not attempt.member.member_id
        # If no generation is synced, partitions not given up since the loss are another member's.
        claim = self._subscription.owned() if mine else frozenset()
        log.info("group %s: joining, claiming %d partitions", self._parts.group_id, len(claim))
        try:
            joined = await self._joins.join(attempt.member, topics, claim)
            if not self._goes_on(attempt, joined):
                if not attempt.member.member_id:
                    await self.leave_async(joined.member, "left while joining")
                return 0
        finally:
            self._nameless = False
            self._named.notify()
        if joined.error is kafka_errors.MemberIdRequiredError:
            return 0
        assigned = await self._joins.assign(joined.members) if joined.leads else None
        with record.lock:
            if not record.accept(attempt, joined.member):  # claimed partitions were given up
                record.become(Member(member_id=joined.member.member_id))
                self._must_rejoin = True
                return 0
        synced_at = lease.clock()
        partitions = await self._joins.sync(joined, assigned.by_member if assigned else [])
        returned = self._static and not attempt.member.member_id and not joined.leads
        review = await self._review(joined) if returned else Review(rebalance=False)
        event = AssignmentReceived(joined.member.generation, partitions)
        with record.lock:
            # This sets the member again: a refused heartbeat may have changed it.
            if not record.accept(attempt, joined.member, event):
                self._must_rejoin = True
                return 0
            lease.renew(synced_at)
            self._claim.stood(synced_at)
            self._synced = joined.member
            self._joined_topics = topics
            self._led_counts = assigned.partition_counts if assigned else review.led_counts
            self._must_rejoin |= review.rebalance
            self._unapplied = True
        self._parts.hurry()
        self._parts.commits.wake()
        return 0

    def _goes_on(self, attempt: Attempt, joined: Joined) -> bool:
        """Whether the member, which the coordinator has let in, has not left in the meantime.

        Takes the id that it got in the same step, so that a later leave uses it.
        """
        with self._record.lock:
            if self._record.departed(attempt) or self._parts.liveness.out:
                return False
            if joined.error is kafka_errors.MemberIdRequiredError:
                self._record.become(joined.member)
                self._must_rejoin = True
            return True

    async def _review(self, joined: Joined) -> Review:
        """Whether the group must rebalance because this static member is new to it, or returns."""
        try:
            return await self._joins.review(joined)
        except kafka_errors.KafkaError as error:
            log.info(
                "group %s: cannot tell whether this static member needs a rebalance, joining "
                "again: %r",
                self._parts.group_id,
                error,
            )
            return Review(rebalance=True)

    async def _until_named(self, timeout_ms: float) -> None:
        """Wait until the answer has brought the member id, and the member has left with it."""
        deadline = self._parts.clock() + timeout_ms / 1000
        while self._nameless and (left := deadline - self._parts.clock()) > 0:
            await self._named(left)

    def _join_failed(self, kind: type[Exception], error: Exception) -> float:
        """Draw the consequences of a failed join; returns the seconds to wait before the next."""
        self._must_rejoin = True
        found = after_join(kind)
        if Consequence.FALL_BACK in found:
            self._fall_back(self._record.member)
        self._parts.draw(found, kind, failure=error)
        if Consequence.UNNAMED in found:  # even if it had not joined a generation yet
            self._record.become(Member())
        return 0 if Consequence.AT_ONCE in found else self._parts.backoff_s

    def _fall_back(self, refused: Member) -> None:
        """The coordinator knows the member, but not this generation (invariant 3)."""
        with self._record.lock:
            synced = self._synced.generation
            if refused == self._record.member and synced < refused.generation:
                self._record.become(Member(synced, refused.member_id))
                log.info(
                    "group %s: the coordinator does not know generation %d, going back to %d "
                    "until the next join",
                    self._parts.group_id,
                    refused.generation,
                    synced,
                )

    # -- heartbeats -------------------------------------------------------------------------------

    def until_beat(self) -> float:
        """Seconds until the next heartbeat is due."""
        beats = self._record.member.joined or self._joining
        return self._parts.schedule.until_due() if beats else IDLE_S

    async def beat(self) -> None:
        """Send a heartbeat; while a newcomer joins, to see whether the coordinator is there."""
        attempt = self._record.attempt()
        member = attempt.member
        if not member.joined and not self._joining:
            return
        sent_at = self._parts.lease.clock()
        unanswered: Exception | None = None
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            error = await self._parts.lane.heartbeat(member)
        except kafka_errors.KafkaError as failure:
            error, unanswered = type(failure), failure
        found = after_heartbeat(error, answered=unanswered is None)
        if unanswered is None and self._unheard.answered(error) and not self._joining:
            log.info(
                "group %s: the coordinator stays unavailable, joining again", self._parts.group_id
            )
            self._must_rejoin = True
            self._join_alarm.notify()
        if Consequence.FIND_COORDINATOR in found:
            self._parts.draw(found, error)
            return
        if not member.joined or not self._record.is_current(attempt):
            return  # it answers an earlier generation; the join has reported everything
        if Consequence.ALIVE in found:
            self._parts.lease.renew(sent_at)
            self._parts.schedule.accepted()
        if Consequence.STANDS in found:
            self._claim.stood(sent_at)
        if Consequence.FALL_BACK in found:
            self._fall_back(member)
        # While a join is held, the broker may already be in the generation of its answer.
        if Consequence.JOIN in found and not self._joining:
            self._must_rejoin = True
            self._join_alarm.notify()
        self._parts.draw(found, error, failure=unanswered)
