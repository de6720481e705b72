"""ClusterQueries: questions to the brokers that KafkaConsumer does not ask, or asks too long.

None of them depends on membership, and none waits longer than it is told to.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from uuid import UUID

from kafka import KafkaConsumer
from kafka.errors import LeaderNotAvailableError
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition

from .kafka_python.coordinator import GroupCoordinator
from .kafka_python.questions import offsets_now


class ClusterQueries(KafkaConsumer):  # type: ignore[misc]
    """A KafkaConsumer that tells topics, committed offsets and end offsets within a given time."""

    _io: GroupCoordinator

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """Fetch the names of all topics, at most ``timeout_ms`` long (KafkaTimeoutError)."""
        return self._io.metadata.existing_topics(timeout_ms)

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Those of these topics that this client may not describe, asked now."""
        return self._io.metadata.hidden_topics(topics, timeout_ms)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Those that the metadata has now."""
        counts = self._io.metadata.partition_counts({p.topic for p in partitions})
        return frozenset(p for p in partitions if p.partition < counts[p.topic])

    def topic_ids(self, topics: Collection[str]) -> dict[str, UUID]:
        """By the metadata as they are; without topics that are not there, or that have no id."""
        found = {topic: self._io.metadata.topic_id(topic) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it."""
        self._io.metadata.refresh()

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, over the lane; without those that have none.

        Raises KafkaTimeoutError, and what the broker refuses.
        """
        committed = self._io.fetch_committed_offsets(list(partitions), timeout_ms)
        return {partition: found.offset for partition, found in committed.items()}

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a leader that went away."""
        with _leader_gone():
            return dict(super().beginning_offsets(partitions, timeout_ms))

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a leader that went away."""
        with _leader_gone():
            return dict(super().end_offsets(partitions, timeout_ms))

    def beginning_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``beginning_offsets``, without those whose leader does not tell; never asks twice."""
        return offsets_now(self, partitions, OffsetSpec.EARLIEST, timeout_ms)

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets``, without those whose leader does not tell; never asks it twice."""
        return offsets_now(self, partitions, OffsetSpec.LATEST, timeout_ms)

    def high_watermarks_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets_now``, with what is in open transactions, whatever is read of it."""
        return offsets_now(self, partitions, OffsetSpec.LATEST, timeout_ms, read_uncommitted=True)

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that the metadata knows."""
        cluster = self._io.metadata.cluster
        leaders = {p: cluster.leader_for_partition(p) for p in partitions}
        return {p: node for p, node in leaders.items() if node is not None and node >= 0}

    def partitions_with_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """Those whose leader the metadata knows; asking for others would wait for them."""
        return list(self.leaders(partitions))


@contextmanager
def _leader_gone() -> Iterator[None]:
    """kafka-python leaves out a partition whose leader went away, and stumbles over that."""
    try:
        yield
    except KeyError as error:
        raise LeaderNotAvailableError(*error.args) from error
