"""NextGenerationMembership: the consumer group protocol (KIP-848) with deferred revoke.

There is no join round: each member heartbeats, and the coordinator answers with the member epoch
and, when it changed, with what the member shall own. What that means is decided in
``reconciliation.py``; this module sends and receives.

Invariants, beside those of ``group_membership.py``:
 1. At most one heartbeat is in flight.
 2. A heartbeat lists as owned what the consumer has not released, and what it may take to apply
    while the heartbeat is under way.
 3. At most one assignment waits to be applied: the newest.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..errors import UnsupportedBrokerError
from .group_membership import IDLE_S, AssignmentReceived, GroupMembership, Lost
from .lane import Member, Verdict, error_of, verdict_of
from .messages import ConsumerGroupHeartbeatRequest
from .reconciliation import Reconciliation, Report
from .topic_patterns import broker_pattern, matches_internal_topics

if TYPE_CHECKING:
    from .kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: Member epochs of the protocol that are requests.
_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2

#: How much earlier than the broker, as a share of the rebalance timeout, the member gives up what
#: is not drained: the heartbeat that says so must arrive in time, at the second attempt if need be.
_GIVE_UP_SHARE = 0.1

#: ConsumerGroupHeartbeat v1 has the regular expression.
_PATTERN_VERSION = 1

#: INVALID_REGULAR_EXPRESSION, an error that kafka-python has no class for.
_INVALID_REGULAR_EXPRESSION = 128


class NextGenerationMembership(GroupMembership):
    """One member of a consumer-protocol group; parameters of ``GroupMembership`` and:

    Parameters
    ----------
    assignor : str, optional
        The server-side assignor (``group.remote.assignor``); the broker's default if None.
    """

    _commit_version = 9
    # Joining with another id while the broker has not fenced the old one, it would share its
    # group, until the session times out, with a member that nobody is.
    _member_id_survives = True

    def __init__(
        self,
        io: GroupCoordinator,
        config: Mapping[str, Any],
        revoking: Callable[[], Collection[TopicPartition]],
        committable: Callable[[], frozenset[TopicPartition]],
        assignor: str | None = None,
    ) -> None:
        super().__init__(io, config, revoking, committable)
        self._assignor = assignor
        self._longest_interval_s = self._interval_s
        self._rebalance_timeout_ms: int = config["max_poll_interval_ms"]
        self._reconciliation = self._new_reconciliation()
        # As it came, by topic id: its topics may not be known by name yet.
        self._assignment: dict[uuid.UUID, list[int]] = {}
        self._decided_at = 0.0
        self._sent_subscription: tuple[frozenset[str], str | None] | None = None
        self._pattern_refused: str | None = None
        self._session_known = False
        self._unreleased_since: float | None = None
        self._not_before = 0.0

    def is_stable(self) -> bool:
        """Joined, and what it owns is what the coordinator has assigned and knows it to own."""
        with self._lock:
            return self._member.joined and not self._events and self._reconciliation.reconciled

    def take_event(self) -> AssignmentReceived | Lost | None:
        """The next event to apply. What it assigns counts as owned from here on.

        Else a smaller target that came while the consumer applies it would be acknowledged, and
        others given what the consumer is about to own.
        """
        with self._lock:
            event = self._events.pop(0) if self._events else None
            if isinstance(event, AssignmentReceived):
                self._reconciliation.own(event.topic_ids)
            return event

    def applied(self, event: AssignmentReceived) -> None:
        """The assignment is in force: acknowledge it unless something is still to be revoked."""
        self._wake()

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up: tell the coordinator once all that it wants is."""
        self._commits.drop(partitions)
        with self._lock:
            self._reconciliation.release(partitions)
            if self._reconciliation.missing:
                self._offer_assignment()
        self._wake()

    def on_metadata_update(self) -> None:
        """Topics may have got a name, or the subscription more topics."""
        with self._lock:
            if not self._reconciliation.complete:
                self._resolve()
        self._wake()

    def _loops(self) -> tuple[Callable[[], Any], ...]:
        return ()

    def _forget(self) -> None:
        self._reconciliation = self._new_reconciliation()
        self._assignment = {}
        self._session_known = False  # whoever administers the group may change it

    def _new_reconciliation(self) -> Reconciliation:
        return Reconciliation(self._rebalance_timeout_ms / 1000 * (1 - _GIVE_UP_SHARE))

    def _commit_accepted(self, sent_at: float) -> None:
        """Not a sign of life: in this protocol only heartbeats reset the broker's session timer."""

    # -- heartbeats -------------------------------------------------------------------------------

    def _until_heartbeat(self, last_sent: float) -> float:
        if self._left_idle or not self._io.subscribed:
            return IDLE_S
        now = time.monotonic()
        if now < self._not_before:
            return self._not_before - now
        if not self._member.joined or self._subscription() != self._sent_subscription:
            return 0
        with self._lock:
            if self._reconciliation.acknowledgement_due:
                return 0
            revoke_by = self._reconciliation.revoke_by
        return min(self._until_interval(last_sent), revoke_by - now)

    async def _beat(self) -> None:
        losses = self._losses
        try:
            if self._io.coordinator_unknown():
                await self._io.lookup_coordinator()
            if not self._session_known:
                await self._learn_session_timeout()
            if losses != self._losses or self._closed or not self._io.subscribed:
                return
            await self._heartbeat(losses)
        except kafka_errors.IncompatibleBrokerVersion as error:
            self._failure = UnsupportedBrokerError(
                f"group {self._group_id!r}: the broker does not offer the consumer group protocol "
                f"(KIP-848); use group_protocol='classic': {error}"
            )
        except kafka_errors.KafkaError as error:
            if losses == self._losses:
                self._refused(type(error), str(error))

    async def _heartbeat(self, losses: int) -> None:
        self._give_up_overdue()
        if not self._reconciliation.complete:
            self._io.refresh_metadata()
        with self._lock:
            if not self._member.member_id:
                self._member = Member(member_id=str(uuid.uuid4()))
            member = self._member
            report = self._reconciliation.sending(time.monotonic(), joining=not member.joined)
        subscription = self._subscription()
        fields = self._fields(report, subscription)
        sent_at = self.lease.clock()
        response = await self._lane.consumer_group_heartbeat(
            member, member.generation if member.joined else _JOIN_EPOCH, fields
        )
        if losses != self._losses:
            return  # answers a membership that has ended
        if response.error_code:
            self._refused(error_of(response.error_code), response.error_message or "")
            return
        self._sent_subscription = subscription
        self._unreleased_since = None
        self._interval_s = min(response.heartbeat_interval_ms / 1000, self._longest_interval_s)
        with self._lock:
            if losses != self._losses:
                return
            self._member = Member(response.member_epoch, response.member_id or member.member_id)
            self.lease.renew(sent_at)
            since = self._reconciliation.answered(report)
            if response.assignment is not None:
                self._decided_at = since
                self._assignment = {
                    topic.topic_id: list(topic.partitions)
                    for topic in response.assignment.topic_partitions
                }
                self._resolve()
        if self._member != member:
            self._commits.wake()
        if response.assignment is not None:
            self._hurry()

    def _fields(
        self, report: Report, subscription: tuple[frozenset[str], str | None]
    ) -> dict[str, Any]:
        """The optional fields: all of them, or those that changed."""
        fields: dict[str, Any] = {}
        if report.all_fields:
            fields["rebalance_timeout_ms"] = self._rebalance_timeout_ms
            fields["server_assignor"] = self._assignor
            fields["rack_id"] = self._config["client_rack"] or None
        if report.all_fields or subscription != self._sent_subscription:
            topics, pattern = subscription
            fields["subscribed_topic_names"] = sorted(topics)
            if self._io.api_version(ConsumerGroupHeartbeatRequest) >= _PATTERN_VERSION:
                fields["subscribed_topic_regex"] = pattern or ""
        if report.owned is not None:
            by_topic: dict[uuid.UUID, list[int]] = {}
            for partition, topic_id in sorted(report.owned.items()):
                by_topic.setdefault(topic_id, []).append(partition.partition)
            fields["topic_partitions"] = [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=numbers)
                for topic_id, numbers in by_topic.items()
            ]
        return fields

    def _subscription(self) -> tuple[frozenset[str], str | None]:
        """Topic names, those of a pattern too if need be; or a pattern for the broker to match."""
        pattern = self._io.pattern
        if (
            pattern is None
            or pattern == self._pattern_refused
            or self._io.api_version(ConsumerGroupHeartbeatRequest) < _PATTERN_VERSION
            or (
                self._config["exclude_internal_topics"]
                and matches_internal_topics(pattern, self._io.internal_topics)
            )
        ):
            return self._io.topics, None
        return frozenset(), broker_pattern(pattern)

    async def _learn_session_timeout(self) -> None:
        """The broker sets the session timeout, and does not say so in any answer to a heartbeat."""
        session_timeout_ms = await self._lane.session_timeout_ms()
        if session_timeout_ms is not None:
            self.lease.session_timeout_ms = session_timeout_ms
        self._session_known = True

    # -- answers ----------------------------------------------------------------------------------

    def _resolve(self) -> None:
        """Give the assignment to the reconciliation, by name; locked."""
        known = {topic_id: p.topic for p, topic_id in self._reconciliation.owned.items()}
        named: dict[TopicPartition, uuid.UUID] = {}
        complete = True
        for topic_id, numbers in self._assignment.items():
            topic = known.get(topic_id) or self._io.topic_name(topic_id)
            if topic is None:
                complete = False
                continue
            named |= dict.fromkeys((TopicPartition(topic, number) for number in numbers), topic_id)
        self._reconciliation.retarget(named, self._decided_at, complete=complete)
        self._offer_assignment()
        if not complete:
            log.info("group %s: assigned topics that the metadata lack yet", self._group_id)

    def _offer_assignment(self) -> None:
        """Let the consumer apply what may be owned now, instead of what still waits; locked."""
        assignable = self._reconciliation.assignable
        self._events = [event for event in self._events if isinstance(event, Lost)]
        self._events.append(
            AssignmentReceived(self._member.generation, frozenset(assignable), assignable)
        )

    def _give_up_overdue(self) -> None:
        """At the deadline the partitions that are not released, and only those, are lost."""
        with self._lock:
            overdue = self._reconciliation.give_up_overdue(time.monotonic())
            if not overdue:
                return
            self._commits.drop(overdue)
            reason = f"not released within the rebalance timeout, {self._rebalance_timeout_ms} ms"
            waiting = [event for event in self._events if not isinstance(event, Lost)]
            losses = [event for event in self._events if isinstance(event, Lost)]
            self._events = [*losses, Lost(reason, overdue), *waiting]
            if self._reconciliation.missing:  # under another topic id
                self._offer_assignment()
        log.warning("group %s: lost, %s: %s", self._group_id, reason, sorted(overdue))

    def _refused(self, error: type[Exception], message: str) -> None:
        """The heartbeat was not accepted, or it is not known whether it was."""
        with self._lock:
            self._reconciliation.not_answered()
        self._not_before = time.monotonic() + self._backoff_s
        joined = self._member.joined
        verdict = verdict_of(error)
        if getattr(error, "errno", None) == _INVALID_REGULAR_EXPRESSION:
            self._pattern_refused = self._io.pattern
            log.warning(
                "group %s: the broker cannot read the pattern %r, matching it here instead: %s",
                self._group_id,
                self._pattern_refused,
                message,
            )
        elif error is kafka_errors.UnreleasedInstanceIdError:
            self._wait_for_instance(message)
        elif error is kafka_errors.UnsupportedVersionError:
            self._lose(error.__name__)
            self._failure = UnsupportedBrokerError(
                f"group {self._group_id!r}: the broker does not offer the consumer group protocol "
                f"(KIP-848); use group_protocol='classic': {message}"
            )
        elif verdict is Verdict.REFUSED or (verdict is Verdict.FENCED and not joined):
            self._lose(error.__name__)
            self._fail(error(message))
        elif verdict is Verdict.FENCED:
            self._lose(f"{error.__name__}: {message}")
        else:
            self._consider(verdict, error)

    def _wait_for_instance(self, message: str) -> None:
        """A static member that died holds its instance id until its session times out."""
        now = time.monotonic()
        if self._unreleased_since is None:
            self._unreleased_since = now
            log.warning("group %s: %s: waiting for it", self._group_id, message)
        # Half as much again, since the other's last heartbeat is not known to be old.
        elif now - self._unreleased_since > 1.5 * self.lease.session_timeout_ms / 1000:
            self._fail(kafka_errors.UnreleasedInstanceIdError(message))

    # -- leaving ----------------------------------------------------------------------------------

    async def _send_leave(self, member: Member, reason: str) -> type[Exception]:
        """A static member says that it will be back: until its session timeout all is kept."""
        epoch = _LEAVE_EPOCH if self._instance_id is None else _LEAVE_STATIC_EPOCH
        response = await self._lane.consumer_group_heartbeat(member, epoch)
        return error_of(response.error_code)

    def _tells_leave(self) -> bool:
        return True
