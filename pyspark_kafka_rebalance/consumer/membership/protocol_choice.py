"""The choice between the two group protocols."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from ...errors import UnsupportedBrokerError
from ..kafka_python.questions import offers_consumer_protocol
from . import classic, next_generation
from .classic import ClassicProtocol
from .group_membership import GroupMembership
from .member_parts import MemberParts
from .next_generation import NextGenerationProtocol

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

log = logging.getLogger(__name__)


def chosen_protocol(consumer: KafkaConsumer, group_protocol: str) -> str:
    """Choose ``"classic"`` or ``"consumer"`` by what the brokers offer.

    If ``group_protocol`` is ``"classic"``, no broker is asked.

    Raises
    ------
    UnsupportedBrokerError
        ``"consumer"`` is requested and not offered.
    """
    if group_protocol == "classic":
        return group_protocol
    offered = offers_consumer_protocol(consumer)
    if not offered and group_protocol == "consumer":
        raise UnsupportedBrokerError(
            "the brokers do not offer the consumer group protocol (KIP-848: Apache Kafka 4.0 "
            "or later, with the feature group.version at 1); use group_protocol='classic'"
        )
    chosen = "consumer" if offered else "classic"
    log.info("group %s: the %s protocol", consumer.config["group_id"], chosen)
    return chosen


def membership_in(
    protocol: str,
    group_remote_assignor: str | None,
    io: GroupCoordinator,
    config: Mapping[str, Any],
    revoking: Callable[[], Collection[TopicPartition]],
    committable: Callable[[], frozenset[TopicPartition]],
) -> GroupMembership:
    """Create a member that speaks this protocol.

    Parameters
    ----------
    protocol : {"classic", "consumer"}
        The protocol.
    group_remote_assignor : str, optional
        Consumer protocol: the server-side assignor.
    io : GroupCoordinator
        The seam to kafka-python.
    config : mapping
        kafka-python's consumer configuration.
    revoking : callable
        Returns the partitions whose revoke is requested and that are not released yet.
    committable : callable
        Returns the partitions that may be committed: owned, and their revoke not completed.
    """
    if protocol == "classic":
        parts = MemberParts(io, config, classic.RULES)
        return GroupMembership(parts, ClassicProtocol(parts, revoking), committable)
    parts = MemberParts(io, config, next_generation.RULES)
    return GroupMembership(parts, NextGenerationProtocol(parts, group_remote_assignor), committable)
