"""AvailableNowRun: until where a run with AvailableNow reads, and what of that is gone. Pure.

The ends are fixed when the run begins. What is gone before it was read is no reason to end in
silence: Spark's own source fails as well when partitions or records disappear meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from kafka.structs import TopicPartition

from .data_loss import BeyondEnd


class AvailableNowRun:
    """One run.

    Parameters
    ----------
    ends : Mapping[TopicPartition, int]
        End offsets of all partitions of the subscribed topics, whoever owns them.
    """

    def __init__(self, ends: Mapping[TopicPartition, int]) -> None:
        self._ends = dict(ends)
        self._reached: dict[TopicPartition, int] = {}
        self._read_by_group: set[TopicPartition] = set()

    @property
    def ends(self) -> Mapping[TopicPartition, int]:
        """Where the run ends; what is gone from Kafka has no end any more."""
        return self._ends

    def cut(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """These end offsets, none beyond the run's; without partitions created since."""
        return {p: min(end, self._ends[p]) for p, end in ends.items() if p in self._ends}

    def reach(self, positions: Mapping[TopicPartition, int]) -> None:
        """Note how far partitions have been handed out that are owned."""
        self._reached.update(positions)

    def unread(self, positions: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Of these, the partitions that are not read to their end."""
        return [p for p, at in sorted(positions.items()) if at < self._ends.get(p, at)]

    def not_at_end(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Of these, what the run reads, and what was past its end when it was fixed."""
        return {p: at for p, at in positions.items() if at != self._ends.get(p, at)}

    def read_by_group(self, partitions: Collection[TopicPartition]) -> None:
        """The group's offsets of these are at the run's end, or past it."""
        self._read_by_group.update(partitions)

    def lacks(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Of these, which are gone, what neither the run nor the group has read to the end."""
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
        """Partitions that end before the run does: some of what it was to read is gone."""
        return [
            BeyondEnd(p, positions[p], ends[p])
            for p in self.unread(positions)
            if p in ends and ends[p] < self._ends[p]
        ]

    def left_behind(self, owned: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Partitions that were owned in this run, are not any more, and how far they were read."""
        reached = {p: at for p, at in self._reached.items() if p not in owned}
        return {p: reached[p] for p in self.unread(reached)}

    def reached(self, partition: TopicPartition) -> int | None:
        """How far a partition has been handed out; None if it never was ours."""
        return self._reached.get(partition)

    def give_up(self, ends: Mapping[TopicPartition, int]) -> None:
        """End earlier there, since the rest is gone."""
        self._ends.update(ends)

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Do without these: they are gone from Kafka."""
        for partition in partitions:
            self._ends.pop(partition, None)
