"""EndingOffsets: where a batch ends, from the three options that Spark's own source has for it.

``endingTimestamp`` takes precedence over ``endingOffsetsByTimestamp``, and that over
``endingOffsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from ...errors import OptionError
from ...settings.values import parse_value
from ..offsets.partition_json import parse_numbers
from .starting_offsets import LATEST_OFFSET, TIMESTAMP_MS, AtTimestamp, timestamps

if TYPE_CHECKING:
    from kafka.structs import TopicPartition

#: The log's end, an offset (exclusive), or the first record at a time: the log's end, if none is
#: that late.
End = int | Literal["latest"] | AtTimestamp

ENDING_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_ALLOWED = 'latest, or JSON like {"orders":{"0":50,"1":-1}} with -1 for latest'


@dataclass(frozen=True, slots=True)
class EndingOffsets:
    """Where partitions end in a batch read, exclusive."""

    everywhere: End | None = "latest"  #: where those end that are not named; None: all must be
    named: Mapping[TopicPartition, End] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, given: Mapping[str, str], subscribes: Callable[[str], bool]) -> EndingOffsets:
        """Parse the ending options; see :meth:`StartingOffsets.parse`."""
        if (text := given.get("endingtimestamp")) is not None:
            return cls(AtTimestamp(parse_value("endingTimestamp", text, TIMESTAMP_MS), True))
        if (text := given.get("endingoffsetsbytimestamp")) is not None:
            times = timestamps("endingOffsetsByTimestamp", text, subscribes)
            return cls(None, {p: AtTimestamp(t, True) for p, t in times.items()})
        text = given.get("endingoffsets", "latest")
        if text.strip().lower() == "latest":
            return cls()
        try:
            offsets = parse_numbers(text, subscribes, LATEST_OFFSET, "ending offset")
        except ValueError as error:
            raise OptionError("endingOffsets", text, f"{_ALLOWED} ({error})") from None
        return cls(None, {p: "latest" if o == LATEST_OFFSET else o for p, o in offsets.items()})

    def end_of(self, partition: TopicPartition) -> End | None:
        """Return where a partition ends; None if it should have been named and is not."""
        return self.named.get(partition, self.everywhere)
