"""Broker queries that KafkaConsumer lacks, or retries past their timeout.

None of them depends on membership, and none waits longer than its timeout.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from kafka import KafkaConsumer
from kafka.errors import LeaderNotAvailableError
from kafka.protocol.consumer import IsolationLevel
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition

from .kafka_python.coordinator import GroupCoordinator
from .kafka_python.next_records import next_timestamps
from .offsets.checked_arguments import checked_offsets, checked_partition, checked_partitions
from .offsets.commit_metadata import GroupCommit, Remaining, Told
from .offsets.found_records import RecordTime
from .offsets.origin import Origin
from .offsets.told_remaining import bound_to

log = logging.getLogger(__name__)


class ClusterQueries(KafkaConsumer):  # type: ignore[misc]
    """A KafkaConsumer that looks up topics, committed offsets and end offsets in limited time."""

    _io: GroupCoordinator

    def existing_topics(self, timeout_ms: float) -> frozenset[str]:
        """Fetch the names of all topics within ``timeout_ms``, else raise KafkaTimeoutError."""
        return self._io.metadata.existing_topics(timeout_ms)

    def hidden_topics(self, topics: Collection[str], timeout_ms: float) -> frozenset[str]:
        """Request metadata and return the topics that this client may not describe."""
        return self._io.metadata.hidden_topics(topics, timeout_ms)

    def known_partitions(self, partitions: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """The given partitions that are in the cached metadata."""
        counts = self._io.metadata.partition_counts({p.topic for p in partitions})
        return frozenset(p for p in partitions if p.partition < counts[p.topic])

    def topic_ids(self, topics: Collection[str]) -> dict[str, UUID]:
        """Topic ids in the present metadata; without topics that are missing or have no id."""
        found = {topic: self._io.metadata.topic_id(topic) for topic in topics}
        return {topic: topic_id for topic, topic_id in found.items() if topic_id is not None}

    def topic_ids_now(self, topics: Collection[str], timeout_ms: float) -> dict[str, UUID]:
        """As ``topic_ids``, but asks now (KafkaTimeoutError); leaves the metadata as they are."""
        return self._io.metadata.topic_ids_now(topics, timeout_ms)

    def metadata_renewed_ms(self) -> float:
        """A number that changes whenever new metadata arrive."""
        return self._io.metadata.renewed_ms

    def leaderships(self) -> dict[TopicPartition, tuple[UUID | None, int | None]]:
        """Each partition's topic id and leader epoch in the present metadata.

        If either changes, the partition may have become another log.
        """
        return self._io.metadata.leaderships()

    def request_metadata(self) -> None:
        """Ask for new metadata, without waiting for it."""
        self._io.metadata.refresh()

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, over the lane; without the partitions that have none.

        Raises KafkaTimeoutError, or the broker's error.
        """
        asked = checked_partitions("committed_offsets", partitions)
        committed = self._io.fetch_committed_offsets(asked, timeout_ms)
        return {partition: found.offset for partition, found in committed.items()}

    def committed_remaining(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, Remaining]:
        """As ``committed_offsets``, with the progress beyond them in the commits' metadata."""
        found = self.group_commits(partitions, timeout_ms)
        return {partition: commit.remaining for partition, commit in found.items()}

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        """As ``committed_remaining``, with the queries that have committed.

        With ``in_order`` the progress beyond the offsets is left out.
        """
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

    def committed(
        self, partition: TopicPartition, metadata: bool = False, timeout_ms: float | None = None
    ) -> Any:
        """``KafkaConsumer.committed``: the group's next offset, or None; asks the broker."""
        return super().committed(checked_partition("committed", partition), metadata, timeout_ms)

    def offsets_for_times(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float | None = None
    ) -> dict[TopicPartition, Any]:
        """``KafkaConsumer.offsets_for_times``; leaves the given timestamps as they are."""
        asked = checked_offsets("offsets_for_times", timestamps, "timestamp")
        return dict(super().offsets_for_times(asked, timeout_ms))

    def beginning_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a leader that went away."""
        with _leader_gone():
            asked = checked_partitions("beginning_offsets", partitions)
            return dict(super().beginning_offsets(asked, timeout_ms))

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, int]:
        """As ``KafkaConsumer``'s, with a retriable error for a leader that went away."""
        with _leader_gone():
            asked = checked_partitions("end_offsets", partitions)
            return dict(super().end_offsets(asked, timeout_ms))

    def beginning_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``beginning_offsets``, but asks only once; without partitions that get no answer."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.EARLIEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets``, but asks only once; without partitions that get no answer."""
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        return self._io.log_offsets.ask(partitions, OffsetSpec.LATEST, isolation, timeout_ms)

    def end_offsets_soon(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, int]]:
        """Ask as ``end_offsets_now``; returns at once a callable that waits for the answer."""
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        return self._io.log_offsets.begin_ask(partitions, OffsetSpec.LATEST, isolation, timeout_ms)

    def high_watermarks_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """As ``end_offsets_now``, but under any isolation level includes open transactions."""
        return self._io.log_offsets.ask(
            partitions, OffsetSpec.LATEST, IsolationLevel.READ_UNCOMMITTED, timeout_ms
        )

    def first_records_now(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """The first readable record of each log from its timestamp on; None if there is none.

        Asks only once; without partitions that get no answer.
        """
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        return self._io.log_offsets.first_at(timestamps, isolation, timeout_ms)

    def first_records_soon(
        self, timestamps: Mapping[TopicPartition, int], timeout_ms: float
    ) -> Callable[[], dict[TopicPartition, RecordTime | None]]:
        """Ask as ``first_records_now``; returns at once a callable that waits for the answer."""
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        return self._io.log_offsets.begin_first_at(timestamps, isolation, timeout_ms)

    def latest_records_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, RecordTime | None]:
        """As ``first_records_now``, but the record with the highest timestamp.

        Raises IncompatibleBrokerVersion if brokers are older than 3.0.
        """
        isolation = IsolationLevel.build_from(self.config["isolation_level"])
        return self._io.log_offsets.latest(partitions, isolation, timeout_ms)

    def next_timestamps_now(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        timeout_ms: float,
    ) -> dict[TopicPartition, int | None]:
        """The timestamps of the next readable records; see `next_timestamps`, which asks."""
        found: dict[TopicPartition, int | None] = self._io.loop.run(
            next_timestamps, self, positions, ends, timeout_ms
        )
        return found

    def leaders(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The node id of each leader that the metadata knows."""
        return self._io.metadata.leaders(partitions)

    def partitions_with_leader(
        self, partitions: Collection[TopicPartition]
    ) -> list[TopicPartition]:
        """The partitions whose leader the metadata knows; a query of others would wait for one."""
        return list(self.leaders(partitions))


@contextmanager
def _leader_gone() -> Iterator[None]:
    """Raise a retriable error where kafka-python stumbles over a partition without a leader."""
    try:
        yield
    except KeyError as error:
        raise LeaderNotAvailableError(*error.args) from error
