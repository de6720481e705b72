"""A group as its coordinator describes it, in either protocol.

kafka-python's ``describe_groups`` knows only groups of the classic protocol, and calls any other
group dead. Protocol: DescribeGroups; ConsumerGroupDescribe v0-1 (KIP-848).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from .kafka_python.questions import describe_consumer_group

CLASSIC, CONSUMER = "classic", "consumer"

#: The start of kafka-python's error text, the only place where it reports a group's error.
_ERROR_CODE = re.compile(r"\[Error (-?[0-9]+)\] ")


@dataclass(frozen=True)
class GroupMember:
    """A member and its partitions.

    In the classic protocol ``assigned`` lacks the partitions that the member is about to release;
    in the consumer protocol ``revoking`` is part of it.

    A static member keeps the client id of its first join, even if another process replaces it.
    """

    client_id: str
    assigned: frozenset[TopicPartition] = frozenset()
    instance_id: str | None = None
    member_id: str = ""
    #: The partitions that it shall own; in the classic protocol, that it owns.
    target: frozenset[TopicPartition] = frozenset()
    epoch: int | None = None  # the member epoch of the consumer protocol
    host: str = ""  # the host of its connection
    #: Partitions that it still holds and the group wants back. In the classic protocol: claimed at
    #: its join, but assigned to no member; only members with a cooperative assignor claim any.
    revoking: frozenset[TopicPartition] = frozenset()


@dataclass(frozen=True)
class GroupDescription:
    """A group."""

    #: The coordinator's term: Empty, Stable, Dead (there is no such group); classic
    #: PreparingRebalance and CompletingRebalance, in which it reports no assignments; consumer
    #: Assigning and Reconciling.
    state: str
    members: tuple[GroupMember, ...] = ()
    #: The group epoch of the consumer protocol.
    epoch: int | None = field(default=None, compare=False)
    #: ``classic`` or ``consumer``; empty if there is no group.
    protocol: str = field(default="", compare=False)
    assignor: str = field(default="", compare=False)  # empty for a classic group without members


def describe_group(admin: KafkaAdminClient, group_id: str) -> GroupDescription:
    """Describe a group; raises kafka-python's errors and the coordinator's."""
    classic = admin.describe_groups([group_id])[group_id]
    if classic["group_state"] == "Dead":
        return _described(describe_consumer_group(admin, group_id))
    if error := _ERROR_CODE.match(classic["error"] or ""):
        raise kafka_errors.for_code(int(error[1]))(classic["error"][error.end() :])
    members = [(member, *_held(member)) for member in classic["members"]]
    everybodys = frozenset().union(*(assigned for _, assigned, _ in members))
    return GroupDescription(
        classic["group_state"],
        tuple(
            GroupMember(
                member["client_id"],
                assigned,
                member.get("group_instance_id") or None,
                member["member_id"],
                assigned,
                host=member["client_host"],
                revoking=claimed - everybodys,
            )
            for member, assigned, claimed in members
        ),
        protocol=CLASSIC,
        assignor=classic["protocol_data"],
    )


def _held(member: Any) -> tuple[frozenset[TopicPartition], frozenset[TopicPartition]]:
    """A classic member's assignment, and its claims when it joined.

    Empty during a rebalance, and for other than consumer groups, whose bytes kafka-python does not
    decode.
    """
    return (
        _of_classic(member["member_assignment"], "assigned_partitions"),
        _of_classic(member["member_metadata"], "owned_partitions"),
    )


def _of_classic(told: Any, which: str) -> frozenset[TopicPartition]:
    topics: Collection[Any] = (told.get(which) or ()) if isinstance(told, dict) else ()
    return frozenset(
        TopicPartition(topic["topic"], partition)
        for topic in topics
        for partition in topic["partitions"]
    )


def _described(group: Any) -> GroupDescription:
    if group is None:  # the broker is older than the protocol
        return GroupDescription("Dead")
    error = kafka_errors.for_code(group.error_code)
    if error in (kafka_errors.GroupIdNotFoundError, kafka_errors.UnsupportedVersionError):
        return GroupDescription("Dead")
    if error is not kafka_errors.NoError:
        raise error(group.error_message)
    return GroupDescription(
        group.group_state,
        tuple(_consumer_member(member) for member in group.members),
        group.group_epoch,
        CONSUMER,
        group.assignor_name,
    )


def _consumer_member(member: Any) -> GroupMember:
    assigned, target = _partitions(member.assignment), _partitions(member.target_assignment)
    return GroupMember(
        member.client_id,
        assigned,
        member.instance_id or None,
        member.member_id,
        target,
        member.member_epoch,
        member.client_host,
        assigned - target,
    )


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )
