"""Marks: how far each partition of a query has been read. Pure.

    handed out    some batch's range ends here
    proven        Spark has committed that batch, and has logged where it ends
    acknowledged  the group has accepted the commit

Each is at or behind the one before. They are kept when a partition leaves, since it may come back.

``Marks`` has these three for each live position, ``GapMarks`` the gaps below it, and
``OwedCommits`` the commits that the group still lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping, Sequence

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....consumer.offsets.offset_set import Gap, holding, joined, less, without
from ....fetch.offset_range import OffsetRange
from ....settings.values import LONG_MAX
from ..batches.batch import Batch
from ..batches.open_batches import OpenBatches
from .owned_partitions import OwnedPartitions


class GapMarks:
    """The gaps that each partition still has to catch up below its live position (KIP-333).

        unread    no batch reads it
        unproven  Spark has not committed a batch that reads it

    Unread gaps are part of the unproven ones. The group is still owed the unproven gaps: the
    committed offset is their lowest one. Most partitions have none, and cost nothing here.
    """

    def __init__(self) -> None:
        self._unread: dict[TopicPartition, list[Gap]] = {}
        self._unproven: dict[TopicPartition, list[Gap]] = {}
        self._unlogged = False  # they have changed since the last offset, other than by a batch

    def begin(
        self, partition: TopicPartition, unread: Sequence[Gap], unproven: Sequence[Gap]
    ) -> None:
        """Set the gaps below the live position, replacing earlier ones; each in order."""
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
        """Kafka no longer has the records below this offset, so drop the gaps there."""
        gone = without(self.unread(partition), end)
        self._unlogged |= bool(gone)
        for marks in (self._unread, self._unproven):
            _take(marks, {partition: gone})

    def drop(self, partition: TopicPartition) -> None:
        """No batch reads anything of this partition any more: what is unproven is unread."""
        unproven = list(self.unproven(partition))
        self._unlogged |= unproven != list(self.unread(partition))
        self.restore(partition, unproven, unproven)

    def forget(self, partition: TopicPartition) -> None:
        """Drop all gaps: the log was deleted or is read again, or nothing is left of them."""
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


class OwedCommits:
    """The offsets that a query has proven and the group has not acknowledged.

    Invariants:
     1. Only proven offsets are committed, only while owned, and only forward.
     2. For a partition with gaps below its live position, each commit carries everything that the
        group is owed. That can change while the offset stays the same, and a revoke waits for it as
        it waits for an offset.

    It keeps the set of partitions that are behind: few out of thousands.
    """

    def __init__(
        self, partitions: OwnedPartitions, marks: Marks, gaps: GapMarks, batches: OpenBatches
    ) -> None:
        self._partitions = partitions
        self._marks = marks
        self._gaps = gaps
        self._batches = batches
        self._behind: dict[TopicPartition, None] = {}  # owned, with proven parts unacknowledged

    # -- changes ----------------------------------------------------------------------------------

    def compare(self, partitions: Collection[TopicPartition]) -> None:
        """Update which are behind, after a change of ownership, proofs or acknowledgements."""
        owned, has_gaps = self._partitions.all(), self._gaps.any()
        behind = self._marks.behind(partitions, self._gaps.committed if has_gaps else None)
        if has_gaps or self._marks.with_gaps():
            beside_gaps = self._gaps.all_unproven().keys() | self._marks.with_gaps()
            behind |= {p for p in partitions if p in beside_gaps and self._owes_more(p)}
        for partition in partitions:
            if partition in behind and partition in owned:
                self._behind[partition] = None
            else:
                self._behind.pop(partition, None)

    def forget(self, partition: TopicPartition) -> None:
        """The partition is not owned any more."""
        self._behind.pop(partition, None)

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        self._marks.acknowledge(offsets)
        self.compare(offsets)

    def acknowledge_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`acknowledge`, with everything that the group is owed as it knows it."""
        self._marks.acknowledge_remaining(remaining)
        self.compare(remaining)

    # -- queries ----------------------------------------------------------------------------------

    def is_open(self, partition: TopicPartition) -> bool:
        """Whether the partition is owned and the group lacks something proven of it."""
        return partition in self._behind

    def by_member(self) -> dict[int, dict[TopicPartition, int]]:
        """The offsets to commit by member: proven, not acknowledged, owned."""
        by_member: dict[int, dict[TopicPartition, int]] = {}
        owned, proven = self._partitions.all(), self._marks.positions()
        for partition in self._behind:
            own = owned[partition]
            if own.position is not None:
                offset = self._gaps.committed(partition, proven[partition])
                by_member.setdefault(own.member, {})[partition] = offset
        return by_member

    def remaining(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Remaining]:
        """The group's remaining offsets of each of these: parts that neither side has proven."""
        return {p: self._left(p) for p in partitions}

    def uncommitted(self) -> set[TopicPartition]:
        """The partitions of which the group may lack something that this query has read.

        This covers the last batch with ranges, the unproven batches, and the owned partitions. It
        leaves out an earlier batch's ranges of a partition that was then lost: the next owner has
        repeated them by now, and no later stop changes it.
        """
        owned = self._partitions.all()
        missing = set(self._marks.unacknowledged(self._batches.read_to()))
        caught_up = self._batches.with_caught_up()
        if caught_up or self._gaps.any():
            # With gaps, a committed offset does not show everything that was read.
            beside_gaps = caught_up | (missing & self._gaps.all_unproven().keys())
            missing -= beside_gaps
            missing |= {p for p in beside_gaps if self._batches.have(p) or self._owes_more(p)}
        # A partition that was never read only has its start to commit.
        return missing | {p for p in self._behind if owned[p].read}

    def remaining_after(self, batch: Batch) -> dict[TopicPartition, Remaining]:
        """What the group is owed of the batch's partitions once the batch is decided."""
        proven, left = self._marks.positions(), {}
        for partition, reads in batch.all_reads().items():
            gaps = less(self._gaps.unproven(partition), [Gap(r.start, r.end) for r in reads])
            handed = batch.ranges.get(partition)
            live = proven.get(partition, 0)
            left[partition] = self._beside_group(
                partition, Remaining.of(gaps, live if handed is None else max(live, handed.end))
            )
        return left

    def _left(self, partition: TopicPartition) -> Remaining:
        proven = self._marks.positions()[partition]
        left = Remaining.of(self._gaps.unproven(partition), proven)
        return self._beside_group(partition, left)

    def _beside_group(self, partition: TopicPartition, left: Remaining) -> Remaining:
        known = self._marks.group_has(partition)
        return left if known is None else left.merge(known)

    def _owes_more(self, partition: TopicPartition) -> bool:
        """Whether the group still takes something proven as owed."""
        if partition not in self._marks.positions():
            return False
        known, left = self._marks.group_has(partition), self._left(partition)
        return known is None or left.between(0, LONG_MAX) != known.between(0, LONG_MAX)


