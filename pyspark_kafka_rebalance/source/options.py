"""SourceOptions: what the user wrote, parsed and checked once, before any network is touched.

Names and meanings are those of Spark's Kafka source wherever it has them.
"""

from __future__ import annotations

import os.path
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import urlsplit

from ..errors import OptionError
from .client_settings import KNOWN_SETTINGS, map_client_settings
from .starting_offsets import Start, StartingOffsets
from .values import (
    BOOLEAN,
    LONG_MAX,
    NON_EMPTY_TEXT,
    REDACTED,
    ValueType,
    integer,
    nearest,
    parse_value,
)

_READERS = integer(1, 1_000)

_OWN_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "includeHeaders",
    "failOnDataLoss",
    "readers",
    "revokeTimeoutMs",
    "includeRebalanceEvents",
    "checkpointLocation",
)

_NOT_YET = "leave it out: it is not supported yet"
_NOT_IN_A_STREAM = "leave it out: a stream has no end"

#: Known, and refused: why, and what instead.
_REFUSED_OPTIONS = {
    "assign": (
        "subscribe or subscribePattern instead: the consumer group hands out the partitions of "
        "a stream, so it cannot name its own"
    ),
    "groupIdPrefix": "kafka.group.id instead: the group is shared on purpose, not generated",
    "path": "load() without a path; topics are named by subscribe or subscribePattern",
    "paths": "load() without paths; topics are named by subscribe or subscribePattern",
    "topic": "subscribe: topic is an option of the sink",
    "endingOffsets": _NOT_IN_A_STREAM,
    "endingTimestamp": _NOT_IN_A_STREAM,
    "endingOffsetsByTimestamp": _NOT_IN_A_STREAM,
    "startingTimestamp": _NOT_YET,
    "startingOffsetsByTimestamp": _NOT_YET,
    "startingOffsetsByTimestampStrategy": _NOT_YET,
    "minOffsetsPerTrigger": _NOT_YET,
    "maxTriggerDelay": _NOT_YET,
    "minPartitions": _NOT_YET,
    "maxRecordsPerPartition": _NOT_YET,
    "includeFetchMetadata": _NOT_YET,
    "parallelRebalance": _NOT_YET,
    "maxTaskIdleMs": _NOT_YET,
    "kafkaConsumer.pollTimeoutMs": _NOT_YET,
    "fetchOffset.numRetries": _NOT_YET,
    "fetchOffset.retryIntervalMs": _NOT_YET,
}

