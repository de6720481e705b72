"""The topics that a producer writes to, as metadata describes them: partitions, leaders. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kafka.structs import TopicPartition

from ..fetch.leaders import Leader

#: A broker before 2.4 may report an outdated leader epoch (KAFKA-9212).
_EPOCH_RELIABLE_FROM = 9


@dataclass
class Topic:
    """One topic.

    Attributes
    ----------
    partitions : int
        How many it has; 0 until metadata says.
    available : list of int
        Those that have a leader.
    error : int
        Why metadata does not describe it; 0 if it does.
    id : object
        What tells it from a topic of this name that was deleted (KIP-516); zero before Kafka 2.8.
    """

    partitions: int = 0
    available: list[int] = field(default_factory=list)
    error: int = 0
    id: Any = None

    def is_created_anew(self, now: Any) -> bool:
        """Whether this id is that of another topic."""
        return bool(self.id and self.id.int and now and now.int) and now != self.id


class Topics:
    """The topics of one producer, as of the last metadata.

    Attributes
    ----------
    stale : bool
        Whether new metadata is wanted.
    """

    def __init__(self) -> None:
        self._topics: dict[str, Topic] = {}
        self._leaders: dict[TopicPartition, Leader] = {}
        self.stale = False

    def leave(self, name: str) -> None:
        """Request no metadata of a topic any more: no call waits for it."""
        self._topics.pop(name, None)

    @property
    def names(self) -> list[str]:
        """The topics to ask for."""
        return list(self._topics)

    def topic(self, name: str) -> Topic:
        """The topic; asks for its metadata if there is none yet."""
        found = self._topics.get(name)
        if found is None:
            found = self._topics[name] = Topic()
            self.stale = True
        return found

    def leader_of(self, partition: TopicPartition) -> int | None:
        """The broker that leads a partition; None, and new metadata is wanted, if unknown."""
        leader = self._leaders.get(partition)
        if leader is None:
            self.topic(partition.topic)
            self.stale = True
            return None
        return leader.node_id

    def forget(self, partition: TopicPartition) -> None:
        """Request the leader again: the known one refuses, or does not answer."""
        if self._leaders.pop(partition, None) is not None:
            self.stale = True

    def moved(self, partition: TopicPartition, node_id: int, epoch: int) -> None:
        """Take the new leader that the former one names."""
        known = self._leaders.get(partition)
        if known is None or epoch > known.epoch:
            self._leaders[partition] = Leader(node_id, epoch)

    def apply(self, metadata: Any) -> None:
        """Take a MetadataResponse."""
        self.stale = False
        reliable = metadata.API_VERSION >= _EPOCH_RELIABLE_FROM
        for described in metadata.topics:
            topic = self._topics.get(described.name)
            if topic is None:
                continue
            topic.error = described.error_code
            if described.error_code:
                self.stale |= not topic.partitions  # it may be created right now
                continue
            led = {each.partition_index: each for each in described.partitions}
            if topic.is_created_anew(described.topic_id):
                self._forget_topic(described.name)
                topic.partitions = len(led)
            topic.id = described.topic_id
            # A broker that is behind may know of fewer.
            topic.partitions = max(topic.partitions, len(led))
            topic.available = sorted(n for n, each in led.items() if each.leader_id >= 0)
            for number, each in led.items():
                epoch = each.leader_epoch if reliable else -1
                self._lead(TopicPartition(described.name, number), each.leader_id, epoch)

    def _forget_topic(self, name: str) -> None:
        """Its leaders' epochs began anew."""
        for partition in [each for each in self._leaders if each.topic == name]:
            del self._leaders[partition]

    def _lead(self, partition: TopicPartition, node_id: int, epoch: int) -> None:
        known = self._leaders.get(partition)
        if known is not None and epoch < known.epoch:
            return  # of a broker that is behind
        if node_id < 0:
            self._leaders.pop(partition, None)
        else:
            self._leaders[partition] = Leader(node_id, epoch)
