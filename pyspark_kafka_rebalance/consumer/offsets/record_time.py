"""RecordTime: a record's offset and timestamp, as brokers report it for ListOffsets. Pure."""

from __future__ import annotations

from typing import NamedTuple


class RecordTime(NamedTuple):
    """The offset and timestamp of a record in a log."""

    offset: int
    timestamp: int
