"""NextGenerationProtocol: the consumer group protocol (KIP-848) with deferred revoke.

There is no join round. Each member heartbeats; the coordinator answers with the member epoch and,
when it changed, with the member's assignment. ``reconciliation.py`` decides the consequences; this
module sends and receives. ``WantedTopics`` is its subscription: topic names, or a pattern if the
broker can match it.

Invariants, in addition to ``member_record.py``'s:
 1. At most one heartbeat is in flight.
 2. A heartbeat lists as owned the partitions that the consumer has not released, or might apply
    while the heartbeat is in flight.
 3. At most one assignment waits to be applied: the newest.
"""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...errors import UnsupportedBrokerError
from ..member_record import AssignmentReceived, Attempt, Member
from ..messages import ConsumerGroupHeartbeatRequest
from ..protocol.coordinator_answers import Consequence, after_consumer_heartbeat
from ..protocol.lane import error_of
from .classic import Leaving
from .liveness import IDLE_S, UnheardWrites
from .member_parts import BrokerRules, MemberParts
from .reconciliation import Reconciliation, Report

if TYPE_CHECKING:
    from ..kafka_python.io_loop import IoLoop
    from ..kafka_python.subscription import Subscription
    from ..kafka_python.topic_metadata import TopicMetadata

log = logging.getLogger(__name__)

#: Kafka's own topics, of all versions so far; none of them need exist when a client subscribes.
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state", "__share_group_state"})


def broker_pattern(pattern: str) -> str:
    r"""Translate a pattern of kafka-python's for the broker, to RE2 syntax.

    kafka-python's patterns are Python's and match the start of a name. The broker's match the whole
    name, and spell Python's ``\Z`` as ``\z``.
    """
    return "(?:" + re.sub(r"\\(.)", lambda e: r"\z" if e[1] == "Z" else e[0], pattern) + ").*"


def matches_internal_topics(pattern: str, internal_topics: Collection[str]) -> bool:
    """Whether a pattern of kafka-python's matches one of Kafka's own topics.

    A broker would assign that topic like any other. RE2 cannot exclude a name: it has no lookahead.

    The pattern is in Python's syntax. ``internal_topics`` are the topics that brokers call
    internal, in addition to ``INTERNAL_TOPICS``.
    """
    return any(re.match(pattern, topic) for topic in INTERNAL_TOPICS.union(internal_topics))


#: ConsumerGroupHeartbeat v1 has the regular expression.
_PATTERN_VERSION = 1


class Wanted(NamedTuple):
    """Topics by name, or a pattern for the broker to match."""

    topics: frozenset[str]
    pattern: str | None


class WantedTopics:
    """The subscription that a member of the consumer protocol sends (KIP-848).

    The member sends names, or a regular expression that the coordinator matches. If brokers cannot
    match it, or would match topics that the application must not see, the member sends the names
    that match here instead.
    """

    def __init__(
        self,
        loop: IoLoop,
        metadata: TopicMetadata,
        subscription: Subscription,
        exclude_internal_topics: bool,
    ) -> None:
        self._loop = loop
        self._metadata = metadata
        self._subscription = subscription
        self._exclude_internal_topics = exclude_internal_topics
        self._told: Wanted | None = None
        self._unreadable: str | None = None

    def now(self) -> Wanted:
        """The names or the pattern to send now."""
        pattern = self._subscription.pattern
        if (
            pattern is None
            or pattern == self._unreadable
            or not self._tells_patterns()
            or (
                self._exclude_internal_topics
                and matches_internal_topics(pattern, self._metadata.internal_topics)
            )
        ):
            return Wanted(self._subscription.topics, None)
        return Wanted(frozenset(), broker_pattern(pattern))

    def is_told(self, wanted: Wanted) -> bool:
        """Whether the coordinator knows that this is wanted."""
        return wanted == self._told

    def told(self, wanted: Wanted) -> None:
        """Note that the coordinator has accepted this."""
        self._told = wanted

    def match_here(self) -> str | None:
        """Match the current pattern here, since the broker cannot parse it; return the pattern."""
        self._unreadable = self._subscription.pattern
        return self._unreadable

    def fields(self, wanted: Wanted) -> dict[str, Any]:
        """The heartbeat fields for this subscription."""
        fields: dict[str, Any] = {"subscribed_topic_names": sorted(wanted.topics)}
        if self._tells_patterns():
            fields["subscribed_topic_regex"] = wanted.pattern or ""
        return fields

    def _tells_patterns(self) -> bool:
        return self._loop.api_version(ConsumerGroupHeartbeatRequest) >= _PATTERN_VERSION


