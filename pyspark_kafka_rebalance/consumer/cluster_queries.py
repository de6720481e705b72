"""Broker queries that KafkaConsumer lacks, or retries past their timeout.

None of them depends on membership.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID

from kafka import KafkaConsumer
from kafka.errors import LeaderNotAvailableError
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition

from .kafka_python.coordinator import GroupCoordinator
from .kafka_python.next_records import next_timestamps
from .offsets.commit_metadata import GroupCommit, Remaining, Told
from .offsets.found_records import RecordTime
from .offsets.origin import Origin
from .offsets.told_remaining import bound_to

log = logging.getLogger(__name__)


class ClusterQueries:
    """The topics, committed offsets, logs and leaders that one consumer asks brokers about.

    The consumer offers each of them under the same name, and says there what it returns and raises.
    Any thread but the I/O loop may call them.

    Parameters
    ----------
    consumer : KafkaConsumer
        Asks, under its isolation level.
    io : GroupCoordinator
        Its seam to kafka-python.
    """

    def __init__(self, consumer: KafkaConsumer, io: GroupCoordinator) -> None:
        self._consumer = consumer
        self._io = io
        self._isolation = IsolationLevel.build_from(consumer.config["isolation_level"])

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """Fetch the names of all topics."""
        return self._io.metadata.existing_topics(timeout_ms)

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Request metadata and return the topics that this client may not describe."""
        return self._io.metadata.hidden_topics(topics, timeout_ms)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The given partitions that are in the cached metadata."""
        counts = self._io.metadata.partition_counts({p.topic for p in partitions})
        return frozenset(p for p in partitions if p.partition < counts[p.topic])

    def topic_ids(self, topics: Collection[str]) -> dict[str, UUID]:
        """Topic ids in the present metadata."""
        found = {topic: self._io.metadata.topic_id(topic) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def topic_ids_now(self, topics: Collection[str], timeout_ms: float) -> dict[str, UUID]:
        """Topic ids, requested now; the metadata stay as they are."""
        return self._io.metadata.topic_ids_now(topics, timeout_ms)

    def metadata_renewed_ms(self) -> float:
        """A number that changes whenever new metadata arrive."""
        return self._io.metadata.renewed_ms

    def leaderships(self) -> dict[TopicPartition, tuple[UUID | None, int | None]]:
        """Each partition's topic id and leader epoch in the present metadata."""
        return self._io.metadata.leaderships()

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it."""
        self._io.metadata.refresh()

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, over the lane."""
        committed = self._io.fetch_committed_offsets(list(partitions), timeout_ms)
        return {partition: found.offset for partition, found in committed.items()}

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        """The group's offsets, the progress beyond them unless ``in_order``, and who committed."""
        found = {}
        committed = self._io.fetch_committed_offsets(list(partitions), timeout_ms)
        for p, entry in committed.items():
            bound = bound_to(self._io.metadata.topic_id(p.topic), p)
            left, told = Remaining(entry.offset), Told.NOTHING
            if not in_order:
                left, told, _ = Remaining.decode(entry.offset, entry.metadata, bound)
            found[p] = GroupCommit(left, Origin.decode(entry.offset, entry.metadata, bound))
            if told in (Told.NEWER, Told.ANOTHER_COMMIT):
                log.warning(
                    "%s-%d: records from offset %d on may come again: the commit's metadata %s",
                    *(*p, entry.offset, told.value),
                )
        return found

    def beginning_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """Where logs begin; asks once."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """Where logs end; asks once."""
        return self._io.log_offsets.ask(partitions, OffsetSpec.LATEST, self._isolation, timeout_ms)

    def end_offsets_soon(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Where logs end; the returned callable waits for the answer."""
        return self._io.log_offsets.begin_ask(
            partitions, OffsetSpec.LATEST, self._isolation, timeout_ms
        )

    def high_watermarks_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """Where logs end, open transactions included."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def first_records_now(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """The first readable record of each log from its timestamp on; asks once."""
        return self._io.log_offsets.first_at(timestamps, self._isolation, timeout_ms)

    def first_records_soon(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, RecordTime | None]]:
        """The same; the returned callable waits for the answer."""
        return self._io.log_offsets.begin_first_at(timestamps, self._isolation, timeout_ms)

    def latest_records_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """The record of each log that has the highest timestamp; asks once."""
        return self._io.log_offsets.latest(partitions, self._isolation, timeout_ms)

    def next_timestamps_now(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        timeout_ms: float,
    ) -> dict[TopicPartition, int | None]:
        """The timestamps of the next readable records; see `next_timestamps`."""
        found: dict[TopicPartition, int | None] = self._io.loop.run(
            next_timestamps, self._consumer, positions, ends, timeout_ms
        )
        return found

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that the metadata knows."""
        return self._io.metadata.leaders(partitions)


@contextmanager
def leader_gone() -> Iterator[None]:
    """Raise a retriable error where kafka-python stumbles over a partition without a leader."""
    try:
        yield
    except KeyError as error:
        raise LeaderNotAvailableError(*error.args) from error
