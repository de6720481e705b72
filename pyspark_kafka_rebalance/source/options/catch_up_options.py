"""CatchUpOptions: ``parallelRebalance=live`` and the options that go with it (KIP-333)."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from ...errors import OptionError
from ...settings.values import DURATION_MS, LONG_MAX, ValueType, integer, one_of, parse_value

MODE = "parallelRebalance"

_THRESHOLD = "catchUpThreshold"
_BATCH_MS = "catchUpBatchMs"
_MAX_OFFSETS = "maxCatchUpOffsetsPerTrigger"

#: All of them, for streams only.
CATCH_UP_OPTIONS = (MODE, _THRESHOLD, _BATCH_MS, _MAX_OFFSETS)

_ORDERED, _LIVE = "ordered", "live"

_OFFSETS = integer(0, LONG_MAX)


@dataclass(frozen=True, slots=True)
class Threshold:
    """How far behind a partition may start and still be read in order; one of the two is set."""

    offsets: int | None = None  #: from its position to the end of its log
    age_ms: int | None = None  #: of its next record

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """Parse a number of offsets or a duration; ValueError if the text is neither."""
        try:
            return cls(offsets=_OFFSETS.parse(text))
        except ValueError:
            return cls(age_ms=DURATION_MS.parse(text))

    def is_exceeded(self, position: int, end: int, old_at: Container[int] = ()) -> bool:
        """Whether the partition is further behind than this.

        With ``age_ms``, the next records of the positions in ``old_at`` are older.
        """
        if position >= end:
            return False
        if self.offsets is not None:
            return end - position > self.offsets
        return position in old_at


@dataclass(frozen=True, slots=True)
class CatchUpOptions:
    """How a query reads the backlog that its partitions start with."""

    #: The backlog of a partition further behind than this is set aside, and caught up alongside
    #: the live records.
    threshold: Threshold = Threshold(offsets=10_000)
    batch_ms: int = 1_000  #: target duration of a batch while catching up, unless the next is set
    max_offsets_per_trigger: int | None = None  #: to catch up in each batch

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> CatchUpOptions | None:
        """Parse the options, keyed by lower-case name; None without ``live``.

        Raises OptionError if a value is bad, or an option is given that only ``live`` uses.
        """
        mode = parse_value(MODE, given.get(MODE.lower(), _ORDERED), one_of(_ORDERED, _LIVE))
        if mode != _LIVE:
            for name in CATCH_UP_OPTIONS:
                if name != MODE and name.lower() in given:
                    allowed = f"no value, unless {MODE}={_LIVE}"
                    raise OptionError(name, given[name.lower()], allowed)
            return None
        found = {
            field: parse_value(name, given[name.lower()], value_type)
            for name, (field, value_type) in _VALUES.items()
            if name.lower() in given
        }
        return cls(**found)


_VALUES = {
    _THRESHOLD: (
        "threshold",
        ValueType(Threshold.parse, f"{_OFFSETS.allowed}, or {DURATION_MS.allowed}"),
    ),
    _BATCH_MS: ("batch_ms", integer(1, LONG_MAX)),
    _MAX_OFFSETS: ("max_offsets_per_trigger", integer(1, LONG_MAX)),
}
