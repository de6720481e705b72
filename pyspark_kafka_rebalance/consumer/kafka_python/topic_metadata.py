"""The brokers' metadata about topics, and requests for them."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.metadata import MetadataRequest
from kafka.structs import TopicPartition
from kafka.util import Timer

from .questions import first_answer

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata
    from kafka.future import Future
    from kafka.net.manager import KafkaConnectionManager

    from .io_loop import IoLoop

#: kafka-python ends a metadata refresh with these errors although it has updated the other topics.
_OF_A_TOPIC = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.TopicAuthorizationFailedError,
    kafka_errors.InvalidTopicError,
)

#: Another broker may answer.
_OF_A_BROKER = (kafka_errors.KafkaConnectionError, kafka_errors.RequestTimedOutError)


class TopicMetadata:
    """Requests and caches topic metadata; for any thread, unless a method says otherwise.

    Parameters
    ----------
    manager : KafkaConnectionManager
        Has the metadata, and requests them.
    loop : IoLoop
        The loop of the same connections.

    Attributes
    ----------
    cluster : ClusterMetadata
        kafka-python's, for the assignor.
    """

    def __init__(self, manager: KafkaConnectionManager, loop: IoLoop) -> None:
        self.cluster: ClusterMetadata = manager.cluster
        self._manager = manager
        self._loop = loop
        # On the I/O loop: how many callers request all topics, and the setting before the first.
        self._asking_for_all = 0
        self._all_topics_before = False

    # -- cached -----------------------------------------------------------------------------------

    @property
    def internal_topics(self) -> frozenset[str]:
        """The topics in the metadata that brokers call internal."""
        return frozenset(self.cluster.internal_topics)

    @property
    def unauthorized_topics(self) -> frozenset[str]:
        """The topics that this client may not describe, as of the last metadata."""
        return frozenset(self.cluster.unauthorized_topics)

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that the metadata know."""
        leader_of = self.cluster.leader_for_partition
        return {p: node for p in partitions if (node := leader_of(p)) is not None and node >= 0}

    def partition_counts(self, topics: Collection[str]) -> dict[str, int]:
        """The number of partitions of each topic; 0 if the metadata lack the topic."""
        return {topic: len(self.cluster.partitions_for_topic(topic) or ()) for topic in topics}

    def topic_name(self, topic_id: UUID) -> str | None:
        """The name of a topic, if the metadata have it."""
        name: str | None = self.cluster.topic_name_for_id(topic_id)
        return name

    def topic_id(self, topic: str) -> UUID | None:
        """The id of the topic, if the metadata have it.

        A response with an error for the topic (no authorization, say) has zero for its id.
        """
        found: UUID | None = self.cluster.topic_id(topic)
        return found if found is not None and found.int else None

    @property
    def cluster_id(self) -> str | None:
        """The id of the cluster, as its metadata say; None before they do."""
        found: str | None = self.cluster.cluster_id
        return found

    @property
    def renewed_ms(self) -> float:
        """When metadata last came, by the monotonic clock; different each time they come."""
        return float(self.cluster._last_successful_refresh_ms)

    def leaderships(self) -> dict[TopicPartition, tuple[UUID | None, int | None]]:
        """The topic id and the leader epoch of each partition in the metadata.

        If either changes, the log may be another one.
        """
        epoch_of = self.cluster.leader_epoch_for_partition
        found = {}
        for topic in self.cluster.topics():
            topic_id = self.topic_id(topic)
            for number in self.cluster.partitions_for_topic(topic) or ():
                partition = TopicPartition(topic, number)
                found[partition] = topic_id, epoch_of(partition)
        return found

    # -- requested --------------------------------------------------------------------------------

    def refresh(self) -> Future:
        """Request new metadata; the future is done when they arrive."""
        return self.cluster.request_update()

    def refresh_now(self) -> Future:
        """As ``refresh``, for a first request, without the backoff.

        kafka-python waits ``retry_backoff_ms`` after each response, even after that of its
        bootstrap, which has no topics.
        """
        self.forget_backoff()
        return self.cluster.request_update()

    async def renew(self, timeout_ms: float) -> None:
        """Wait for new metadata, on the I/O loop. Raises KafkaTimeoutError and the broker's errors.

        If the metadata have a single topic, kafka-python also raises that topic's error (it is
        unknown, say). That is an answer, not a failure.
        """
        before = self.renewed_ms
        try:
            await self._loop.wait_for(self.refresh_now(), timeout_ms)
        except kafka_errors.KafkaError:
            if self.renewed_ms == before:
                raise

    def forget_backoff(self) -> None:
        """Send the next metadata request without the backoff: it is not a retry."""
        self.cluster._last_refresh_ms = 0

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """All topics that this client may describe, fetched now; not on the I/O loop.

        Raises KafkaTimeoutError. kafka-python's own ``topics()`` waits for ever.
        """
        self._loop.run(self._refresh_all, timeout_ms)
        return frozenset(self.cluster.topics())

    async def _refresh_all(self, timeout_ms: float) -> None:
        """Renew the metadata, of all topics.

        Does not leave the I/O loop between the check and the request: a refresh started in between
        would request only the subscribed topics, and be taken for the answer.
        """
        cluster, timer = self.cluster, Timer(timeout_ms)
        if not self._asking_for_all:
            self._all_topics_before = cluster.need_all_topic_metadata
        self._asking_for_all += 1
        cluster.need_all_topic_metadata = True
        try:
            while cluster.metadata_refresh_in_progress:  # it may not be for all topics
                with suppress(*_OF_A_TOPIC, *_OF_A_BROKER):
                    under_way = self._manager.call_soon(cluster.refresh_metadata)
                    await self._loop.wait_for(under_way, timer.timeout_ms)
            await first_answer(self._manager, self.refresh_now, timer.timeout_ms)
        finally:
            self._asking_for_all -= 1
            if not self._asking_for_all:
                cluster.need_all_topic_metadata = self._all_topics_before

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Request which of these topics this client may not describe; not on the I/O loop.

        Raises KafkaTimeoutError.
        """
        refused = kafka_errors.TopicAuthorizationFailedError.errno
        described = self._describe(topics, timeout_ms)
        return frozenset(t.name for t in described if t.error_code == refused)

    def topic_ids_now(self, topics: Collection[str], timeout_ms: float) -> dict[str, UUID]:
        """Request the ids of the given topics, as far as they have one; not on the I/O loop.

        Leaves the cached metadata unchanged. Raises KafkaTimeoutError.
        """
        described = self._describe(topics, timeout_ms)
        return {t.name: t.topic_id for t in described if t.topic_id is not None and t.topic_id.int}

    def _describe(self, topics: Collection[str], timeout_ms: float) -> list[Any]:
        """The brokers' answer about each topic."""
        if not topics:
            return []
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
            allow_auto_topic_creation=False,
            min_version=4,
        )
        response: Any = self._loop.run(
            first_answer, self._manager, lambda: self._manager.send(request), timeout_ms
        )
        return list(response.topics)
