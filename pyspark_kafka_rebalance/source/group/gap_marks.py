"""GapMarks: what is to be caught up of each partition below its live position (KIP-333). Pure.

    unread    no batch reads it
    unproven  Spark has not committed a batch that reads it

The first is a part of the second. What is unproven is what the group is still owed: the committed
offset is its lowest one. Most partitions have none, and cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from ...consumer.gaps import Gap, holding, joined, less, without
from ...fetch.offset_range import OffsetRange


class GapMarks:
    """Those of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._unread: dict[TopicPartition, list[Gap]] = {}
        self._unproven: dict[TopicPartition, list[Gap]] = {}
        self._unlogged = False  # without a batch they have changed since the last offset

    def begin(
        self, partition: TopicPartition, unread: Sequence[Gap], unproven: Sequence[Gap]
    ) -> None:
        """This is what lies below the live position, whatever was there before; each in order."""
        before = self.unread(partition), self.unproven(partition)
        self.restore(partition, unread, unproven)
        self._unlogged |= before != (self.unread(partition), self.unproven(partition))

    def restore(
        self, partition: TopicPartition, unread: Sequence[Gap], unproven: Sequence[Gap]
    ) -> None:
        """As :meth:`begin`, by an offset of Spark's log."""
        for marks, pieces in ((self._unread, unread), (self._unproven, unproven)):
            if pieces:
                marks[partition] = list(joined(pieces))
            else:
                marks.pop(partition, None)

    def hand_out(self, ranges: Mapping[TopicPartition, Sequence[OffsetRange]]) -> None:
        """A batch reads these."""
        _take(self._unread, ranges)

    def prove(self, ranges: Mapping[TopicPartition, Sequence[OffsetRange]]) -> None:
        """Spark has committed the batch that reads these."""
        _take(self._unproven, ranges)

    def lose(self, partition: TopicPartition, end: int) -> None:
        """The records below this offset are gone from Kafka: of them, nothing is left to read."""
        gone = without(self.unread(partition), end)
        self._unlogged |= bool(gone)
        for marks in (self._unread, self._unproven):
            _take(marks, {partition: gone})

    def forget(self, partition: TopicPartition) -> None:
        """Of a log that is no more, or is read anew; or none is left."""
        self._unlogged |= partition in self._unread or partition in self._unproven
        for marks in (self._unread, self._unproven):
            marks.pop(partition, None)

    def logged(self) -> None:
        """The offset that is being made has them."""
        self._unlogged = False

    def are_unlogged(self) -> bool:
        """Whether the last offset has other ones, though no batch has read any since."""
        return self._unlogged

    def any(self) -> bool:
        """Whether the group is owed any of any partition."""
        return bool(self._unproven)

    def all_unread(self) -> Mapping[TopicPartition, Sequence[Gap]]:
        """What is to be read of each partition that has any, in order; not to be changed."""
        return self._unread

    def all_unproven(self) -> Mapping[TopicPartition, Sequence[Gap]]:
        """What the group is owed of each partition of which it is owed any; not to be changed."""
        return self._unproven

    def under_way(self, partition: TopicPartition) -> list[Gap]:
        """What batches read that are not proven."""
        return less(self.unproven(partition), self.unread(partition))

    def unread(self, partition: TopicPartition) -> Sequence[Gap]:
        """What is to be read, in order."""
        return self._unread.get(partition, ())

    def are_unread(self, partition: TopicPartition, pieces: Iterable[OffsetRange]) -> bool:
        """Whether each of these lies in what is to be read."""
        found = ((holding(self.unread(partition), piece.start), piece) for piece in pieces)
        return all(gap is not None and piece.end <= gap.end for gap, piece in found)

    def unproven(self, partition: TopicPartition) -> Sequence[Gap]:
        """What the group is still owed, in order."""
        return self._unproven.get(partition, ())

    def committed(self, partition: TopicPartition, live: int) -> int:
        """The offset to commit, exclusive, where the live part is proven up to there."""
        gaps = self._unproven.get(partition)
        return min(gaps[0].start, live) if gaps else live


def _take(
    marks: dict[TopicPartition, list[Gap]],
    ranges: Mapping[TopicPartition, Sequence[OffsetRange | Gap]],
) -> None:
    for partition, pieces in ranges.items():
        taken = sorted(Gap(piece.start, piece.end) for piece in pieces)
        left = less(marks.get(partition, []), taken)
        if left:
            marks[partition] = left
        else:
            marks.pop(partition, None)
