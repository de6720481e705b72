"""SourceOptions: the user's options, parsed and checked once, before any network access.

Options that Spark's Kafka source also has keep its names and meanings. Spark has the options parsed
before it says whether a stream or a batch is to be read, so :meth:`SourceOptions.for_stream` and
:meth:`SourceOptions.for_batch` refuse options that only the other one allows.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from ...errors import OptionError, names_of
from ...settings.client_settings import ClientSettings, map_client_settings
from ...settings.names import is_topic_name
from ...settings.problems import Problems
from ...settings.values import (
    BOOLEAN,
    DURATION_MS,
    INT_MAX,
    LONG_MAX,
    NON_EMPTY_TEXT,
    ValueType,
    integer,
    items_of,
    one_of,
    parse_value,
)
from ..checkpoint.checkpoint_files import parse_location
from ..offsets.partition_json import parse_partitions
from .catch_up_options import CATCH_UP_OPTIONS, CatchUpOptions
from .ending_offsets import ENDING_OPTIONS, EndingOffsets
from .event_time_options import EVENT_TIME_OPTIONS, EventTimeOptions
from .option_names import KAFKA, without_effect
from .starting_offsets import Start, StartingOffsets

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

_READERS = integer(1, 1_000)

#: Spark's default of ``maxTriggerDelay``.
_MAX_TRIGGER_DELAY_MS = 15 * 60_000

#: Whose position counts where this query itself has committed beyond its checkpoint.
RESTORED_CHECKPOINT = "restoredCheckpoint"
_RESTORED_CHECKPOINT = one_of("checkpoint", "group", ignore_case=True)

_STARTING_OPTIONS = ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets")

#: Options that only a group member uses. (So are its timeouts, but ignoring these with ``assign``
#: breaks no promise.)
_OF_MEMBERS = (
    "kafka.group.instance.id",
    "kafka.group.protocol",
    "kafka.group.remote.assignor",
    "maxBatchDurationMs",
    "revokeTimeoutMs",
    "shareGroup",
)

_OWN_OPTIONS = (
    "subscribe",
    "subscribePattern",
    "assign",
    *_STARTING_OPTIONS,
    "startingOffsetsByTimestampStrategy",
    *ENDING_OPTIONS,
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxOffsetsPerTrigger",
    "maxBytesPerTrigger",
    "minPartitions",
    "maxRecordsPerPartition",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "includeHeaders",
    "failOnDataLoss",
    "readers",
    "revokeTimeoutMs",
    "maxBatchDurationMs",
    "includeRebalanceEvents",
    "checkpointLocation",
    RESTORED_CHECKPOINT,
    "groupIdPrefix",
    "shareGroup",
    *CATCH_UP_OPTIONS,
    *EVENT_TIME_OPTIONS,
)


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one stream, or of one batch read.

    ``repr()`` leaves out possible secrets.
    """

    #: Of ``subscribe``, in its order and without duplicates, or of ``assign``; None with a pattern.
    topics: tuple[str, ...] | None
    #: Anchored at both ends: Java requires a full match, kafka-python only a match from the start.
    pattern: str | None
    partitions: tuple[TopicPartition, ...] | None  #: of ``assign``
    #: Empty for a batch that names none, and before :meth:`in_group_of` with a prefix.
    group_id: str
    #: kafka-python's arguments for every connection, and those for ``KafkaConsumer`` in addition.
    client_config: Mapping[str, Any] = field(repr=False, hash=False)
    consumer_config: Mapping[str, Any] = field(repr=False, hash=False)
    #: For the executors' fetches; only the user's settings.
    fetch_config: Mapping[str, Any] = field(repr=False, hash=False)
    #: How many members the query has, unless it uses ``assign``, and at most how many tasks.
    readers: int
    starting_offsets: StartingOffsets
    ending_offsets: EndingOffsets
    #: Where a partition starts that ``starting_offsets`` leaves open.
    auto_offset_reset: Literal["earliest", "latest"]
    isolation_level: Literal["read_uncommitted", "read_committed"]
    #: A trigger waits until there is this much to read, but no longer than the delay after the last
    #: batch with records.
    min_offsets_per_trigger: int | None
    max_trigger_delay_ms: int
    max_offsets_per_trigger: int | None
    max_bytes_per_trigger: int | None  #: approximately, as the brokers store them
    min_partitions: int | None  #: tasks per batch, if there are enough offsets
    max_records_per_partition: int | None  #: offsets per task, in fact
    offset_lookup_retries: int  #: of a batch
    offset_lookup_interval_ms: int
    include_headers: bool
    include_rebalance_events: bool
    fail_on_data_loss: bool
    revoke_timeout_ms: int | None  #: None: ``kafka.max.poll.interval.ms``
    max_batch_duration_ms: int | None
    #: An absolute local path, or a URI for pyarrow that may contain keys.
    checkpoint_location: str | None = field(repr=False)
    catch_up: CatchUpOptions | None  #: set with ``parallelRebalance=live``
    event_time: EventTimeOptions | None  #: set with ``maxTaskIdleMs``, unless that is -1
    #: Follow a checkpoint that is older than this query's own commits (``restoredCheckpoint``).
    follows_checkpoint: bool
    given: frozenset[str]  #: the names of the given options, in lower case
    #: Given options that change nothing, whether a stream or a batch is read, and the reasons.
    without_effect: Mapping[str, str] = field(hash=False)
    #: Queries of one ``load()`` share the group's partitions; otherwise there may be only one.
    share_group: bool = False
    #: Each query has a group of its own, with this prefix; None if ``group_id`` was given.
    group_id_prefix: str | None = None
    #: Name of the ``load()``, the same for all its queries; empty if it has none.
    load: str = field(default="", compare=False)

    @classmethod
    def parse(cls, options: Mapping[str, str], *, default_readers: int) -> SourceOptions:
        """Parse the options, as Spark passes them: the case of a name is ignored.

        Raises OptionError if options are missing, misspelt, not supported, or have a bad value;
        names all of them.
        """
        parsed, problems = cls.examine(options, default_readers=default_readers)
        problems.raise_if_any()
        return parsed

    @classmethod
    def examine(
        cls, options: Mapping[str, str], *, default_readers: int
    ) -> tuple[SourceOptions, Problems]:
        """Parse the options, as `parse`, and return the problems too.

        In the returned options, those with a problem have some allowed value.
        """
        given = {name.lower(): value for name, value in options.items()}
        problems = Problems()
        ignored = without_effect(given, _OWN_OPTIONS, problems)
        kafka = {n.removeprefix(KAFKA): v for n, v in given.items() if n.startswith(KAFKA)}
        topics, pattern, partitions = problems.of(partial(_subscription, given), _NOWHERE)
        settings = problems.of(lambda: map_client_settings(kafka), _NO_SETTINGS)
        ignored |= {KAFKA + name: why for name, why in settings.without_effect.items()}
        if settings.group_id and "groupidprefix" in given:
            ignored["groupIdPrefix"] = "kafka.group.id names the group"

        def value(name: str, value_type: ValueType, default: Any = None) -> Any:
            text = given.get(name.lower())
            if text is None:
                return default
            return problems.of(lambda: parse_value(name, text, value_type), default)

        def subscribes(topic: str) -> bool:
            if topics is not None:
                return topic in topics
            # Without any, that is the problem, not the topics of other options.
            return pattern is None or re.match(pattern, topic) is not None

        checkpoint = given.get("checkpointlocation")
        longest = settings.consumer["max_poll_interval_ms"]
        timeout = integer(1, longest)
        timeout = ValueType(timeout.parse, f"{timeout.allowed} (kafka.max.poll.interval.ms)")
        fetch = dict(settings.fetch)
        if (patience_ms := value("kafkaConsumer.pollTimeoutMs", integer(1, LONG_MAX))) is not None:
            fetch["retry_timeout_ms"] = patience_ms
        min_offsets = value("minOffsetsPerTrigger", integer(1, LONG_MAX))
        max_offsets = value("maxOffsetsPerTrigger", integer(1, LONG_MAX))
        if min_offsets is not None and max_offsets is not None and min_offsets > max_offsets:
            allowed = f"at most maxOffsetsPerTrigger, which is {max_offsets}"
            problems.add(OptionError("minOffsetsPerTrigger", min_offsets, allowed))
        starts = problems.of(lambda: StartingOffsets.parse(given, subscribes), None)
        parsed = cls(
            topics=topics,
            pattern=pattern,
            partitions=partitions,
            group_id=settings.group_id or "",
            client_config=settings.client,
            consumer_config=settings.consumer,
            fetch_config=fetch,
            readers=value("readers", _READERS, default_readers),
            starting_offsets=starts or StartingOffsets.GROUP,
            ending_offsets=problems.of(
                lambda: EndingOffsets.parse(given, subscribes), EndingOffsets()
            ),
            auto_offset_reset=settings.consumer["auto_offset_reset"],
            isolation_level=settings.consumer["isolation_level"],
            min_offsets_per_trigger=min_offsets,
            max_trigger_delay_ms=value("maxTriggerDelay", DURATION_MS, _MAX_TRIGGER_DELAY_MS),
            max_offsets_per_trigger=max_offsets,
            max_bytes_per_trigger=value("maxBytesPerTrigger", integer(1, LONG_MAX)),
            min_partitions=value("minPartitions", integer(1, INT_MAX)),
            max_records_per_partition=value("maxRecordsPerPartition", integer(1, LONG_MAX)),
            offset_lookup_retries=value("fetchOffset.numRetries", integer(0, INT_MAX), 3),
            offset_lookup_interval_ms=value(
                "fetchOffset.retryIntervalMs", integer(0, LONG_MAX), 1_000
            ),
            include_headers=value("includeHeaders", BOOLEAN, False),
            include_rebalance_events=value("includeRebalanceEvents", BOOLEAN, False),
            fail_on_data_loss=value("failOnDataLoss", BOOLEAN, True),
            revoke_timeout_ms=value("revokeTimeoutMs", timeout),
            max_batch_duration_ms=value("maxBatchDurationMs", integer(1, LONG_MAX)),
            checkpoint_location=problems.of(
                lambda: parse_location(checkpoint) if checkpoint is not None else None, None
            ),
            catch_up=problems.of(lambda: CatchUpOptions.parse(given), None),
            event_time=problems.of(lambda: EventTimeOptions.parse(given), None),
            follows_checkpoint=value(RESTORED_CHECKPOINT, _RESTORED_CHECKPOINT, "checkpoint")
            == "checkpoint",
            given=frozenset(given),
            without_effect=ignored,
            share_group=value("shareGroup", BOOLEAN, False),
            group_id_prefix=None if settings.group_id else value("groupIdPrefix", NON_EMPTY_TEXT),
        )
        if problems and given.keys().isdisjoint(("kafka.group.id", "groupidprefix")):
            problems.add(parsed._no_group("is missing, if this is a stream"))
        return parsed, problems

    def for_stream(self) -> SourceOptions:
        """Return these options, checked for a stream.

        Raises OptionError if one needs more than a stream can do, or a required one is missing.
        """
        problems = Problems()
        if self.ending_offsets != EndingOffsets():  # latest, as a stream reads anyway
            for name in self._given_of(ENDING_OPTIONS):
                what_to_do = "leave it out, a stream has no end"
                problems.add(OptionError(name, None, what_to_do, problem="is for a batch only"))
        if self.partitions is not None:
            self._check_assigned(self.partitions, problems)
        if not self.group_id and self.group_id_prefix is None:
            problems.add(self._no_group("is missing"))
        if self.share_group and self.group_id_prefix is not None:
            reason = "it gives each query a group of its own"
            problems.add(
                OptionError("shareGroup", None, reason, problem="has no use with groupIdPrefix")
            )
        problems.raise_if_any()
        return self

    def in_group_of(self, query: str) -> SourceOptions:
        """Return these options with the group of one query: its own, with ``groupIdPrefix``.

        ``query`` is its id, which a restart finds in the checkpoint.
        """
        if self.group_id_prefix is None:
            return self
        return replace(self, group_id=f"{self.group_id_prefix}-{query}")

    def _no_group(self, problem: str) -> OptionError:
        name_it = (
            "name the consumer group of the query; queries with the same one share topics. To "
            "have each query read all records, set groupIdPrefix instead"
        )
        if without := self._given_of(("group.id",)):
            name_it += _not_counting(without)
        return OptionError("kafka.group.id", None, name_it, problem=problem)

    def _given_of(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if name.lower() in self.given]

    def _check_assigned(self, partitions: tuple[TopicPartition, ...], problems: Problems) -> None:
        """Refuse options that a stream with ``assign`` has no use for."""
        for name in self._given_of(_OF_MEMBERS):
            reason = "the query joins no group, and nothing is revoked"
            problems.add(OptionError(name, None, reason, problem="has no use with assign"))
        if unknown := self.starting_offsets.named.keys() - set(partitions):
            [name, *_] = self._given_of(_STARTING_OPTIONS)
            allowed = "partitions that assign names"
            problems.add(OptionError(name, names_of(unknown), allowed))

    def for_batch(self) -> SourceOptions:
        """Return these options, checked for a batch, which starts at earliest by default.

        Raises OptionError if one needs more than a batch can do, or a required one is missing.
        """
        problems = Problems()
        for name in self._given_of((*CATCH_UP_OPTIONS, RESTORED_CHECKPOINT, *EVENT_TIME_OPTIONS)):
            what_to_do = _NOT_IN_A_BATCH.get(name, "leave it out, a batch is read as a whole")
            problems.add(OptionError(name, None, what_to_do, problem="is for a stream only"))
        starts = self.starting_offsets
        if not self._given_of(_STARTING_OPTIONS):
            starts = StartingOffsets.EARLIEST
        if "latest" in (starts.everywhere, *starts.named.values()):
            allowed = "an offset or earliest, for a batch"
            problems.add(OptionError("startingOffsets", "latest", allowed))
        if starts == StartingOffsets.GROUP and not self.group_id:
            allowed = "the group at whose committed offsets the batch starts"
            error = OptionError("kafka.group.id", None, f"{allowed} (startingOffsets=group)")
            problems.add(error)
        problems.raise_if_any()
        return replace(self, starting_offsets=starts)

    @property
    def starting_option(self) -> str:
        """The option that names the start; of several, the one that takes precedence."""
        found = (name for name in _STARTING_OPTIONS if name.lower() in self.given)
        return next(found, "startingOffsets")

    def start_of(self, partition: TopicPartition) -> Start:
        """Return where a partition starts that neither the checkpoint nor the group knows."""
        start = self.starting_offsets.start_of(partition)
        return self.auto_offset_reset if start is None else start


