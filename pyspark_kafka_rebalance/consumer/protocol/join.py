"""JoinProtocol: JoinGroup, the leader's assignment, SyncGroup.

The wire side of the classic protocol, without state; ``classic.py`` decides the meaning of an
answer for the membership. Protocol: JoinGroup v0-9, SyncGroup v0-5, DescribeGroups, and in them
ConsumerProtocolSubscription v2 (owned partitions with their generation) and
ConsumerProtocolAssignment.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeGroupsRequest
from kafka.protocol.consumer import JoinGroupRequest, SyncGroupRequest
from kafka.protocol.consumer.metadata import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    ConsumerProtocolType,
)
from kafka.structs import TopicPartition

from ..kafka_python.assignor import OwnedPartitionsAssignor
from ..member_record import Member

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

#: The broker answers a JoinGroup within the rebalance timeout. Like the Java client, allow this
#: much more before the connection is taken to be dead.
_JOIN_TIMEOUT_SLACK_MS = 5_000

#: From JoinGroup v9 on, a static leader that returns learns that it leads (SkipAssignment,
#: KIP-814).
_JOIN_VERSION = 9

#: From JoinGroup v4 on, the answer to a newcomer is its member id, with which it joins again.
_NAMING_VERSION = 4


class Joined(NamedTuple):
    """The answer to a JoinGroup.

    ``error`` is ``NoError`` or ``MemberIdRequiredError`` (KIP-394: join again with this id).
    ``leads``: this member has to assign; ``leader`` is the leader's member id, as the coordinator
    names it.
    """

    error: type[Exception]
    member: Member
    protocol_name: str | None
    leads: bool
    members: Any
    leader: str = ""


class Assignments(NamedTuple):
    """The leader's decision, and the number of partitions of each topic that it was based on."""

    by_member: list[tuple[str, Any]]
    partition_counts: dict[str, int]


class Review(NamedTuple):
    """The state of a group that a static member has returned to.

    ``rebalance``: a leader would decide differently now. ``led_counts`` are the partition counts by
    topic that a leader has to watch; None if another member leads.
    """

    rebalance: bool
    led_counts: dict[str, int] | None = None


