"""RecordTime: a record of a log, as brokers tell it when they are asked by timestamps. Pure."""

from __future__ import annotations

from typing import NamedTuple


class RecordTime(NamedTuple):
    """A record of a log."""

    offset: int
    timestamp: int
