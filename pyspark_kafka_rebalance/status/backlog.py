"""A partition's lag and position, from the group's commit and the log's ends. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from kafka.structs import OffsetAndMetadata, TopicPartition

from ..consumer.offsets.commit_metadata import Remaining, Told
from ..consumer.offsets.told_remaining import bound_to

NO_TOPIC = "no such topic"
NO_PARTITION = "no such partition"
NO_LEADER = "no leader"
BEYOND_END = "beyond the end"

_METADATA = {Told.ANOTHER_COMMIT: "gaps of another commit", Told.NEWER: "gaps of a newer version"}


@dataclass(frozen=True, slots=True)
class Topic:
    """The metadata of a topic."""

    topic_id: UUID | None = None  #: None if brokers are older than 2.8, or there is no such topic
    partitions: frozenset[int] = frozenset()
    led: frozenset[int] = frozenset()  #: the partitions with a leader
    problem: str = ""  #: why nothing is known of the topic


@dataclass(frozen=True, slots=True)
class Logs:
    """Where logs start and end; leaves out partitions without an answer."""

    at: float  #: when the end offsets were received; seconds since 1970
    topics: Mapping[str, Topic] = field(default_factory=dict)  #: all that were requested
    starts: Mapping[TopicPartition, int] = field(default_factory=dict)
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)  #: exclusive


@dataclass(frozen=True, slots=True)
class Backlog:
    """The offsets of one partition that the group has yet to process."""

    position: int | None = None  #: the group's committed offset
    end: int | None = None  #: of the log, exclusive
    #: How many offsets below the end the group has not processed. Excludes offsets that retention
    #: has deleted, and offsets that the commit's metadata mark as processed. None if the position
    #: or the end is unknown, or the position is beyond the end.
    lag: int | None = None
    #: From the commit's metadata: how many gaps there are below the live position, and how many
    #: offsets are left in them (KIP-333, ``processed``).
    gaps: int = 0
    gap_offsets: int = 0
    first: int | None = None  #: the lowest offset of the lag
    note: str = ""  #: the problem


def backlog_of(
    partition: TopicPartition, committed: OffsetAndMetadata | None, logs: Logs
) -> Backlog:
    """Compute a partition's backlog; ``committed`` is None if the group has no commit for it."""
    topic = logs.topics.get(partition.topic, Topic(problem=NO_TOPIC))
    end = logs.ends.get(partition)
    note = topic.problem or _of_partition(partition, topic, end)
    if committed is None or committed.offset < 0:
        return Backlog(end=end, note=note)
    position = committed.offset
    if end is None:
        return Backlog(position, note=note)
    if position > end:
        return Backlog(position, end, note=BEYOND_END)
    left, told, _ = Remaining.decode(
        position, committed.metadata, bound_to(topic.topic_id, partition)
    )
    start = logs.starts.get(partition, 0)
    deleted = left.count(min(start, end))
    left = left.trim(start)
    lag = left.count(end)
    notes = [f"{deleted:,} deleted unread"] if deleted else []
    notes += [_METADATA[told]] if told in _METADATA else []
    return Backlog(
        position,
        end,
        lag,
        len(left.gaps),
        sum(gap.end - gap.start for gap in left.gaps),
        left.committed() if lag else None,
        ", ".join(notes),
    )


def _of_partition(partition: TopicPartition, topic: Topic, end: int | None) -> str:
    if partition.partition not in topic.partitions:
        return NO_PARTITION
    return NO_LEADER if end is None else ""
