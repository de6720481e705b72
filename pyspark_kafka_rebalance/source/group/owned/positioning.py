"""Positioning: where partitions are read from, given what the brokers say of their logs. Pure.

It handles starts, records that are gone before they were read, and logs that are gone. If a
partition starts far behind, its backlog is set aside below its live position (KIP-333).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import Remaining
from ....consumer.offsets.offset_set import without
from ....settings.values import LONG_MAX
from ..batches.open_batches import OpenBatches
from .marks import GapMarks, Marks, OwedCommits
from .owned_partitions import OwnedPartitions


class _HandedOver(NamedTuple):
    """The release of a partition: its generation, and where the log ended then, if known."""

    generation: int
    end: int | None


class Positioning:
    """Moves the parts of a :class:`QueryAssignment` together, as the brokers' answers say."""

    def __init__(
        self,
        partitions: OwnedPartitions,
        marks: Marks,
        gaps: GapMarks,
        batches: OpenBatches,
        commits: OwedCommits,
    ) -> None:
        self._partitions = partitions
        self._marks = marks
        self._gaps = gaps
        self._batches = batches
        self._commits = commits
        self._handed_over: dict[TopicPartition, _HandedOver] = {}  # by completed revokes
        # The live starts of partitions that only the checkpoint knew, not the group.
        self._by_checkpoint: dict[TopicPartition, int] = {}

    # -- starts -----------------------------------------------------------------------------------

    def start_at(self, partition: TopicPartition, committed: int | None, otherwise: int) -> int:
        """Set where a newly assigned partition starts; returns it.

        That is the group's committed offset or the highest end that this query ever handed out,
        whichever is higher, and ``otherwise`` if neither is known; only the proven part is ever
        committed. If the group's offset has gone back since this query last saw it, only that
        offset is used: another query has found the log shorter, and what this query knows is about
        the old log.
        """
        if committed is not None and self._has_gone_back(partition, committed):
            self._forget_marks(partition)
        unread = not self._batches.have(partition)
        start = self._marks.start_at(partition, committed, otherwise, unread)
        self._partitions.start_at(partition, start)
        self._commits.compare([partition])
        return start

    def start_live(
        self,
        partition: TopicPartition,
        committed: Remaining | None,
        end: int,
        is_behind: Callable[[int], bool],
    ) -> int:
        """Set where a partition starts that the group or this query knows; see :meth:`start_at`.

        If it is far behind the ``end`` of its log, it goes on there.

        The offsets in between are set aside as a gap, merged with the gaps that are known below: by
        the group's last commit (``committed``) and by this query. Both are right about what was
        processed.

        A partition that comes back from another member of the same query is not behind because of a
        failure: the group's offset is still where the partition was released. The same is true if
        another query had it and committed nothing; but that takes another generation in between,
        and matters only if the log has grown by a backlog meanwhile.
        """
        offset = None if committed is None else committed.committed()
        heard = self._marks.acknowledged(partition)
        released = self._handed_over.pop(partition, None)
        comes_back = released is not None and offset == heard
        if comes_back and released is not None and released.end is not None:
            at_once = self._partitions.all()[partition].generation <= released.generation + 1
            comes_back = at_once or not is_behind(released.end)
        if offset is not None and self._has_gone_back(partition, offset):
            self._forget_marks(partition)
        unread, unproven = self._owed_beside(partition, committed)
        live = end if not comes_back and is_behind(unread.live) else unread.live
        start = self.start_at(partition, offset, otherwise=-1)
        if start != live or unread.gaps or unproven.gaps:
            self._marks.begin_live(partition, live)
            self._gaps.begin(partition, unread.between(0, live), unproven.between(0, live))
            self._partitions.start_at(partition, live)
        else:
            self._gaps.forget(partition)
        if committed is not None:
            self._marks.acknowledge_remaining({partition: committed})
            self._by_checkpoint.pop(partition, None)
        else:
            self._by_checkpoint[partition] = live
        self._commits.compare([partition])
        return live

    def live_positions(self, partition: TopicPartition, committed: Remaining | None) -> set[int]:
        """The positions that :meth:`start_live` compares with the log's end."""
        released = self._handed_over.get(partition)
        ends = {released.end} if released is not None and released.end is not None else set()
        if committed is not None and self._has_gone_back(partition, committed.committed()):
            return {committed.live, *ends}
        return {self._owed_beside(partition, committed)[0].live, *ends}

    def _has_gone_back(self, partition: TopicPartition, committed: int) -> bool:
        """Whether the group's offset is lower than when this query last saw it."""
        heard = self._marks.acknowledged(partition)
        return heard is not None and committed < heard

    def _owed_beside(
        self, partition: TopicPartition, committed: Remaining | None
    ) -> tuple[Remaining, Remaining]:
        """The offsets that neither a batch nor the group has read, and those neither has proven."""
        position = self._marks.handed_out(partition)
        if position is None:
            assert committed is not None
            return committed, committed
        proven = self._marks.positions().get(partition, position)
        unread = Remaining.of(self._gaps.unread(partition), position)
        unproven = Remaining.of(self._gaps.unproven(partition), proven)
        if committed is None:
            return unread, unproven
        return unread.merge(committed), unproven.merge(committed)

    def hand_over(self, partition: TopicPartition, generation: int, end: int | None) -> None:
        """The partition was released in this generation, and read up to the group's offset."""
        self._handed_over[partition] = _HandedOver(generation, end)

    def is_beyond(self, partition: TopicPartition, committed: Remaining) -> bool:
        """Whether this query takes something for read that the group owes by this commit."""
        position = self._marks.handed_out(partition)
        if position is None:
            return False
        own = Remaining.of(self._gaps.unread(partition), position)
        return own.merge(committed).between(0, LONG_MAX) != committed.between(0, LONG_MAX)

    # -- changes of a log -------------------------------------------------------------------------

    def start_over(self, partition: TopicPartition) -> None:
        """Forget what this query knows of a partition before it starts: only the group counts."""
        self._forget_marks(partition)

    def move_to(
        self, partition: TopicPartition, position: int, is_another_topic: bool = False
    ) -> bool:
        """Continue at another position, because the records in between are gone from Kafka.

        If the log was truncated, the gaps below the position that still exist stay to be read. If
        it was created anew, they are forgotten: that is so if the topic is known to be another one,
        or if the group had no offset at the start and nothing was read since. Returns whether any
        were.
        """
        owned = self._partitions.all().get(partition)
        if owned is not None and owned.position is not None:
            unheard_of = self._by_checkpoint.pop(partition, None) == owned.position
            forgets = is_another_topic or unheard_of
            owned.position = position
            unread = self._gaps.unread(partition)
            below = [] if forgets else without(unread, position)
            self._forget_marks(partition)
            self._gaps.begin(partition, below, below)
            self._marks.move_to(partition, position)
            self._commits.compare([partition])
            return forgets and bool(unread)
        return False

    def lose_gaps(self, partition: TopicPartition, end: int) -> None:
        """The part of its gaps below this offset is gone from Kafka."""
        self._gaps.lose(partition, end)
        self._commits.compare([partition])

    def delete(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Mark these deleted: they are not read or committed any more, and revokes do not wait.

        They stay owned until the group revokes them. Returns how far each was handed out; None if
        its start was not known.
        """
        read = {p: self._marks.handed_out(p) for p in partitions}
        for partition in partitions:
            self._partitions.delete(partition)
            self._forget_marks(partition)
        self._commits.compare(partitions)
        return read

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are gone from Kafka for good, unless owned or unproven."""
        for partition in partitions:
            if partition not in self._partitions.all() and not self._batches.have(partition):
                self._forget_marks(partition)

    def _forget_marks(self, partition: TopicPartition) -> None:
        """Forget the marks, gaps and batches of a log that is gone, or is read anew."""
        self._marks.forget(partition)
        self._gaps.forget(partition)
        self._batches.forget(partition)
