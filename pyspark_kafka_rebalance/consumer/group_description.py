"""A group as its coordinator describes it, in either protocol.

kafka-python's ``describe_groups`` knows groups of the classic protocol only, and calls any other
group dead. Protocol: DescribeGroups; ConsumerGroupDescribe v0-1 (KIP-848).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ._kafka_python import describe_consumer_group


@dataclass(frozen=True)
class GroupMember:
    """A member and what it owns; not what it is about to release.

    A static member keeps the client id with which it first joined, whoever joins in its place.
    """

    client_id: str
    assigned: frozenset[TopicPartition] = frozenset()
    instance_id: str | None = None


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
    """

    state: str
    members: tuple[GroupMember, ...] = ()


def describe_group(admin: KafkaAdminClient, group_id: str) -> GroupDescription:
    """Ask for a group; raises what kafka-python does."""
    classic = admin.describe_groups([group_id])[group_id]
    if classic["group_state"] == "Dead":
        return _described(describe_consumer_group(admin, group_id))
    return GroupDescription(
        classic["group_state"],
        tuple(
            GroupMember(
                member["client_id"],
                frozenset(
                    TopicPartition(topic["topic"], partition)
                    for topic in (member["member_assignment"] or {}).get("assigned_partitions", ())
                    for partition in topic["partitions"]
                ),
                member.get("group_instance_id") or None,
            )
            for member in classic["members"]
        ),
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
                frozenset(
                    TopicPartition(topic.topic_name, partition)
                    for topic in member.assignment.topic_partitions
                    for partition in topic.partitions
                ),
                member.instance_id or None,
            )
            for member in group.members
        ),
    )