class JoinProtocol:
    """Sends the requests of a join, and decides as the leader.

    All coroutines run on the I/O loop and raise kafka-python's errors.
    """

    def __init__(self, io: GroupCoordinator, config: Mapping[str, Any]) -> None:
        self._io = io
        self._loop = io.loop
        self._metadata = io.metadata
        self._subscription = io.subscription
        self._config = config
        self._assignor = OwnedPartitionsAssignor()

    @property
    def names_at_once(self) -> bool:
        """Whether a dynamic newcomer gets its member id at once (KIP-394), not with the join."""
        return self._config["group_instance_id"] is None and bool(
            self._loop.api_version(JoinGroupRequest) >= _NAMING_VERSION
        )

    async def know_topics(self, topics: frozenset[str]) -> None:
        """Request the metadata of topics that are not known: a leader assigns nothing of those.

        A topic that does not exist does not concern the group: the member joins without it. Raises
        TopicAuthorizationFailedError, as the coordinator does in the consumer protocol.
        """
        if (
            self._subscription.pattern is not None
            or 0 in self._metadata.partition_counts(topics).values()
        ):
            await self._renew_metadata()
        if forbidden := self._metadata.unauthorized_topics & topics:
            raise kafka_errors.TopicAuthorizationFailedError(sorted(forbidden))

    async def join(
        self, member: Member, topics: frozenset[str], claim: frozenset[TopicPartition]
    ) -> Joined:
        """Send a JoinGroup that claims these partitions as owned; it is held until all join."""
        response = await self._loop.send(
            JoinGroupRequest(
                max_version=_JOIN_VERSION,
                group_id=self._config["group_id"],
                session_timeout_ms=self._config["session_timeout_ms"],
                rebalance_timeout_ms=self._config["max_poll_interval_ms"],
                member_id=member.member_id,
                group_instance_id=self._config["group_instance_id"],
                protocol_type=ConsumerProtocolType,
                protocols=[
                    (
                        self._assignor.name,
                        self._assignor.subscription(topics, claim, member.generation),
                    )
                ],
            ),
            self._io.join_node,
            max(
                self._config["request_timeout_ms"],
                self._config["max_poll_interval_ms"] + _JOIN_TIMEOUT_SLACK_MS,
            ),
        )
        error: type[Exception] = kafka_errors.for_code(response.error_code)
        if error is kafka_errors.MemberIdRequiredError:
            return Joined(error, Member(member_id=response.member_id), None, False, ())
        if error is not kafka_errors.NoError:
            raise error
        return Joined(
            error,
            Member(response.generation_id, response.member_id),
            response.protocol_name,
            response.leader == response.member_id
            and not (response.API_VERSION >= _JOIN_VERSION and response.skip_assignment),
            response.members,
            response.leader,
        )

    async def assign(self, members: Any) -> Assignments:
        """The leader's part: assign the partitions of every member's topics."""
        for member in members:
            member.metadata = ConsumerProtocolSubscription.decode(member.metadata)
        decided = await self._decide(members)
        log.info(
            "group %s: leader, assigned %d partitions to %d members",
            self._config["group_id"],
            sum(decided.partition_counts.values()),
            len(members),
        )
        return decided

    async def _decide(self, members: list[Any]) -> Assignments:
        """Decide as the leader; watch the members' topics from now on."""
        topics = {topic for member in members for topic in member.metadata.topics}
        self._subscription.watch_topics(topics)
        if 0 in self._metadata.partition_counts(topics).values():
            await self._renew_metadata()
        counts = self._metadata.partition_counts(topics)
        by_member = self._assignor.assign(self._metadata.cluster, members)
        return Assignments(list(by_member.items()), counts)

    async def sync(
        self, joined: Joined, assignments: list[tuple[str, Any]]
    ) -> frozenset[TopicPartition]:
        """Send a SyncGroup, as leader with assignments; returns this member's whole assignment."""
        response = await self._loop.send(
            SyncGroupRequest(
                max_version=5,
                group_id=self._config["group_id"],
                generation_id=joined.member.generation,
                member_id=joined.member.member_id,
                group_instance_id=self._config["group_instance_id"],
                protocol_type=ConsumerProtocolType,
                protocol_name=joined.protocol_name,
                assignments=assignments,
            ),
            self._io.join_node,
            self._config["request_timeout_ms"],
        )
        error = kafka_errors.for_code(response.error_code)
        if error is not kafka_errors.NoError:
            raise error
        return frozenset(ConsumerProtocolAssignment.decode(response.assignment).partitions())

    async def review(self, joined: Joined) -> Review:
        """Check a group that a static member has returned to: its return causes no rebalance.

        Changes during its absence go unchecked otherwise (KAFKA-13435): its own subscription, the
        number of partitions. If it was the leader, brokers before JoinGroup v9 do not report that:
        the leader that they name is its previous member id, which no member has any longer.
        """
        response = await self._loop.send(
            DescribeGroupsRequest(groups=[self._config["group_id"]]),
            self._io.coordinator(),
            self._config["request_timeout_ms"],
        )
        (group,) = response.groups
        error = kafka_errors.for_code(group.error_code)
        if error is not kafka_errors.NoError:
            raise error
        if group.group_state != "Stable":
            return Review(rebalance=False)  # a rebalance is under way
        members, assigned = [], {}
        for member in group.members:
            metadata = ConsumerProtocolSubscription.decode(member.member_metadata)
            owned = ConsumerProtocolAssignment.decode(member.member_assignment)
            assigned[member.member_id] = frozenset(owned.partitions())
            # It owns its assignment; the claims in the metadata are from before that.
            claims = SimpleNamespace(
                topics=metadata.topics,
                owned_partitions=owned.assigned_partitions,
                generation_id=joined.member.generation,
            )
            members.append(SimpleNamespace(member_id=member.member_id, metadata=claims))
        leads = joined.leader == joined.member.member_id or joined.leader not in assigned
        by_member, counts = await self._decide(members)
        if not leads:
            self._subscription.watch_topics(self._subscription.topics)
        decided = {member: frozenset(assignment.partitions()) for member, assignment in by_member}
        return Review(decided != assigned, counts if leads else None)

    async def _renew_metadata(self) -> None:
        await self._metadata.renew(self._config["request_timeout_ms"])
