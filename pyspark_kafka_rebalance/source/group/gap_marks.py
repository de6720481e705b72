"""GapMarks: what is to be caught up of each partition below its live position (KIP-333). Pure.

    unread    no batch reads it
    unproven  Spark has not committed a batch that reads it

The first is a part of the second. What is unproven is what the group is still owed: the committed
offset is its lowest one. Most partitions have none, and cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from ...consumer.gaps import Gap, joined, without
from ...fetch.offset_range import OffsetRange


class GapMarks:
    """Those of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._unread: dict[TopicPartition, list[Gap]] = {}
        self._unproven: dict[TopicPartition, list[Gap]] = {}

    def set_aside(self, partition: TopicPartition, gaps: Iterable[Gap]) -> None:
        """The live position goes on behind these, which nobody has read."""
        for marks in (self._unread, self._unproven):
            pieces = list(joined(sorted([*marks.get(partition, ()), *gaps])))
            if pieces:
                marks[partition] = pieces

    def hand_out(self, ranges: Mapping[TopicPartition, Sequence[OffsetRange]]) -> None:
        """A batch reads these."""
        _take(self._unread, ranges)

    def prove(self, ranges: Mapping[TopicPartition, Sequence[OffsetRange]]) -> None:
        """Spark has committed the batch that reads these."""
        _take(self._unproven, ranges)

    def forget(self, partition: TopicPartition) -> None:
        """Of a log that is no more, or is read anew."""
        for marks in (self._unread, self._unproven):
            marks.pop(partition, None)

    def unread(self, partition: TopicPartition) -> Sequence[Gap]:
        """What is to be read, in order."""
        return self._unread.get(partition, ())

    def are_unread(self, partition: TopicPartition, pieces: Iterable[OffsetRange]) -> bool:
        """Whether each of these lies in what is to be read."""
        gaps = self._unread.get(partition, [])
        return all(
            any(gap.start <= piece.start and piece.end <= gap.end for gap in gaps)
            for piece in pieces
        )

    def unproven(self, partition: TopicPartition) -> Sequence[Gap]:
        """What the group is still owed, in order."""
        return self._unproven.get(partition, ())

    def committed(self, partition: TopicPartition, live: int) -> int:
        """The offset to commit, exclusive, where the live part is proven up to there."""
        gaps = self._unproven.get(partition)
        return min(gaps[0].start, live) if gaps else live


def _take(
    marks: dict[TopicPartition, list[Gap]],
    ranges: Mapping[TopicPartition, Sequence[OffsetRange]],
) -> None:
    for partition, pieces in ranges.items():
        left = marks.get(partition, [])
        for piece in pieces:
            left = without(left, piece.start, piece.end)
        if left:
            marks[partition] = left
        else:
            marks.pop(partition, None)
