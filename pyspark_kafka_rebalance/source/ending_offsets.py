"""EndingOffsets: where a batch ends, as the three options of Spark's source say it.

``endingTimestamp`` comes before ``endingOffsetsByTimestamp``, and that before ``endingOffsets``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from kafka.structs import TopicPartition

from ..errors import OptionError
from ..settings.values import parse_value
from .partition_json import parse_numbers
from .starting_offsets import LATEST_OFFSET, TIMESTAMP_MS, AtTimestamp, timestamps

#: All there is, an offset (exclusive), or what stood at a time: the end, if nothing stood there.
End = int | Literal["latest"] | AtTimestamp

ENDING_OPTIONS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

_ALLOWED = 'latest, or JSON like {"orders":{"0":50,"1":-1}} with -1 for latest'


@dataclass(frozen=True, slots=True)
class EndingOffsets:
    """Where partitions end in a batch read, exclusive.

    Attributes
    ----------
    everywhere : End or None
        Where every partition ends that is not named; None when all have to be named.
    named : Mapping[TopicPartition, End]
        Where those end that JSON names.
    """

    everywhere: End | None = "latest"
    named: Mapping[TopicPartition, End] = field(default_factory=dict, hash=False)

    @classmethod
    def parse(cls, given: Mapping[str, str], subscribes: Callable[[str], bool]) -> EndingOffsets:
        """Parse the options that say it; see :meth:`StartingOffsets.parse`.

        Raises
        ------
        OptionError
            Anything but what is allowed.
        """
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
        """Return where a partition ends, None when it should have been named and is not."""
        return self.named.get(partition, self.everywhere)
