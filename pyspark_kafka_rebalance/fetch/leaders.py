"""The brokers that lead partitions, and the offsets of their logs."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.consumer import ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import MetadataRequest

from .connections import ClusterConnections

#: A broker before 2.4 may report an outdated leader epoch (KAFKA-9212): fetches with it would be
#: refused for ever. Java's client, too, trusts epochs from this Metadata version on.
_EPOCH_RELIABLE_FROM = 9

#: After this many failures in a row, ask the bootstrap servers instead of the known brokers.
_FAILURES_BEFORE_BOOTSTRAP = 3
_BOOTSTRAP_TIMEOUT_S = 5.0

_NO_EPOCH = -1


class Leader(NamedTuple):
    """The broker that leads a partition, and its leader epoch."""

    node_id: int
    epoch: int


class PartitionLeaders:
    """The leaders of some topics' partitions, looked up when unknown.

    A topic that does not exist is not created. The connections are bootstrapped.
    """

    def __init__(self, connections: ClusterConnections, topics: Collection[str]) -> None:
        self._connections = connections
        self._topics = sorted(set(topics))
        self._leaders: dict[tuple[str, int], Leader] = {}
        self._topic_ids: dict[str, UUID] = {}
        self._failures = 0

    def locate(self, topic: str, partition: int) -> Leader:
        """Return the leader; from memory, unless it was forgotten.

        Raises a KafkaError or OSError: UnknownTopicOrPartitionError if there is no such partition.
        """
        leader = self._leaders.get((topic, partition))
        if leader is not None:
            return leader
        self._refresh(topic, partition)
        return self._leaders[topic, partition]

    def topic_id(self, topic: str) -> UUID | None:
        """Return the topic's id from the last metadata; None if the broker is too old."""
        return self._topic_ids.get(topic)

    def forget(self, topic: str, partition: int) -> None:
        """Request the leader again: a broker says that it is not the leader, or does not answer."""
        self._leaders.pop((topic, partition), None)

    def list_offset(self, topic: str, partition: int, spec: OffsetSpec) -> int:
        """Return the offset at an end of the partition's log, as its leader knows it.

        ``LATEST`` is the high watermark; after an election the leader returns it only once it has
        caught up (KIP-207). ``EARLIEST`` is the log start, ``EARLIEST_LOCAL`` where tiered storage
        ends. Raises a KafkaError or OSError.
        """
        leader = self.locate(topic, partition)
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                            partition_index=partition,
                            current_leader_epoch=leader.epoch,
                            timestamp=int(spec),
                        )
                    ],
                )
            ],
            min_version=max(1, ListOffsetsRequest.min_version_for_timestamp(spec)),
        )
        response = self._connections.send(request, leader.node_id).wait()
        answer = response.topics[0].partitions[0]
        raise_for(answer.error_code)
        return int(answer.offset)

    def _refresh(self, topic: str, partition: int) -> None:
        if self._failures >= _FAILURES_BEFORE_BOOTSTRAP:
            self._connections.bootstrap(_BOOTSTRAP_TIMEOUT_S, again=True)
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in self._topics],
            allow_auto_topic_creation=False,
            include_cluster_authorized_operations=False,
            include_topic_authorized_operations=False,
            min_version=4,
        )
        self._failures += 1
        response = self._connections.send(request).wait()
        self._failures = 0
        self._connections.update_brokers(response)
        error: type[Exception] = kafka_errors.UnknownTopicOrPartitionError
        for answer in response.topics:
            if answer.error_code and answer.name == topic:
                error = kafka_errors.for_code(answer.error_code)
            if answer.topic_id is not None and answer.topic_id.int:
                self._topic_ids[answer.name] = answer.topic_id
            for described in answer.partitions:
                found = (answer.name, described.partition_index)
                if described.leader_id < 0:
                    self._leaders.pop(found, None)
                    if found == (topic, partition):
                        error = kafka_errors.LeaderNotAvailableError
                    continue
                reliable = response.API_VERSION >= _EPOCH_RELIABLE_FROM
                epoch = described.leader_epoch if reliable else _NO_EPOCH
                self._leaders[found] = Leader(described.leader_id, epoch)
        if (topic, partition) not in self._leaders:
            raise error(f"{topic}-{partition}")


def raise_for(error_code: int) -> None:
    """Raise the error that a broker's answer has, if any."""
    if error_code:
        raise kafka_errors.for_code(error_code)()
