"""The queries that find the order of timestamps; a protocol that hides the I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kafka.structs import TopicPartition

from ...consumer.offsets.found_records import RecordTime
from ...fetch.offset_range import OffsetRange
from .timelines import Rows

#: A range of up to this many offsets is read whole, together with other partitions' ranges. This
#: many offsets include a record, despite all that transactions leave between records.
SHORT = 100


class Times(Protocol):
    """Timestamps, cached or requested from brokers; partitions without an answer are absent."""

    def awaited(self, planned: Collection[TopicPartition]) -> Collection[TopicPartition]:
        """Partitions that the query has, or is about to have, and a batch of these cannot read.

        The batch is planned from the positions of ``planned``; others may have been assigned later.
        """

    def ends_asked_at(self) -> float:
        """Return when the ends of the batch's logs were requested; seconds, monotonic."""

    def anew(self) -> Collection[TopicPartition]:
        """Partitions whose logs may have been replaced since the last call.

        Another leader may have lost its predecessor's records, and a topic may have been recreated:
        earlier answers about such a log say nothing.
        """

    def first_at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        """Return the first record in each log at or after its timestamp; None if there is none."""

    def newest(self) -> Mapping[TopicPartition, RecordTime | None]:
        """Return each log's latest record, as reported before the ends of the logs were queried.

        The answer may be much older than that, unless :meth:`prepare` has requested it.
        """

    def newest_of(
        self, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        """Return the latest record of each of these logs as of now; None for an empty log.

        It may lie behind the ends of the logs, or be deleted.
        """
        ...

    def prepare(self, first_at: Mapping[TopicPartition, int], *, newest: bool) -> None:
        """Send the next batch's likely requests in advance, so that it need not wait for them.

        ``first_at`` replaces earlier preparations; ``newest`` requests the latest records again.
        """

    def rows(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Mapping[TopicPartition, Rows]:
        """Read these ranges; of one longer than SHORT, maybe only the first part."""


class UntoldError(Exception):
    """Brokers do not answer a necessary query about some partitions now."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = frozenset(partitions)


def short_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    """Return the range from ``start`` on, SHORT at most."""
    return OffsetRange(partition.topic, partition.partition, start, min(end, start + SHORT))


def last_range(partition: TopicPartition, end: int) -> OffsetRange:
    """Return the range up to ``end``, SHORT at most."""
    return OffsetRange(partition.topic, partition.partition, max(0, end - SHORT), end)


def one_record(partition: TopicPartition, offset: int) -> OffsetRange:
    """Return the range that has only this record."""
    return OffsetRange(partition.topic, partition.partition, offset, offset + 1)
