"""Times: what the order of timestamps is found by; I/O behind a protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from kafka.structs import TopicPartition

from ...consumer.record_time import RecordTime
from ...fetch.offset_range import OffsetRange
from .timelines import Rows

#: Up to so many offsets are read whole, together with those of other partitions. Among so many
#: there is a record, whatever transactions leave beside them.
SHORT = 100


class Times(Protocol):
    """What is known of timestamps, or told by brokers; without what is not told now."""

    def awaited(self) -> Collection[TopicPartition]:
        """Partitions that the query has, or is about to have, and cannot read yet."""
        ...

    def anew(self) -> Collection[TopicPartition]:
        """Partitions whose logs may have become others since this was asked last.

        Another leader may have lost what its predecessor had, and a topic may be created anew: what
        was told of such a log before says nothing.
        """
        ...

    def first_at(
        self, timestamps: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        """The first record in each log that is as late or later; None if there is none."""
        ...

    def newest(self) -> Mapping[TopicPartition, RecordTime | None]:
        """The latest record of each log, from before the ends of the logs were asked for.

        Maybe from long before, unless :meth:`prepare` has asked for them.
        """
        ...

    def prepare(self, first_at: Mapping[TopicPartition, int], *, newest: bool) -> None:
        """What the next batch is likely to ask: so that it need not wait for that.

        Parameters
        ----------
        first_at : Mapping[TopicPartition, int]
            As for :meth:`first_at`; what was said before is dropped.
        newest : bool
            Whether the latest records must be told anew.
        """
        ...

    def rows(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Mapping[TopicPartition, Rows]:
        """Read these, and of a range longer than SHORT maybe the first part."""
        ...


class UntoldError(Exception):
    """Brokers do not tell now what is needed of some partitions."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = frozenset(partitions)


def short_range(partition: TopicPartition, start: int, end: int) -> OffsetRange:
    """The range from there on, SHORT at most."""
    return OffsetRange(partition.topic, partition.partition, start, min(end, start + SHORT))


def last_range(partition: TopicPartition, end: int) -> OffsetRange:
    """The range up to there, SHORT at most."""
    return OffsetRange(partition.topic, partition.partition, max(0, end - SHORT), end)


def one_record(partition: TopicPartition, offset: int) -> OffsetRange:
    """The range that has this record alone."""
    return OffsetRange(partition.topic, partition.partition, offset, offset + 1)
