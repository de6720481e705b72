"""StartingOffsets: where a query starts that has no checkpoint, as ``startingOffsets`` says."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from kafka.structs import TopicPartition

from ..errors import OptionError
from .values import INT_MAX, LONG_MAX

#: Either end of a partition, or an offset.
Start = int | Literal["earliest", "latest"]

#: What Spark and Kafka write for them in ``{"topic":{"0":-2}}``.
LATEST_OFFSET, EARLIEST_OFFSET = -1, -2

_SIGNS: dict[int, Start] = {LATEST_OFFSET: "latest", EARLIEST_OFFSET: "earliest"}
_ALLOWED = (
    'group, earliest, latest, or JSON like {"orders":{"0":23,"1":-2}}'
    " with -1 for latest and -2 for earliest"
)


@dataclass(frozen=True, slots=True)
class StartingOffsets:
    """Where partitions start when the query's checkpoint does not say.

    Attributes
    ----------
    where : {"group", "earliest", "latest", "offsets"}
        ``group`` and ``offsets`` leave open where some partitions start: those for which the
        group has no committed offset, or which the JSON does not name, among them partitions that
        are created later. They start as ``kafka.auto.offset.reset`` says. (Spark's own source
        wants the JSON to name every partition, which a member that gets some of them cannot.)
    offsets : Mapping[TopicPartition, int]
        For ``offsets``: what the JSON says, -1 and -2 as they are.
    """

    where: Literal["group", "earliest", "latest", "offsets"]
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)

    GROUP: ClassVar[StartingOffsets]
    EARLIEST: ClassVar[StartingOffsets]
    LATEST: ClassVar[StartingOffsets]

    @classmethod
    def parse(cls, text: str, subscribes: Callable[[str], bool]) -> StartingOffsets:
        """Parse the value of ``startingOffsets``.

        Parameters
        ----------
        text : str
            The option's value.
        subscribes : Callable[[str], bool]
            Whether the query subscribes to a topic of this name.

        Raises
        ------
        OptionError
            Anything but what is allowed; the text names the first thing that is wrong.
        """
        # Spark, too, ignores the case here.
        word = text.strip().lower()
        if word in _WORDS:
            return _WORDS[word]
        try:
            return cls("offsets", _offsets(text, subscribes))
        except ValueError as error:
            problem = f" ({error})" if str(error) else ""
            raise OptionError("startingOffsets", text, f"{_ALLOWED}{problem}") from None

    def start_of(self, topic: str, partition: int) -> Start | None:
        """Return where a partition starts, None when this leaves it open."""
        if self.where == "earliest" or self.where == "latest":
            return self.where
        offset = self.offsets.get(TopicPartition(topic, partition))
        return None if offset is None else _SIGNS.get(offset, offset)


StartingOffsets.GROUP = StartingOffsets("group")
StartingOffsets.EARLIEST = StartingOffsets("earliest")
StartingOffsets.LATEST = StartingOffsets("latest")

_WORDS: dict[str, StartingOffsets] = {
    "group": StartingOffsets.GROUP,
    "earliest": StartingOffsets.EARLIEST,
    "latest": StartingOffsets.LATEST,
}


def _offsets(text: str, subscribes: Callable[[str], bool]) -> dict[TopicPartition, int]:
    topics = _parse_json(text)
    if not isinstance(topics, dict) or not topics:
        raise ValueError("not an object that maps topics to partitions")
    offsets = {}
    for topic, partitions in topics.items():
        if not isinstance(partitions, dict) or not partitions:
            raise ValueError(f"topic {topic!r} does not map partitions to offsets")
        if not subscribes(topic):
            raise ValueError(f"topic {topic!r} is not subscribed to")
        for partition, offset in partitions.items():
            if not re.fullmatch("0|[1-9][0-9]{0,9}", partition) or int(partition) > INT_MAX:
                raise ValueError(f"topic {topic!r}: {partition!r} is no partition number")
            # A bool is an int in Python, but not in JSON.
            if type(offset) is not int or not EARLIEST_OFFSET <= offset <= LONG_MAX:
                raise ValueError(f"partition {topic}-{partition}: {offset!r} is no offset")
            offsets[TopicPartition(topic, int(partition))] = offset
    return offsets


def _parse_json(text: str) -> Any:
    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        # json alone keeps the last of two, and the user never learns of the other.
        unique: dict[str, Any] = {}
        for name, value in pairs:
            if name in unique:
                raise ValueError(f"{name!r} occurs twice")
            unique[name] = value
        return unique

    try:
        return json.loads(text, object_pairs_hook=without_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from None
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
