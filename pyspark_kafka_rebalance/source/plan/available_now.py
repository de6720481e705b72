"""Where a run with AvailableNow ends, and which of its records were deleted unread. Pure.

The ends are fixed when the run starts. If records are deleted before they are read, the run must
not end in silence: Spark's own source also fails if partitions or records disappear.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition


class BeyondEnd(NamedTuple):
    """A partition that ends before its position."""

    partition: TopicPartition
    position: int
    end: int


class AvailableNowRun:
    """The fixed ends of a run, and how far it and the group have read towards them.

    There is an end for every partition of the subscribed topics, other members' included.
    """

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self._ends = dict(ends)
        self._reached: dict[TopicPartition, int] = {}
        self._read_by_group: set[TopicPartition] = set()

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Where the run ends; without partitions that are deleted from Kafka."""
        return self._ends

    def cut(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return these end offsets, none beyond the run's, without partitions created later."""
        return {p: min(end, self._ends[p]) for p, end in ends.items() if p in self._ends}

    def reach(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note how far owned partitions have been handed out."""
        self._reached.update(positions)

    def unread(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Return which of these partitions are not read to their end."""
        return [p for p, at in sorted(positions.items()) if at < self._ends.get(p, at)]

    def not_at_end(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return positions not at the run's end: still to read, or past it when it was fixed."""
        return {p: at for p, at in positions.items() if at != self._ends.get(p, at)}

    def read_by_group(self, partitions: Collection[TopicPartition]) -> None:
        """Note that the group's offsets of these are at the run's end, or past it."""
        self._read_by_group.update(partitions)

    def lacks(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Return the deleted partitions that neither the run nor the group read to the end."""
        return [
            p
            for p in partitions
            if p in self._ends
            and p not in self._read_by_group
            and self._reached.get(p, 0) < self._ends[p]
        ]

    def shortened(
        self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
    ) -> list[BeyondEnd]:
        """Return partitions whose log ends before the run does: some records no longer exist."""
        return [
            BeyondEnd(p, positions[p], ends[p])
            for p in self.unread(positions)
            if p in ends and ends[p] < self._ends[p]
        ]

    def left_behind(self, owned: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return how far the run read partitions that it no longer owns and did not finish."""
        reached = {p: at for p, at in self._reached.items() if p not in owned}
        return {p: reached[p] for p in self.unread(reached)}

    def reached(self, partition: TopicPartition) -> int | None:
        """How far a partition has been handed out; None if it was never ours."""
        return self._reached.get(partition)

    def give_up(self, ends: Mapping[TopicPartition, int]) -> None:
        """End earlier in these partitions, since the remaining records no longer exist."""
        self._ends.update(ends)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget these partitions: Kafka has deleted them."""
        for partition in partitions:
            self._ends.pop(partition, None)
