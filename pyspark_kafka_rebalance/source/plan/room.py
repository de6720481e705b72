"""Room: how full a batch up to some timestamp is, and how much more fits into it. Pure.

Used by ``event_time`` alone. How the limits are shared among partitions is in ``partition_shares``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from ..spark.read_limits import ReadMaxRows
from .batch_planner import NO_LIMIT, Draft
from .partition_shares import plan_batch


@dataclass(frozen=True, slots=True)
class Room:
    """The room in one batch that starts at these positions."""

    positions: Mapping[TopicPartition, int]
    max_rows: int | None
    max_bytes: int | None
    bytes_per_offset: Mapping[TopicPartition, float]

    @classmethod
    def of(cls, draft: Draft) -> Room:
        """Return the room in a draft."""
        limit = draft.limit
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else NO_LIMIT
        max_rows = None if rows == NO_LIMIT else rows
        return cls(draft.positions, max_rows, draft.max_bytes, draft.bytes_per_offset)

    def load(self, ends: Mapping[TopicPartition, int]) -> float:
        """Return the load of a batch up to these ends, as a share of what fits: at most 1 fits."""
        rows, size = self._taken(ends)
        by_rows = rows / self.max_rows if self.max_rows is not None else 0.0
        by_bytes = size / self.max_bytes if self.max_bytes is not None else 0.0
        return max(by_rows, by_bytes)

    def share(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return up to where a batch reads if it is shared without an order."""
        ranges = plan_batch(
            self.positions, ends, self.max_rows, self.max_bytes, self.bytes_per_offset
        )
        return {p: handed.end for p, handed in ranges.items()}

    def less(self, ends: Mapping[TopicPartition, int]) -> Room:
        """Return the room that is left after these; never none."""
        rows, size = self._taken(ends)
        return replace(
            self,
            max_rows=None if self.max_rows is None else max(1, self.max_rows - rows),
            max_bytes=None if self.max_bytes is None else max(1, self.max_bytes - int(size)),
        )

    def fill(
        self, ends: Mapping[TopicPartition, int], more: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return these ends, moved towards the others as far as there is room."""
        rest = replace(self.less(ends), positions=ends)
        filled = {**ends, **rest.share(more)}
        return filled if self.load(filled) <= 1 else ends

    def _taken(self, ends: Mapping[TopicPartition, int]) -> tuple[int, float]:
        positions = self.positions
        if self.max_bytes is None:
            return sum(ends.values()) - sum(map(positions.__getitem__, ends)), 0.0
        each = self.bytes_per_offset
        taken = {p: end - positions[p] for p, end in ends.items()}
        size = sum(count * each.get(p, 0.0) for p, count in taken.items())
        return sum(taken.values()), size
