"""Where the partitions of a batch read start and end, as the brokers answer."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.admin import OffsetSpec
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..errors import KafkaRebalanceError, OptionError, names_of
from ..fetch.offset_range import OffsetRange
from .cluster_query import ask_cluster
from .options.ending_offsets import End
from .options.starting_offsets import AtTimestamp, Start, StartingOffsets

if TYPE_CHECKING:
    from .options.source_options import SourceOptions

_SPECS = {"earliest": OffsetSpec.EARLIEST, "latest": OffsetSpec.LATEST}

#: ListOffsets' answer if no record is as late as the timestamp, and OffsetFetch's if nothing is
#: committed.
_NONE = -1


def batch_ranges(options: SourceOptions) -> list[OffsetRange]:
    """Look up the ranges that a batch reads: sorted, without empty ones.

    Raises
    ------
    OptionError
        Offsets are not given for all partitions, or are given for some that do not exist.
    KafkaRebalanceError
        A topic or partition does not exist, there is no record at a starting timestamp, or the
        brokers do not answer (after ``fetchOffset.numRetries``).
    """
    return ask_cluster(options, "what there is to read", lambda admin: _ranges(admin, options))


def _ranges(admin: KafkaAdminClient, options: SourceOptions) -> list[OffsetRange]:
    partitions = sorted(options.partitions or _partitions(admin, options))
    starting, ending = options.starting_offsets, options.ending_offsets
    starts: dict[TopicPartition, Start | None] = {p: starting.start_of(p) for p in partitions}
    if starting == StartingOffsets.GROUP:
        committed = admin.list_group_offsets({options.group_id: partitions})[options.group_id]
        starts = {
            p: offset if (offset := committed[p].offset) != _NONE else options.auto_offset_reset
            for p in partitions
        }
    require_all("startingOffsets", starts, starting.named)
    ends: dict[TopicPartition, End | None] = {p: ending.end_of(p) for p in partitions}
    require_all("endingOffsets", ends, ending.named)
    isolation = IsolationLevel.build_from(options.isolation_level)
    first = _offsets(admin, starts, isolation)
    last = _offsets(admin, ends, isolation)
    return [
        OffsetRange(p.topic, p.partition, first[p], last[p])
        for p in partitions
        if first[p] < last[p]
    ]


def _partitions(admin: KafkaAdminClient, options: SourceOptions) -> list[TopicPartition]:
    """Return all partitions of the subscribed topics."""
    pattern = options.pattern
    if pattern is None:
        topics = list(options.topics or ())
    else:
        compiled = re.compile(pattern)
        topics = [topic for topic in admin.list_topics() if compiled.match(topic)]
    if not topics:
        return []
    described = admin.describe_topics(topics)
    for topic in described:
        if topic["error_code"]:
            error = kafka_errors.for_code(topic["error_code"])
            if error.retriable and error is not kafka_errors.UnknownTopicOrPartitionError:
                raise error(topic["name"])
            if error is kafka_errors.TopicAuthorizationFailedError:
                raise error(topic["name"])
            raise KafkaRebalanceError(f"topic {topic['name']!r} cannot be read: {error.__name__}")
    return [
        TopicPartition(topic["name"], partition["partition_index"])
        for topic in described
        if pattern is None or not topic["is_internal"]
        for partition in topic["partitions"]
    ]


def require_all(
    option: str, bounds: Mapping[TopicPartition, Any], named: Collection[TopicPartition]
) -> None:
    """Require offsets for all partitions if any are given, as Spark's own source does."""
    missing = [p for p, bound in bounds.items() if bound is None]
    unknown = [p for p in named if p not in bounds]
    for wrong, problem, what_to_do in (
        (missing, "leaves out partitions", "name all partitions"),
        (unknown, "names partitions that do not exist", "leave them out"),
    ):
        if wrong:
            raise OptionError(option, None, f"{names_of(wrong)}; {what_to_do}", problem=problem)


def _offsets(
    admin: KafkaAdminClient,
    bounds: Mapping[TopicPartition, Start | End | None],
    isolation: IsolationLevel,
) -> dict[TopicPartition, int]:
    """Look up the offset of each bound, with one request per broker.

    A second request follows for partitions where no record is late enough.
    """
    offsets = {p: bound for p, bound in bounds.items() if isinstance(bound, int)}
    times = {p: bound for p, bound in bounds.items() if isinstance(bound, AtTimestamp)}
    asked: dict[TopicPartition, int] = {p: at.timestamp_ms for p, at in times.items()}
    asked |= {p: _SPECS[bound] for p, bound in bounds.items() if isinstance(bound, str)}
    if asked:
        found = admin.list_partition_offsets(asked, isolation)
        offsets |= {p: at.offset for p, at in found.items()}
    if none := sorted(p for p in times if offsets[p] == _NONE):
        for p in none:
            if not times[p].or_latest:
                raise times[p].no_record(p)
        latest = admin.list_partition_offsets(dict.fromkeys(none, OffsetSpec.LATEST), isolation)
        offsets |= {p: at.offset for p, at in latest.items()}
    return offsets
