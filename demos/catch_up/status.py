"""A query's progress: the batches it has reported, and the gaps in its checkpoint."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.source.checkpoint.offset_log import parse_offset_log
from pyspark_kafka_rebalance.source.offsets.offset_json import is_own, parse_offset

#: The live table's rates are means over this long.
_RATE_OVER_S = 3.0


@dataclass(frozen=True)
class QueryStatus:
    """The current status of one query.

    Attributes
    ----------
    age_s : float or None
        The age of the newest row delivered.
    backlog : int
        Records produced but not delivered.
    gaps, in_gaps : int
        The number of gaps that its last batch leaves, and of the offsets in them.
    """

    query: str
    state: str
    age_s: float | None
    rows_per_second: float
    backlog: int
    gaps: int
    in_gaps: int


class Delivered:
    """The batches a query has reported; a batch that is rerun keeps its number."""

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._recent: deque[tuple[float, int]] = deque()
        self.newest: float | None = None
        self.last_at = 0.0

    def add(self, batch: Mapping[str, Any]) -> None:
        """Add the event of a completed batch."""
        self._rows[batch["batch"]] = batch["rows"]
        self._recent.append((batch["at"], batch["rows"]))
        if batch["newest"] is not None:
            self.newest = max(batch["newest"], self.newest or 0.0)
            self.last_at = batch["at"]

    @property
    def total(self) -> int:
        """All rows delivered; a rerun batch is counted once."""
        return sum(self._rows.values())

    def rows_per_second(self, now: float) -> float:
        """The mean rate over the last seconds."""
        while self._recent and self._recent[0][0] < now - _RATE_OVER_S:
            self._recent.popleft()
        return sum(rows for _, rows in self._recent) / _RATE_OVER_S


def left_in_gaps(checkpoint: Path) -> list[int]:
    """The number of offsets in each gap that the query's last planned batch leaves."""
    offsets = checkpoint / "offsets"
    try:
        last = max(int(file.name) for file in offsets.iterdir() if file.name.isdigit())
        ((_, offset),) = parse_offset_log((offsets / str(last)).read_text())
    except (FileNotFoundError, ValueError):
        return []  # no batch yet
    if not is_own(offset):
        return []
    of_all = parse_offset(offset).gaps.values()
    return [gap.end - gap.start for gaps in of_all for gap in gaps]