#: Why a batch takes none of these, and the remedy.
_NOT_IN_A_BATCH = {
    **dict.fromkeys(CATCH_UP_OPTIONS, "leave it out, a batch has nothing to catch up on"),
    RESTORED_CHECKPOINT: "leave it out, a batch has no checkpoint",
}

#: Replaces Kafka's settings if they are wrong, so that the other options can be checked.
_NO_SETTINGS = ClientSettings(
    client={},
    consumer={
        "auto_offset_reset": "latest",
        "isolation_level": "read_uncommitted",
        "max_poll_interval_ms": INT_MAX,
    },
    fetch={},
    group_id=None,
    without_effect={},
)

_SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")

_Subscription: TypeAlias = (
    "tuple[tuple[str, ...] | None, str | None, tuple[TopicPartition, ...] | None]"
)

_NOWHERE: _Subscription = (None, None, None)


def _subscription(given: Mapping[str, str]) -> _Subscription:
    """Return topics, pattern and partitions; partitions come with their topics."""
    one = "exactly one of subscribe, subscribePattern and assign"
    named = [name for name in _SUBSCRIPTIONS if name.lower() in given]
    if not named:
        if without := [name for name in ("topic", "topics", "path") if name in given]:
            one += _not_counting(without)
        raise OptionError("subscribe", None, one)
    if len(named) > 1:
        value = given[named[-1].lower()]
        raise OptionError(named[-1], value, f"{one}; given: {' and '.join(named)}")
    text = given[named[0].lower()]
    if named[0] == "subscribe":
        return parse_value("subscribe", text, _TOPICS), None, None
    if named[0] == "subscribePattern":
        return None, _anchor(parse_value("subscribePattern", text, NON_EMPTY_TEXT)), None
    try:
        partitions = parse_partitions(text)
    except ValueError as error:
        raise OptionError("assign", text, f'JSON like {{"orders":[0,2]}} ({error})') from None
    return tuple(sorted({p.topic for p in partitions})), None, partitions


