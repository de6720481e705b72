"""GapMarks: what each partition still has to catch up below its live position (KIP-333). Pure.

    unread    no batch reads it
    unproven  Spark has not committed a batch that reads it

Unread gaps are a part of the unproven ones. The unproven gaps are what the group is still owed: the
committed offset is their lowest one. Most partitions have none, and cost nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from ....consumer.offsets.offset_set import Gap, holding, joined, less, without
from ....fetch.offset_range import OffsetRange


class GapMarks:
    """The gaps of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._unread: dict[TopicPartition, list[Gap]] = {}
        self._unproven: dict[TopicPartition, list[Gap]] = {}
        self._unlogged = False  # they have changed since the last offset, other than by a batch

    def begin(
        self, partition: TopicPartition, unread: Sequence[Gap], unproven: Sequence[Gap]
    ) -> None:
        """Set what lies below the live position, replacing what was there; each in order."""
        before = self.unread(partition), self.unproven(partition)
        self.restore(partition, unread, unproven)
        self._unlogged |= before != (self.unread(partition), self.unproven(partition))

    def restore(
        self, partition: TopicPartition, unread: Sequence[Gap], unproven: Sequence[Gap]
    ) -> None:
        """As :meth:`begin`, from an offset of Spark's log."""
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
        """The records below this offset are gone from Kafka, so drop the gaps there."""
        gone = without(self.unread(partition), end)
        self._unlogged |= bool(gone)
        for marks in (self._unread, self._unproven):
            _take(marks, {partition: gone})

    def forget(self, partition: TopicPartition) -> None:
        """Drop all gaps: the log is gone or is read anew, or nothing is left of them."""
        self._unlogged |= partition in self._unread or partition in self._unproven
        for marks in (self._unread, self._unproven):
            marks.pop(partition, None)

    def logged(self) -> None:
        """The offset that is being made contains the current gaps."""
        self._unlogged = False

    def are_unlogged(self) -> bool:
        """Whether the gaps differ from the last offset's for another reason than a batch."""
        return self._unlogged

    def any(self) -> bool:
        """Whether any partition has an unproven gap."""
        return bool(self._unproven)

    def all_unread(self) -> Mapping[TopicPartition, Sequence[Gap]]:
        """The unread gaps of each partition that has any, in order; not to be changed."""
        return self._unread

    def all_unproven(self) -> Mapping[TopicPartition, Sequence[Gap]]:
        """The unproven gaps of each partition that has any, in order; not to be changed."""
        return self._unproven

    def under_way(self, partition: TopicPartition) -> list[Gap]:
        """The gaps that unproven batches read."""
        return less(self.unproven(partition), self.unread(partition))

    def unread(self, partition: TopicPartition) -> Sequence[Gap]:
        """The partition's unread gaps, in order."""
        return self._unread.get(partition, ())

    def are_unread(self, partition: TopicPartition, pieces: Iterable[OffsetRange]) -> bool:
        """Whether each of these pieces lies in an unread gap."""
        found = ((holding(self.unread(partition), piece.start), piece) for piece in pieces)
        return all(gap is not None and piece.end <= gap.end for gap, piece in found)

    def unproven(self, partition: TopicPartition) -> Sequence[Gap]:
        """The partition's unproven gaps, in order."""
        return self._unproven.get(partition, ())

    def committed(self, partition: TopicPartition, live: int) -> int:
        """The offset to commit, exclusive, if the live part is proven up to ``live``."""
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