#: Member epochs that are requests: join, leave, and leave as a static member that comes back.
_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2

#: The member gives up undrained partitions earlier than the broker, by this share of the rebalance
#: timeout: the heartbeat that says so must arrive in time, at the second attempt if need be.
_GIVE_UP_SHARE = 0.1

# If a member joined with another id before the broker fenced the old one, it would share the group
# with a dead member until the session times out. Only heartbeats reset the session timer in this
# protocol.
RULES = BrokerRules(commit_version=10, member_id_survives=True, commits_are_signs_of_life=False)


class NextGenerationProtocol:
    """Joins, heartbeats and reconciles one member of a consumer-protocol group.

    ``assignor`` is the server-side one (``group.remote.assignor``); the broker's default if None.
    """

    by_topic_id = True

    def __init__(self, parts: MemberParts, assignor: str | None = None) -> None:
        self._parts = parts
        self._io = parts.io
        self._metadata = parts.metadata
        self._subscription = parts.subscription
        self._record = parts.record
        self._assignor = assignor
        self._rebalance_timeout_ms: int = parts.config["max_poll_interval_ms"]
        self._added_ms = 0
        self._unheard = UnheardWrites()
        self._leaving = Leaving(parts.io, parts.group_id, self._send_leave)
        self._reconciliation = self._new_reconciliation()
        # As received, by topic id: the names of its topics may not be known yet.
        self._assignment: dict[uuid.UUID, list[int]] = {}
        self._decided_at = 0.0
        self._wanted = WantedTopics(
            parts.loop, parts.metadata, parts.subscription, parts.config["exclude_internal_topics"]
        )
        self._session_known = False
        self._unreleased_since: float | None = None

    def topic_id_of(self, partition: TopicPartition) -> uuid.UUID | None:
        """The id of the topic that the coordinator has assigned; None if it is not owned."""
        return self._reconciliation.owned.get(partition)

    def is_stable(self) -> bool:
        """Whether it has joined, and the coordinator knows that it owns exactly its assignment."""
        record = self._record
        with record.lock:
            settled = not record.any_waits() and self._reconciliation.reconciled
            return record.member.joined and settled

    def taken(self, event: AssignmentReceived) -> None:
        """Treat the event's partitions as owned from now on; the record is locked.

        Otherwise, if a smaller target arrived while the consumer applies this one, it would be
        acknowledged, and the coordinator would give away partitions that the consumer is about to
        own.
        """
        self._reconciliation.own(event.topic_ids)

    def applied(self, event: AssignmentReceived) -> None:
        """Acknowledge the applied assignment, unless something is still to be revoked."""
        self._wake()

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """Give up these partitions; report it once the whole surplus is given up."""
        self._parts.commits.drop(partitions)
        with self._record.lock:
            self._reconciliation.release(partitions)
            if self._reconciliation.missing:
                self._offer_assignment()
        self._wake()

    def on_metadata_update(self) -> None:
        """Try again to resolve topic names; the subscription may also have gained topics."""
        with self._record.lock:
            if not self._reconciliation.complete:
                self._resolve()
        self._wake()

    async def run(self) -> None:
        """Do nothing: nothing but the heartbeats runs in this protocol."""

    def wake(self) -> None:
        """Do nothing: nothing but the heartbeats waits."""

    def forget(self) -> None:
        """Reset the state after the membership ended; the record is locked."""
        self._reconciliation = self._new_reconciliation()
        self._assignment = {}
        self._session_known = False  # an administrator may change it

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Leave. A static member says it will be back, and keeps all until its session ends."""
        self._leaving.leave(member, reason, timeout_ms)

    async def leave_async(self, member: Member, reason: str) -> None:
        """As ``leave``, on the I/O loop."""
        await self._leaving.leave_async(member, reason)

    def _wake(self) -> None:
        """Wake the heartbeats, since one may be due."""
        self._parts.heartbeat_alarm.notify()

    def _new_reconciliation(self) -> Reconciliation:
        return Reconciliation(self._rebalance_timeout_ms / 1000 * (1 - _GIVE_UP_SHARE))

    # -- heartbeats -------------------------------------------------------------------------------

    def until_beat(self) -> float:
        """Seconds until the next heartbeat is due."""
        schedule = self._parts.schedule
        if self._parts.liveness.out or not self._subscription.subscribed:
            return IDLE_S
        if (held_for := schedule.held_for()) > 0:
            return held_for
        if not self._record.member.joined or not self._wanted.is_told(self._wanted.now()):
            return 0
        with self._record.lock:
            if self._reconciliation.acknowledgement_due:
                return 0
            revoke_by = self._reconciliation.revoke_by
        return min(schedule.until_due(), revoke_by - self._parts.clock())

    async def beat(self) -> None:
        """Send one heartbeat and apply the consequences of its answer."""
        record = self._record
        attempt = record.attempt()
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            if not self._session_known:
                await self._learn_session_timeout()
            if record.overtaken(attempt) or record.closed or not self._subscription.subscribed:
                return
            await self._heartbeat(attempt)
        except kafka_errors.IncompatibleBrokerVersion as error:
            record.failure = _unsupported(self._parts.group_id, str(error))
        except kafka_errors.KafkaError as error:
            if not record.overtaken(attempt):
                self._refused(type(error), str(error))
        if record.failure is not None and attempt.member.joined:
            await self.leave_async(attempt.member, "failed for good")  # so that none waits for it

    async def _heartbeat(self, attempt: Attempt) -> None:
        record, parts = self._record, self._parts
        self._give_up_overdue()
        if not self._reconciliation.complete:
            self._metadata.refresh()
        with record.lock:
            if record.overtaken(attempt):
                return
            if not record.member.member_id:
                record.become(Member(member_id=str(uuid.uuid4())))
            member = record.member
            report = self._reconciliation.sending(parts.clock(), joining=not member.joined)
        wanted = self._wanted.now()
        fields = self._fields(report, wanted)
        sent_at = parts.lease.clock()
        response = await parts.lane.consumer_group_heartbeat(
            member, member.generation if member.joined else _JOIN_EPOCH, fields
        )
        if record.overtaken(attempt):
            return  # answers a membership that has ended
        error = error_of(response.error_code)
        if self._unheard.answered(error):
            # A changed member makes the coordinator write; 1 ms changes nothing else.
            self._added_ms ^= 1
        if response.error_code:
            self._refused(error, response.error_message or "")
            return
        self._wanted.told(wanted)
        self._unreleased_since = None
        parts.schedule.agree(response.heartbeat_interval_ms / 1000)
        answered = Member(response.member_epoch, response.member_id or member.member_id)
        with record.lock:
            if not record.accept(attempt, answered):
                return
            parts.lease.renew(sent_at)
            parts.schedule.accepted()
            since = self._reconciliation.answered(report)
            if response.assignment is not None:
                self._decided_at = since
                self._assignment = {
                    topic.topic_id: list(topic.partitions)
                    for topic in response.assignment.topic_partitions
                }
                self._resolve()
        if answered != member:
            parts.commits.wake()
        if response.assignment is not None:
            parts.hurry()

    def _fields(self, report: Report, wanted: Wanted) -> dict[str, Any]:
        """The optional fields: all, or only the changed ones."""
        fields: dict[str, Any] = {}
        if report.all_fields:
            fields["rebalance_timeout_ms"] = self._rebalance_timeout_ms + self._added_ms
            fields["server_assignor"] = self._assignor
            fields["rack_id"] = self._parts.config["client_rack"] or None
        if report.all_fields or not self._wanted.is_told(wanted):
            fields |= self._wanted.fields(wanted)
        if report.owned is not None:
            by_topic: dict[uuid.UUID, list[int]] = {}
            for partition, topic_id in sorted(report.owned.items()):
                by_topic.setdefault(topic_id, []).append(partition.partition)
            fields["topic_partitions"] = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic.items()
            ]
        return fields

    async def _learn_session_timeout(self) -> None:
        """Request the session timeout: the broker sets it, and no heartbeat response has it."""
        session_timeout_ms = await self._parts.lane.session_timeout_ms()
        if session_timeout_ms is not None:
            self._parts.lease.session_timeout_ms = session_timeout_ms
        self._session_known = True

    # -- answers ----------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Give the assignment, with topic names, to the reconciliation; locked."""
        known = {topic_id: p.topic for p, topic_id in self._reconciliation.owned.items()}
        named: dict[TopicPartition, uuid.UUID] = {}
        complete = True
        for topic_id, numbers in self._assignment.items():
            topic = known.get(topic_id) or self._metadata.topic_name(topic_id)
            if topic is None:
                complete = False
                continue
            named |= dict.fromkeys((TopicPartition(topic, number) for number in numbers), topic_id)
        self._reconciliation.retarget(named, self._decided_at, complete=complete)
        self._offer_assignment()
        if not complete:
            log.info(
                "group %s: the metadata do not have all assigned topics yet", self._parts.group_id
            )

    def _offer_assignment(self) -> None:
        """Offer the partitions to own now, in place of an unapplied assignment; locked."""
        assignable = self._reconciliation.assignable
        generation = self._record.member.generation
        self._record.offer(AssignmentReceived(generation, frozenset(assignable), assignable))

    def _give_up_overdue(self) -> None:
        """Lose the partitions that are not released by the deadline, and only those."""
        with self._record.lock:
            overdue = self._reconciliation.give_up_overdue(self._parts.clock())
            if not overdue:
                return
            self._parts.commits.drop(overdue)
            reason = f"not released within the rebalance timeout, {self._rebalance_timeout_ms} ms"
            self._record.lose_partitions(reason, overdue)
            if self._reconciliation.missing:  # the same partitions under another topic id
                self._offer_assignment()
        log.warning("group %s: lost, %s: %s", self._parts.group_id, reason, sorted(overdue))

    def _refused(self, error: type[Exception], message: str) -> None:
        """Handle a heartbeat that was not accepted, or whose outcome is unknown."""
        record = self._record
        with record.lock:
            self._reconciliation.not_answered()
        self._parts.schedule.hold(self._parts.backoff_s)
        found = after_consumer_heartbeat(error, joined=record.member.joined)
        if Consequence.MATCH_HERE in found:
            pattern = self._wanted.match_here()
            log.warning(
                "group %s: the broker rejects the pattern %r, so the client matches it instead: %s",
                self._parts.group_id,
                pattern,
                message,
            )
        elif Consequence.WAIT_FOR_INSTANCE in found:
            self._wait_for_instance(message)
        elif Consequence.UNSUPPORTED in found:
            record.lose(error.__name__)
            record.failure = _unsupported(self._parts.group_id, message)
        else:
            fenced = found is Consequence.LOST
            reason = f"{error.__name__}: {message}" if fenced else None
            failure = error(message) if Consequence.FAILED in found else None
            self._parts.draw(found, error, reason=reason, failure=failure)

    def _wait_for_instance(self, message: str) -> None:
        """Wait for a dead static member: it holds the instance id until its session times out."""
        now = self._parts.clock()
        if self._unreleased_since is None:
            self._unreleased_since = now
            log.warning(
                "group %s: waiting until the instance id is free: %s", self._parts.group_id, message
            )
        # 1.5 sessions, because the other member's last heartbeat may be recent.
        elif now - self._unreleased_since > 1.5 * self._parts.lease.session_timeout_ms / 1000:
            self._parts.fail(kafka_errors.UnreleasedInstanceIdError(message))

    # -- leaving ----------------------------------------------------------------------------------

    async def _send_leave(self, member: Member, reason: str) -> type[Exception]:
        epoch = _LEAVE_EPOCH if self._parts.instance_id is None else _LEAVE_STATIC_EPOCH
        response = await self._parts.lane.consumer_group_heartbeat(member, epoch)
        return error_of(response.error_code)


def _unsupported(group_id: str, message: str) -> UnsupportedBrokerError:
    return UnsupportedBrokerError(
        f"group {group_id!r}: the broker does not offer the consumer group protocol (KIP-848); "
        f"use group_protocol='classic': {message}"
    )
