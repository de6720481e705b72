"""EventTimeOptions: ``maxTaskIdleMs`` and ``maxTimestampDrift`` (KIP-695)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...errors import OptionError
from ...settings.values import DURATION_MS, LONG_MAX, ValueType, integer, parse_value

_IDLE_MS = "maxTaskIdleMs"
_DRIFT = "maxTimestampDrift"

#: Both, for streams only.
EVENT_TIME_OPTIONS = (_IDLE_MS, _DRIFT)

_OFF = -1
_IDLE = ValueType(integer(_OFF, LONG_MAX).parse, f"-1, or a whole number from 0 to {LONG_MAX}")


@dataclass(frozen=True, slots=True)
class EventTimeOptions:
    """How a query reads its partitions in the order of their records' timestamps."""

    #: How long a partition without records holds the others back, counted from the broker's answer
    #: that it has none. 0: no longer than until that answer.
    max_idle_ms: int
    #: How far a batch may read past the lowest timestamp that it leaves unread.
    max_drift_ms: int = 0

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> EventTimeOptions | None:
        """Parse the options, keyed by lower-case name; None if timestamps do not order the reads.

        Raises OptionError if a value is bad, or a drift is given without ``maxTaskIdleMs``.
        """
        max_idle_ms = parse_value(_IDLE_MS, given.get(_IDLE_MS.lower(), str(_OFF)), _IDLE)
        drift = given.get(_DRIFT.lower())
        if max_idle_ms == _OFF:
            if drift is not None:
                raise OptionError(_DRIFT, drift, f"no value, unless {_IDLE_MS} is 0 or more")
            return None
        return cls(max_idle_ms, 0 if drift is None else parse_value(_DRIFT, drift, DURATION_MS))