class Marks:
    """The marks of all partitions that one query has owned, or knows from its checkpoint."""

    def __init__(self) -> None:
        self._handed_out: dict[TopicPartition, int] = {}
        self._proven: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        # The group's remaining offsets as of the acknowledged commit, if there are gaps.
        self._owed: dict[TopicPartition, Remaining] = {}
        self._unlogged = False  # some position is in no offset yet, or one was dropped

    # -- changes ----------------------------------------------------------------------------------

    def start_at(
        self, partition: TopicPartition, committed: int | None, otherwise: int, unread: bool
    ) -> int:
        """Decide where a newly assigned partition starts; see ``Positioning.start_at``.

        ``unread``: no unproven batch reads it.
        """
        known = max(-1 if committed is None else committed, self._handed_out.get(partition, -1))
        start = otherwise if known < 0 else known
        self._unlogged |= self._handed_out.get(partition) != start
        if committed is not None:
            self._acknowledged[partition] = committed
            if committed >= self._proven.get(partition, -1):
                self._proven[partition] = committed
        else:
            self._acknowledged.pop(partition, None)  # the group's offset has expired or was deleted
            if partition not in self._proven and unread:
                # There is no commit. Unless this start is committed, "latest" is another offset for
                # the next owner, and records produced in between are lost.
                self._proven[partition] = start
        self._handed_out[partition] = start
        return start

    def begin_live(self, partition: TopicPartition, position: int) -> None:
        """Continue at this live position; the offsets still owed below it become gaps."""
        self._unlogged |= self._handed_out.get(partition) != position
        self._handed_out[partition] = self._proven[partition] = position

    def restore(self, positions: Mapping[TopicPartition, int]) -> None:
        """Spark's checkpoint proves these positions."""
        for partition, position in positions.items():
            self._handed_out[partition] = max(position, self._handed_out.get(partition, -1))
        self.prove(positions.items())

    def resume(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """A previous process handed out these ranges."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = max(handed.end, self._handed_out.get(partition, -1))
        # Everything before the batch was read, so the group gets the missing commits at once.
        self.prove((p, handed.start) for p, handed in ranges.items())

    def hand_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """A batch reads these."""
        for partition, handed in ranges.items():
            self._handed_out[partition] = handed.end

    def prove(self, positions: Iterable[tuple[TopicPartition, int]]) -> None:
        """Everything below these positions is in batches that Spark has committed and logged."""
        proven = self._proven
        for partition, position in positions:
            if position > proven.get(partition, -1):
                proven[partition] = position

    def drop(self, partition: TopicPartition, otherwise: int) -> int:
        """What was handed out beyond the proven position was not delivered; returns that."""
        position = self._proven.get(partition, otherwise)
        self._unlogged |= self._handed_out.get(partition) != position
        self._handed_out[partition] = position
        return position

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Commit the proven positions of these once more, even where the group has them."""
        for partition in partitions:
            if partition in self._proven:
                self._acknowledged[partition] = -1
                self._owed.pop(partition, None)

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        acknowledged = self._acknowledged
        for partition, offset in offsets.items():
            if offset > acknowledged.get(partition, -1):
                acknowledged[partition] = offset

    def acknowledge_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`acknowledge`, with everything that the group is owed as it knows it."""
        self.acknowledge({p: left.committed() for p, left in remaining.items()})
        for partition, left in remaining.items():
            if left.committed() != self._acknowledged[partition]:
                continue  # the group has a later commit by now
            if left.gaps:
                self._owed[partition] = left
            else:
                self._owed.pop(partition, None)

    def move_to(self, partition: TopicPartition, position: int) -> None:
        """Continue at another position, because Kafka lost the records in between."""
        self._handed_out[partition] = self._proven[partition] = position
        self._unlogged = True
        self._acknowledged[partition] = -1  # the group's offset must move as well

    def forget(self, partition: TopicPartition) -> None:
        """Drop the marks of a log that was deleted, or is read again.

        Until an offset records that, a restart would continue in a new partition of that name.
        """
        self._unlogged |= partition in self._proven
        for marks in (self._handed_out, self._proven, self._acknowledged):
            marks.pop(partition, None)
        self._owed.pop(partition, None)

    # -- queries ----------------------------------------------------------------------------------

    def behind(
        self,
        partitions: Iterable[TopicPartition],
        committed: Callable[[TopicPartition, int], int] | None = None,
    ) -> set[TopicPartition]:
        """The given partitions of which the group lacks something that is proven.

        ``committed`` returns the offset to commit for a proven position with gaps below it.
        """
        proven, acknowledged = self._proven, self._acknowledged
        # Nearly all are equal, and every trigger checks thousands of partitions.
        ahead = [p for p in partitions if proven.get(p, -1) > acknowledged.get(p, -1)]
        if committed is None:
            return set(ahead)
        return {p for p in ahead if committed(p, proven[p]) > acknowledged.get(p, -1)}

    def handed_out(self, partition: TopicPartition) -> int | None:
        """How far the partition was handed out; None if this query has no position in it."""
        return self._handed_out.get(partition)

    def heard(self) -> dict[TopicPartition, int]:
        """The group's committed offsets, as far as they are known."""
        return dict(self._acknowledged)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The group's committed offset of the partition, as far as it is known."""
        return self._acknowledged.get(partition)

    def group_has(self, partition: TopicPartition) -> Remaining | None:
        """The group's remaining offsets; None if no committed offset is known."""
        acknowledged, owed = self._acknowledged.get(partition), self._owed.get(partition)
        if owed is not None and owed.committed() == acknowledged:
            return owed
        return None if acknowledged is None else Remaining(max(0, acknowledged))

    def with_gaps(self) -> KeysView[TopicPartition]:
        """The partitions whose last known commit has gaps."""
        return self._owed.keys()

    def unacknowledged(self, ends: Mapping[TopicPartition, int]) -> Iterable[TopicPartition]:
        """The given partitions whose committed offset is not known to have reached this end."""
        return [p for p, end in ends.items() if end > self._acknowledged.get(p, -1)]

    def unheard_of(self) -> list[TopicPartition]:
        """Partitions in which this query has a position, but whose committed offset is unknown."""
        return [p for p in self._handed_out if p not in self._acknowledged]

    def known(self) -> dict[TopicPartition, int]:
        """Where each partition continues: as far as it was handed out, in this run or before."""
        return dict(self._handed_out)

    def are_known(self, partition: TopicPartition) -> bool:
        """Whether this query has a position in the partition, from this run or an earlier one."""
        return partition in self._handed_out

    def positions(self) -> Mapping[TopicPartition, int]:
        """The proven positions of all partitions that were ever owned; not to be changed."""
        return self._proven

    def log_positions(self) -> Mapping[TopicPartition, int]:
        """As :meth:`positions`, for writing them into the offset that is being made."""
        self._unlogged = False
        return self._proven

    def are_unlogged(self) -> bool:
        """Whether the last offset lacks current positions, or still has deleted partitions."""
        return self._unlogged
