"""The classic protocol's assignor: ``cooperative-sticky``, based on the partitions owned now."""

from __future__ import annotations

from collections.abc import Collection

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.structs import TopicPartition

#: ConsumerProtocolSubscription v2 (KIP-792) added GenerationId, next to OwnedPartitions (v1), so
#: that a leader can distinguish a stale claim from a valid one.
_SUBSCRIPTION_VERSION = 2


class OwnedPartitionsAssignor(CooperativeStickyAssignor):  # type: ignore[misc]
    """Reports the partitions that are owned *now*, with the generation (v2).

    kafka-python's assignor reports the leader's last assignment, which no longer has a partition
    whose revoke is deferred: the leader would assign that partition to another member at once.
    """

    version = _SUBSCRIPTION_VERSION

    def subscription(
        self, topics: Collection[str], owned: Collection[TopicPartition], generation: int
    ) -> bytes:
        """Encode the metadata of a JoinGroup."""
        by_topic: dict[str, list[int]] = {}
        for partition in sorted(owned):
            by_topic.setdefault(partition.topic, []).append(partition.partition)
        encoded: bytes = ConsumerProtocolSubscription(
            version=self.version,
            topics=sorted(topics),
            user_data=b"",
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in by_topic.items()
            ],
            generation_id=generation,
        ).encode()
        return encoded
