"""Lane: the requests of a member that must not wait while a join is held.

A broker holds JoinGroup until every member has joined, for a dead member up to its session
timeout, and it answers the requests of one connection in order. OffsetCommit, OffsetFetch,
LeaveGroup and Heartbeat therefore use a connection of their own, with the current generation and
the error handling below. The broker accepts them throughout.

Protocol: Heartbeat v0-4, LeaveGroup v0-5, OffsetCommit v2-8 (classic); ConsumerGroupHeartbeat v0-1,
OffsetCommit v9-10, DescribeConfigs v1-4 (consumer); OffsetFetch v1-7. Callers that need only stable
offsets use kafka-python's own OffsetFetch, which the seam also sends over the lane.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.consumer import (
    HeartbeatRequest,
    LeaveGroupRequest,
    OffsetCommitRequest,
    OffsetFetchRequest,
)
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..member_record import Member
from ..messages import ConsumerGroupHeartbeatRequest

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)

TopicIdOf = Callable[[TopicPartition], UUID | None]

#: DescribeConfigs: the resource type of groups, and the group setting to read (KIP-848).
_GROUP_RESOURCE = 32
_SESSION_TIMEOUT = "consumer.session.timeout.ms"

#: OffsetCommit: from this version on, topics are identified only by their ids.
_COMMITS_BY_TOPIC_ID = 10


class Lane:
    """Sends one member's requests other than its joins. All coroutines run on the I/O loop.

    They raise the connection's errors, which ``verdict_of`` classifies, too.

    ``commit_version`` is the highest OffsetCommit version to use. ``topic_id_of`` returns the topic
    id with which a partition was assigned; None if the protocol has no topic ids.
    """

    def __init__(
        self,
        io: GroupCoordinator,
        group_id: str,
        group_instance_id: str | None,
        timeout_ms: float,
        commit_version: int,
        topic_id_of: TopicIdOf = lambda _: None,
    ) -> None:
        self._io = io
        self._loop = io.loop
        self.group_id = group_id
        self._group_instance_id = group_instance_id
        self._timeout_ms = timeout_ms
        self._commit_version = commit_version
        self._topic_id_of = topic_id_of

    async def heartbeat(self, member: Member) -> type[Exception]:
        """Send one heartbeat; return the broker's error class, ``NoError`` included."""
        response = await self._loop.send(
            HeartbeatRequest(
                group_id=self.group_id,
                generation_id=member.generation,
                member_id=member.member_id,
                group_instance_id=self._group_instance_id,
            ),
            self._io.coordinator(),
            self._timeout_ms,
        )
        return error_of(response.error_code)

    async def commit(
        self, member: Member, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, type[Exception]]:
        """Commit next offsets, fenced by the member's generation; return each partition's error.

        Each offset carries its metadata, and the leader epoch of the last record before it
        (KIP-320).

        A recreated topic is a different topic, whose records are not processed yet: a broker with
        OffsetCommit v10 (Kafka 4.1) refuses offsets of the topic that was assigned before.

        A partition that the response does not name gets NetworkExceptionError (no response was
        received).
        """
        by_topic: dict[tuple[str, UUID | None], dict[int, OffsetAndMetadata]] = defaultdict(dict)
        for partition, entry in offsets.items():
            by_topic[partition.topic, self._topic_id_of(partition)][partition.partition] = entry
        names = {topic_id: topic for topic, topic_id in by_topic}
        version = self._commit_version
        if None in names:
            version = min(version, _COMMITS_BY_TOPIC_ID - 1)
        topic_class = OffsetCommitRequest.OffsetCommitRequestTopic
        partition_class = topic_class.OffsetCommitRequestPartition
        response = await self._loop.send(
            OffsetCommitRequest(
                max_version=version,
                group_id=self.group_id,
                generation_id_or_member_epoch=member.generation,
                member_id=member.member_id,
                group_instance_id=self._group_instance_id,
                topics=[
                    topic_class(
                        name=topic,
                        **({} if topic_id is None else {"topic_id": topic_id}),
                        partitions=[
                            partition_class(
                                partition_index=partition,
                                committed_offset=entry.offset,
                                committed_leader_epoch=entry.leader_epoch,
                                committed_metadata=entry.metadata,
                            )
                            for partition, entry in partitions.items()
                        ],
                    )
                    for (topic, topic_id), partitions in by_topic.items()
                ],
            ),
            self._io.coordinator(),
            self._timeout_ms,
        )
        answered = {
            TopicPartition(topic.name or names[topic.topic_id], found.partition_index): error_of(
                found.error_code
            )
            for topic in response.topics
            for found in topic.partitions
        }
        return {p: answered.get(p, kafka_errors.NetworkExceptionError) for p in offsets}

    async def committed(
        self,
        partitions: Collection[TopicPartition],
        *,
        stable: bool,
        timeout_ms: float | None = None,
    ) -> dict[TopicPartition, OffsetAndMetadata | type[Exception]]:
        """Fetch the group's committed offsets, once; an error class where the broker reports one.

        Partitions without a committed offset are left out. With ``stable``, partitions with offsets
        in an undecided transaction get UnstableOffsetCommitError (KIP-447).
        """
        by_topic: dict[str, list[int]] = defaultdict(list)
        for partition in partitions:
            by_topic[partition.topic].append(partition.partition)
        response = await self._loop.send(
            OffsetFetchRequest(
                group_id=self.group_id,
                topics=[
                    OffsetFetchRequest.OffsetFetchRequestTopic(name=topic, partition_indexes=found)
                    for topic, found in by_topic.items()
                ],
                require_stable=stable,
                min_version=7 if stable else 0,  # which would leave out require_stable
                max_version=7,  # from v8 on the request is for several groups
            ),
            self._io.coordinator(),
            timeout_ms or self._timeout_ms,
        )
        whole = error_of(getattr(response, "error_code", 0) or 0)
        if whole is not kafka_errors.NoError:
            raise whole(self.group_id)
        told: dict[TopicPartition, OffsetAndMetadata | type[Exception]] = {}
        for topic in response.topics:
            for found in topic.partitions:
                partition = TopicPartition(topic.name, found.partition_index)
                if found.error_code:
                    told[partition] = error_of(found.error_code)
                elif found.committed_offset >= 0:
                    told[partition] = OffsetAndMetadata(
                        found.committed_offset, found.metadata or "", found.committed_leader_epoch
                    )
        return told

    async def leave(self, member: Member, reason: str) -> type[Exception]:
        """Leave the group; the other members learn of it with their next heartbeat."""
        response = await self._loop.send(
            LeaveGroupRequest(
                group_id=self.group_id,
                member_id=member.member_id,
                members=[
                    LeaveGroupRequest.MemberIdentity(
                        member_id=member.member_id,
                        group_instance_id=self._group_instance_id,
                        reason=reason[:255],  # the Java client's bound
                    )
                ],
            ),
            self._io.coordinator(),
            self._timeout_ms,
        )
        return error_of(response.error_code)

    async def consumer_group_heartbeat(
        self, member: Member, epoch: int, fields: Mapping[str, Any] | None = None
    ) -> Any:
        """Send one heartbeat of the consumer protocol (KIP-848); return the broker's response.

        The epoch 0 joins, -1 leaves, -2 leaves as a static member that comes back.
        """
        return await self._loop.send(
            ConsumerGroupHeartbeatRequest(
                group_id=self.group_id,
                member_id=member.member_id,
                member_epoch=epoch,
                instance_id=self._group_instance_id,
                **(fields or {}),
            ),
            self._io.coordinator(),
            self._timeout_ms,
        )

    async def session_timeout_ms(self) -> int | None:
        """Read the session timeout that the broker sets for the group's consumer-protocol members.

        None if this client lacks DESCRIBE_CONFIGS on the group, or the broker has no such setting.
        """
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_GROUP_RESOURCE,
            resource_name=self.group_id,
            configuration_keys=[_SESSION_TIMEOUT],
        )
        response = await self._loop.send(
            DescribeConfigsRequest(resources=[resource]), self._io.coordinator(), self._timeout_ms
        )
        for result in response.results:
            if result.error_code:
                log.info(
                    "group %s: %s cannot be read: %s",
                    self.group_id,
                    _SESSION_TIMEOUT,
                    error_of(result.error_code).__name__,
                )
            for setting in result.configs or ():
                if setting.name == _SESSION_TIMEOUT and setting.value is not None:
                    return int(setting.value)
        return None


def error_of(code: int) -> type[Exception]:
    """The error class of a broker's error code; ``NoError`` for 0."""
    error: type[Exception] = kafka_errors.for_code(code)
    return error
