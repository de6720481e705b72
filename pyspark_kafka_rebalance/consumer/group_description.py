"""A group as its coordinator describes it, in either protocol.

kafka-python's ``describe_groups`` knows groups of the classic protocol only, and calls any other
group dead. Protocol: DescribeGroups; ConsumerGroupDescribe v0-1 (KIP-848).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from .kafka_python.questions import describe_consumer_group


@dataclass(frozen=True)
class GroupMember:
    """A member and what it owns; not what it is about to release.

    A static member keeps the client id with which it first joined, whoever joins in its place.

    Attributes
    ----------
    target : frozenset of TopicPartition
        What it shall own; in the classic protocol, what it owns.
    epoch : int or None
        The member epoch of the consumer protocol.
    """

    client_id: str
    assigned: frozenset[TopicPartition] = frozenset()
    instance_id: str | None = None
    member_id: str = ""
    target: frozenset[TopicPartition] = frozenset()
    epoch: int | None = None


@dataclass(frozen=True)
class GroupDescription:
    """A group.

    Attributes
    ----------
    state : str
        The coordinator's word: Empty, Stable, Dead (there is none), classic PreparingRebalance
        and CompletingRebalance, in which it names no assignments, consumer Assigning and
        Reconciling.
    members : tuple of GroupMember
        All of them.
    epoch : int or None
        The group epoch of the consumer protocol.
    """

    state: str
    members: tuple[GroupMember, ...] = ()
    epoch: int | None = field(default=None, compare=False)


def describe_group(admin: KafkaAdminClient, group_id: str) -> GroupDescription:
    """Ask for a group; raises what kafka-python does."""
    classic = admin.describe_groups([group_id])[group_id]
    if classic["group_state"] == "Dead":
        return _described(describe_consumer_group(admin, group_id))
    return GroupDescription(
        classic["group_state"], tuple(_classic_member(member) for member in classic["members"])
    )


def _classic_member(member: Any) -> GroupMember:
    assigned = frozenset(
        TopicPartition(topic["topic"], partition)
        for topic in (member["member_assignment"] or {}).get("assigned_partitions", ())
        for partition in topic["partitions"]
    )
    return GroupMember(
        member["client_id"],
        assigned,
        member.get("group_instance_id") or None,
        member["member_id"],
        assigned,
    )


def _described(group: Any) -> GroupDescription:
    if group is None:  # older than the protocol
        return GroupDescription("Dead")
    error = kafka_errors.for_code(group.error_code)
    if error in (kafka_errors.GroupIdNotFoundError, kafka_errors.UnsupportedVersionError):
        return GroupDescription("Dead")
    if error is not kafka_errors.NoError:
        raise error(group.error_message)
    return GroupDescription(
        group.group_state,
        tuple(
            GroupMember(
                member.client_id,
                _partitions(member.assignment),
                member.instance_id or None,
                member.member_id,
                _partitions(member.target_assignment),
                member.member_epoch,
            )
            for member in group.members
        ),
        group.group_epoch,
    )


def _partitions(assignment: Any) -> frozenset[TopicPartition]:
    return frozenset(
        TopicPartition(topic.topic_name, partition)
        for topic in assignment.topic_partitions
        for partition in topic.partitions
    )
