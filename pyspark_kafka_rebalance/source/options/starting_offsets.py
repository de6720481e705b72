"""StartingOffsets: where partitions start, from the three options that Spark's source has for it.

``startingTimestamp`` takes precedence over ``startingOffsetsByTimestamp``, and that over
``startingOffsets``, as in Spark's source.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

from ...errors import KafkaRebalanceError, OptionError
from ...settings.problems import Problems
from ...settings.values import LONG_MAX, integer, one_of, parse_value
from ..offsets.partition_json import parse_numbers

if TYPE_CHECKING:
    from kafka.structs import TopicPartition


@dataclass(frozen=True, slots=True)
class AtTimestamp:
    """The first offset whose record has this timestamp or a later one."""

    timestamp_ms: int  #: since 1970
    or_latest: bool  #: use the log's end if there is no such record; otherwise that is an error

    def no_record(self, partition: TopicPartition) -> KafkaRebalanceError:
        """Return the error for a partition that has no such record."""
        return KafkaRebalanceError(
            f"{partition.topic}-{partition.partition} has no record with timestamp "
            f"{self.timestamp_ms} or later; to start at its end instead, set "
            "startingOffsetsByTimestampStrategy=latest"
        )


#: Either end of a partition's log, an offset, or the first record at a time.
Start = int | Literal["earliest", "latest"] | AtTimestamp

#: How Spark and Kafka write latest and earliest in ``{"topic":{"0":-2}}``.
LATEST_OFFSET, EARLIEST_OFFSET = -1, -2

#: A timestamp option's value.
TIMESTAMP_MS = integer(0, LONG_MAX)

_SIGNS: dict[int, Start] = {LATEST_OFFSET: "latest", EARLIEST_OFFSET: "earliest"}
_ALLOWED = (
    'group, earliest, latest, or JSON like {"orders":{"0":23,"1":-2}}'
    " with -1 for latest and -2 for earliest"
)
_TIMESTAMPS = 'JSON like {"orders":{"0":1700000000000}}, in milliseconds since 1970'
_STRATEGIES = one_of("error", "latest", ignore_case=True)


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where partitions start if the query's checkpoint does not say."""

    #: Where partitions start that are not named. None leaves it open: they start at the group's
    #: committed offset, or else as ``kafka.auto.offset.reset`` says.
    everywhere: Start | None = None
    #: Spark's own source requires the JSON to name every partition. A member gets only some of
    #: them, so it cannot; a batch requires it here, too.
    named: Mapping[TopicPartition, Start] = field(default_factory=dict, hash=False)

    GROUP: ClassVar[StartingOffsets]
    EARLIEST: ClassVar[StartingOffsets]
    LATEST: ClassVar[StartingOffsets]

    @classmethod
    def parse(
        cls, given: Mapping[str, str], subscribes: Callable[[str], bool]
    ) -> StartingOffsets | None:
        """Parse the starting options, by lower-case name; None if none says where to start.

        Raises OptionError if a value is not allowed, of the strategy or of where to start, or of
        both.
        """
        problems = Problems()
        name = "startingOffsetsByTimestampStrategy"
        text = given.get(name.lower(), "error")
        strategy = problems.of(lambda: parse_value(name, text, _STRATEGIES), "error")
        start = problems.of(lambda: cls._parse_start(given, subscribes, strategy), None)
        problems.raise_if_any()
        return start

    @classmethod
    def _parse_start(
        cls, given: Mapping[str, str], subscribes: Callable[[str], bool], strategy: str
    ) -> StartingOffsets | None:
        if (text := given.get("startingtimestamp")) is not None:
            timestamp_ms = parse_value("startingTimestamp", text, TIMESTAMP_MS)
            return cls(AtTimestamp(timestamp_ms, strategy == "latest"))
        if (text := given.get("startingoffsetsbytimestamp")) is not None:
            name = "startingOffsetsByTimestamp"
            times = timestamps(name, text, subscribes)
            return cls(named={p: AtTimestamp(t, strategy == "latest") for p, t in times.items()})
        if (text := given.get("startingoffsets")) is not None:
            return cls._parse_offsets(text, subscribes)
        return None

    @classmethod
    def _parse_offsets(cls, text: str, subscribes: Callable[[str], bool]) -> StartingOffsets:
        # Spark ignores the case here, too.
        word = text.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        try:
            offsets = parse_numbers(text, subscribes, EARLIEST_OFFSET, "offset")
        except ValueError as error:
            raise OptionError("startingOffsets", text, f"{_ALLOWED} ({error})") from None
        return cls(named={p: _SIGNS.get(offset, offset) for p, offset in offsets.items()})

    def start_of(self, partition: TopicPartition) -> Start | None:
        """Return where a partition starts; None if this leaves it open."""
        return self.named.get(partition, self.everywhere)


StartingOffsets.GROUP = StartingOffsets()
StartingOffsets.EARLIEST = StartingOffsets("earliest")
StartingOffsets.LATEST = StartingOffsets("latest")

_WORDS: dict[str, StartingOffsets] = {
    "group": StartingOffsets.GROUP,
    "earliest": StartingOffsets.EARLIEST,
    "latest": StartingOffsets.LATEST,
}


def timestamps(
    name: str, text: str, subscribes: Callable[[str], bool]
) -> dict[TopicPartition, int]:
    """Parse a timestamp for each partition, in ms since 1970; OptionError names the option."""
    try:
        return parse_numbers(text, subscribes, 0, "timestamp")
    except ValueError as error:
        raise OptionError(name, text, f"{_TIMESTAMPS} ({error})") from None
