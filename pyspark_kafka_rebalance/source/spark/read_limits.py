"""ReadLimit and its kinds, for every supported version of Spark: 4.2 and later have them.

Spark 4.0 and 4.1 pass no limit to a reader, so theirs are made here (SPARK-55304).
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

#: Whether Spark passes the reader its position, how much it wants, and when it is AvailableNow.
HAS_ADMISSION_CONTROL = find_spec("pyspark.sql.streaming.datasource") is not None

if TYPE_CHECKING or HAS_ADMISSION_CONTROL:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """How much Spark wants in a batch."""

    @dataclass
    class ReadAllAvailable(ReadLimit):
        """All there is."""

    @dataclass
    class ReadMaxRows(ReadLimit):
        """At most this many rows."""

        max_rows: int

    class SupportsTriggerAvailableNow:
        """Marks a reader that Spark may ask to fix the end of a run."""


__all__ = [
    "HAS_ADMISSION_CONTROL",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
]