def _not_counting(names: list[str]) -> str:
    return f" ({' and '.join(names)} {'does' if len(names) == 1 else 'do'} not count)"


def _topics(text: str) -> tuple[str, ...]:
    topics = tuple(dict.fromkeys(items_of(text)))
    if not topics or not all(map(is_topic_name, topics)):
        raise ValueError
    return topics


_TOPICS = ValueType(
    _topics,
    "topic names separated by commas, each of 1 to 249 ASCII letters, digits, '.', '_' and '-'",
)


def _anchor(pattern: str) -> str:
    """Return a Java pattern as a Python pattern that matches only whole names."""
    try:
        with warnings.catch_warnings():
            # Python warns of syntax whose meaning may change one day; Java's differs already today.
            warnings.simplefilter("error")
            re.compile(pattern)
            # Flags for the whole pattern, "(?i)…", must not be inside a group.
            flags = re.match(r"\(\?([a-z]+)\)", pattern)
            group = f"(?{flags[1]}:" if flags else "(?:"
            body = pattern[flags.end() :] if flags else pattern
            # With the flag x, a comment would swallow the rest of its line.
            end = "\n)" if flags and "x" in flags[1] else ")"
            anchored = rf"{group}{body}{end}\Z"
            re.compile(anchored)
            return anchored
    except (re.error, RecursionError, OverflowError, Warning) as error:
        raise OptionError(
            "subscribePattern", pattern, f"a regular expression that Python accepts, too ({error})"
        ) from None