_KAFKA = "kafka."


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one stream.

    The three ``…_config`` hold secrets and stay out of the representation.

    Attributes
    ----------
    topics : tuple of str or None
        What ``subscribe`` lists, in its order and without duplicates; None with a pattern.
    pattern : str or None
        ``subscribePattern``, anchored at both ends: Java asks for a full match, kafka-python for
        a match from the start. None with topics.
    group_id : str
        The consumer group.
    client_config, consumer_config, fetch_config : Mapping[str, Any]
        kafka-python's arguments for every connection; for ``KafkaConsumer`` beside those; for
        the executors' fetches (only what the user set).
    readers : int
        How many members the query has in the group, and at most how many tasks a batch.
    starting_offsets : StartingOffsets
        Where partitions start when there is no checkpoint.
    auto_offset_reset : {"earliest", "latest"}
        Where a partition starts that ``starting_offsets`` leaves open.
    isolation_level : {"read_uncommitted", "read_committed"}
        Which records of transactions are read.
    max_offsets_per_trigger : int or None
        At most so many offsets a batch.
    max_bytes_per_trigger : int or None
        About so many bytes a batch, as the brokers store them.
    include_headers, include_rebalance_events : bool
        Whether there is a column ``headers``; a column ``event`` with rows of its own.
    fail_on_data_loss : bool
        Whether records that are gone from Kafka fail the query.
    revoke_timeout_ms : int or None
        How long a revoke may wait for its batch; None: ``kafka.max.poll.interval.ms``.
    checkpoint_location : str or None
        The query's checkpoint, an absolute local path.
    """

    topics: tuple[str, ...] | None
    pattern: str | None
    group_id: str
    client_config: Mapping[str, Any] = field(repr=False, hash=False)
    consumer_config: Mapping[str, Any] = field(repr=False, hash=False)
    fetch_config: Mapping[str, Any] = field(repr=False, hash=False)
    readers: int
    starting_offsets: StartingOffsets
    auto_offset_reset: Literal["earliest", "latest"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None
    include_headers: bool
    include_rebalance_events: bool
    fail_on_data_loss: bool
    revoke_timeout_ms: int | None
    checkpoint_location: str | None

    @classmethod
    def parse(cls, options: Mapping[str, str], *, default_readers: int) -> SourceOptions:
        """Parse the options of a stream.

        Parameters
        ----------
        options : Mapping[str, str]
            As Spark hands them over; the case of a name does not count.
        default_readers : int
            ``readers`` when the user says nothing.

        Raises
        ------
        OptionError
            The first option that is missing, unknown, not supported, or has a bad value.
        """
        given = {name.lower(): value for name, value in options.items()}
        _refuse(given)
        kafka = {n.removeprefix(_KAFKA): v for n, v in given.items() if n.startswith(_KAFKA)}
        topics, pattern = _subscription(given)
        settings = map_client_settings(kafka)
        if settings.group_id is None:
            raise OptionError("kafka.group.id", None, "the consumer group that the query joins")

        def value(name: str, value_type: ValueType, default: Any = None) -> Any:
            text = given.get(name.lower())
            return default if text is None else parse_value(name, text, value_type)

        def subscribes(topic: str) -> bool:
            if topics is not None:
                return topic in topics
            return re.match(pattern or "", topic) is not None

        longest = settings.consumer["max_poll_interval_ms"]
        timeout = integer(1, longest)
        timeout = ValueType(timeout.parse, f"{timeout.allowed} (kafka.max.poll.interval.ms)")
        return cls(
            topics=topics,
            pattern=pattern,
            group_id=settings.group_id,
            client_config=settings.client,
            consumer_config=settings.consumer,
            fetch_config=settings.fetch,
            readers=value("readers", _READERS, default_readers),
            starting_offsets=StartingOffsets.parse(
                given.get("startingoffsets", "group"), subscribes
            ),
            auto_offset_reset=settings.consumer["auto_offset_reset"],
            isolation_level=settings.consumer["isolation_level"],
            max_offsets_per_trigger=value("maxOffsetsPerTrigger", integer(1, LONG_MAX)),
            max_bytes_per_trigger=value("maxBytesPerTrigger", integer(1, LONG_MAX)),
            include_headers=value("includeHeaders", BOOLEAN, False),
            include_rebalance_events=value("includeRebalanceEvents", BOOLEAN, False),
            fail_on_data_loss=value("failOnDataLoss", BOOLEAN, True),
            revoke_timeout_ms=value("revokeTimeoutMs", timeout),
            checkpoint_location=value("checkpointLocation", _LOCAL_PATH),
        )

    def start_of(self, topic: str, partition: int) -> Start:
        """Return where a partition starts that neither the checkpoint nor the group knows."""
        start = self.starting_offsets.start_of(topic, partition)
        return self.auto_offset_reset if start is None else start


def _refuse(given: Mapping[str, str]) -> None:
    """Raise for the first option, by name, that is unknown or not for a stream of this version."""
    own = {name.lower() for name in _OWN_OPTIONS}
    refused = {name.lower(): name for name in _REFUSED_OPTIONS}
    for name in sorted(given):
        if name in refused:
            spelt = refused[name]
            raise OptionError(spelt, given[name], _REFUSED_OPTIONS[spelt])
        if name not in own and not name.startswith(_KAFKA):
            known = (*_OWN_OPTIONS, *_REFUSED_OPTIONS, *(_KAFKA + n for n in KNOWN_SETTINGS))
            # Redacted: a setting whose "kafka." was forgotten may well be a password.
            raise OptionError(
                name, REDACTED, f"no option of this name; the nearest is {nearest(name, known)}"
            )


def _subscription(given: Mapping[str, str]) -> tuple[tuple[str, ...] | None, str | None]:
    one = "exactly one of subscribe and subscribePattern"
    if "subscribe" in given and "subscribepattern" in given:
        raise OptionError("subscribePattern", given["subscribepattern"], one)
    if "subscribe" in given:
        return parse_value("subscribe", given["subscribe"], _TOPICS), None
    if "subscribepattern" in given:
        text = parse_value("subscribePattern", given["subscribepattern"], NON_EMPTY_TEXT)
        return None, _anchor(text)
    raise OptionError("subscribe", None, one)


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",")))
    for topic in topics:
        if not re.fullmatch("[a-zA-Z0-9._-]{1,249}", topic) or topic in (".", ".."):
            raise ValueError
    return topics


_TOPICS = ValueType(
    _topics,
    "topic names separated by commas, each of 1 to 249 ASCII letters, digits, '.', '_' and '-'",
)


def _anchor(pattern: str) -> str:
    """Return a Java pattern as one of Python's that matches whole names only."""
    try:
        with warnings.catch_warnings():
            # Python warns of what it may read otherwise one day; Java reads it otherwise today.
            warnings.simplefilter("error")
            re.compile(pattern)
            # Flags for the whole pattern, "(?i)…", may not stand inside a group.
            flags = re.match(r"\(\?([a-z]+)\)", pattern)
            group = f"(?{flags[1]}:" if flags else "(?:"
            body = pattern[flags.end() :] if flags else pattern
            # Under the flag x a comment would swallow what follows on its line.
            end = "\n)" if flags and "x" in flags[1] else ")"
            anchored = rf"{group}{body}{end}\Z"
            re.compile(anchored)
            return anchored
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise OptionError(
            "subscribePattern", pattern, f"a regular expression that Python knows, too ({error})"
        ) from None


def _local_path(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme:
        # Hadoop does not decode %20 and the like in a path, so neither is it done here.
        if parts.scheme != "file" or parts.netloc:
            raise ValueError
        text = re.sub("^file:(//)?", "", text)
        if not text.startswith("/"):
            raise ValueError
    if not text:
        raise ValueError
    return os.path.abspath(text)


_LOCAL_PATH = ValueType(
    _local_path,
    "a local path or a file: URI; checkpoints in other file systems are not supported yet, the "
    "query runs without this option",
)
