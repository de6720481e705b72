"""The parts of a group member that both group protocols use: lane, record, lease, commits."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..commits.commit_loop import CommitLoop, MetadataOf
from ..member_record import AssignmentReceived, Member, MemberRecord
from ..observer import Observed
from ..protocol.coordinator_answers import Consequence, Verdict, after_commit, explained
from ..protocol.lane import Lane, TopicIdOf
from .liveness import HeartbeatSchedule, Lease, Liveness, suspend_aware_clock

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


class GroupProtocol(Protocol):
    """A group protocol, as ``GroupMembership`` calls it.

    ``ClassicProtocol`` and ``NextGenerationProtocol`` get a member's ``MemberParts``. They send
    over its lane and write its record; ``GroupMembership`` calls them. Coroutines run on the I/O
    loop, ``applied``, ``released`` and ``leave`` on the thread that polls.
    """

    #: Whether partitions are assigned by topic id: a recreated topic's are revoked and assigned
    #: again.
    by_topic_id: bool

    def topic_id_of(self, partition: TopicPartition) -> UUID | None:
        """The id of the assigned topic; None if the protocol assigns by name."""

    async def run(self) -> None:
        """Do the work besides heartbeats, until the member is no longer active."""

    def wake(self) -> None:
        """Something changed that ``run`` must check."""

    def until_beat(self) -> float:
        """Seconds until the next heartbeat is due; it is due now if not positive."""

    async def beat(self) -> None:
        """Send one heartbeat and draw the consequences of its answer."""

    def is_stable(self) -> bool:
        """Whether it has joined, with nothing under way and no assignment to be applied."""

    def taken(self, event: AssignmentReceived) -> None:
        """The consumer starts to apply the assignment; the record is locked."""

    def applied(self, event: AssignmentReceived) -> None:
        """The assignment is in force."""

    def released(self, partitions: Collection[TopicPartition]) -> None:
        """The partitions are given up, so that they can go to their new owner."""

    def on_metadata_update(self) -> None:
        """Topics or partitions may have changed, or the subscription."""

    def forget(self) -> None:
        """The membership ended, with all requests in flight; the record is locked."""

    def leave(self, member: Member, reason: str, timeout_ms: float | None) -> None:
        """Send this member's leave to the coordinator; here it is already forgotten."""

    async def leave_async(self, member: Member, reason: str) -> None:
        """The same on the I/O loop."""


class BrokerRules(NamedTuple):
    """How a broker treats the members of a protocol."""

    #: The highest OffsetCommit version: up to v8 it has the classic protocol's meaning; from v9 on,
    #: the member epoch fences.
    commit_version: int
    member_id_survives: bool  # whether a fenced member comes back with the same id
    commits_are_signs_of_life: bool  # whether an accepted commit resets the session timer


@dataclass(frozen=True)
class MemberCallbacks:
    """A member's calls to its consumer, which is assembled after it; on the I/O loop."""

    #: The partitions whose revoke is requested and that are not released yet.
    revoking: Callable[[], Collection[TopicPartition]] = frozenset
    #: The partitions that may be committed: owned, and their revoke not completed.
    committable: Callable[[], frozenset[TopicPartition]] = frozenset
    metadata_of: MetadataOf = lambda *_: ""
    catches_up: Callable[[], bool] = lambda: False


class MemberParts:
    """The assembled parts of one member, and the actions that all protocols share.

    All parts use the clock, which gives seconds and is given by tests only. ``topic_id_of`` is
    ``GroupProtocol.topic_id_of`` of the protocol that is made of these parts.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        config: Mapping[str, Any],
        rules: BrokerRules,
        clock: Callable[[], float] | None = None,
        *,
        callbacks: MemberCallbacks = MemberCallbacks(),
        observed: Observed | None = None,
        topic_id_of: TopicIdOf = lambda _: None,
    ) -> None:
        self.io = io
        self.loop = io.loop
        self.metadata = io.metadata
        self.subscription = io.subscription
        self.config = config
        self.group_id: str = config["group_id"]
        self.instance_id: str | None = config["group_instance_id"]
        self.backoff_s: float = config["retry_backoff_ms"] / 1000
        self.clock = clock or time.monotonic
        self.lease = Lease(config["session_timeout_ms"], clock or suspend_aware_clock)
        self.schedule = HeartbeatSchedule(config["heartbeat_interval_ms"] / 1000, self.clock)
        self.liveness = Liveness(config["max_poll_interval_ms"], self.clock)
        self.heartbeat_alarm = self.loop.alarm()
        self.record = MemberRecord(self.group_id, id_survives=rules.member_id_survives)
        # A lost answer must be noticed while the session still leaves time to try again.
        timeout_ms = min(config["request_timeout_ms"], config["session_timeout_ms"] / 3)
        self.lane = Lane(
            io, self.group_id, self.instance_id, timeout_ms, rules.commit_version, topic_id_of
        )
        signs_of_life = rules.commits_are_signs_of_life
        self.commits = CommitLoop(
            io,
            self.lane,
            self.backoff_s,
            member=self._committing_member,
            on_accepted=self.lease.renew if signs_of_life else lambda sent_at: None,
            on_verdict=self._commit_refused,
            clock=self.lease.clock,
            metadata_of=callbacks.metadata_of,
            catches_up=callbacks.catches_up,
            observed=observed,
        )

    def active(self) -> bool:
        """Whether the member's loops should continue."""
        record = self.record
        return not record.closed and not self.loop.closed and record.failure is None

    def hurry(self) -> None:
        """Heartbeat often for a while, because the assignment has changed."""
        self.schedule.hurry()
        self.heartbeat_alarm.notify()

    def draw(
        self,
        found: Consequence,
        error: type[Exception],
        *,
        reason: str | None = None,
        failure: Exception | None = None,
    ) -> None:
        """Apply the consequences that all protocols share.

        ``reason`` is why the membership is lost, in more words than the error's name; ``failure``
        is the error itself, if there is one with a message.
        """
        if error is kafka_errors.FencedInstanceIdError:
            reason = f"{error.__name__}: another process uses {self.instance_id!r}"
            failure = error(self.instance_id)
        if Consequence.FIND_COORDINATOR in found:
            self.io.coordinator_dead(error.__name__)
        if Consequence.LOST in found:
            self.record.lose(reason or error.__name__)
        if Consequence.FAILED in found:
            self.fail(failure or error())

    def fail(self, error: Exception) -> None:
        """End the membership for good."""
        failure = explained(error, self.group_id, self.subscription.topics)
        self.record.failure = failure
        log.error("%s", failure)

    def _committing_member(self) -> Member | None:
        member = self.record.member
        return member if member.joined else None

    def _commit_refused(self, verdict: Verdict, error: type[Exception], detail: str) -> None:
        found = after_commit(verdict)
        failure = error(detail) if Consequence.FAILED in found else None
        self.draw(found, error, failure=failure)
