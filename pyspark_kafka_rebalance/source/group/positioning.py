"""Positioning: where partitions are read from, by what the brokers say of their logs. Pure.

Where they start; that what was to be read is gone; that a log is no more. What a partition that is
far behind starts with is set aside below its live position (KIP-333).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...consumer.gaps import without
from ...consumer.remaining import Remaining
from .gap_marks import GapMarks
from .marks import Marks
from .owed_commits import OwedCommits
from .owned_partitions import OwnedPartitions
from .unproven_batches import UnprovenBatches


class _HandedOver(NamedTuple):
    """When a partition was released: in which generation, and where its log ended, if known."""

    generation: int
    end: int | None


class Positioning:
    """Of one query; works on the parts of its :class:`QueryAssignment`."""

    def __init__(
        self,
        partitions: OwnedPartitions,
        marks: Marks,
        gaps: GapMarks,
        batches: UnprovenBatches,
        commits: OwedCommits,
    ) -> None:
        self._partitions = partitions
        self._marks = marks
        self._gaps = gaps
        self._batches = batches
        self._commits = commits
        self._handed_over: dict[TopicPartition, _HandedOver] = {}  # by completed revokes
        # Where those started live that the checkpoint alone knew.
        self._by_checkpoint: dict[TopicPartition, int] = {}

    # -- starts -----------------------------------------------------------------------------------

    def start_at(self, partition: TopicPartition, committed: int | None, otherwise: int) -> int:
        """Set where a newly assigned partition starts.

        Parameters
        ----------
        partition : TopicPartition
            Owned.
        committed : int or None
            The group's committed offset.
        otherwise : int
            Where to start if neither the group nor this query knows the partition.

        Returns
        -------
        int
            The start: the group's committed offset or the highest end that this query ever handed
            out, whichever is further; only its proven part is ever committed. The group's alone if
            that has gone back since this query last heard of it: then another has found the log
            shorter, and what this query knows is of the log before.
        """
        heard = self._marks.acknowledged(partition)
        if committed is not None and heard is not None and committed < heard:
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

        If it is far behind, it goes on at the end of its log.

        What lies in between is set aside, beside what is known to lie below: by the group's last
        commit and by what this query knows, of which each says truly what was processed.

        A partition that comes back from another member of the same query is not behind because of
        any failure: what it was read to is where the group stands still. So it does where another
        query had it and committed nothing. That takes another generation in between; and it matters
        if the log has grown by a backlog meanwhile.

        Parameters
        ----------
        partition : TopicPartition
            Owned.
        committed : Remaining or None
            What the group is owed, by its last commit.
        end : int
            Where the log ends.
        is_behind : callable
            Whether a position is far enough behind this end.
        """
        offset = None if committed is None else committed.committed()
        heard = self._marks.acknowledged(partition)
        released = self._handed_over.pop(partition, None)
        comes_back = released is not None and offset == heard
        if comes_back and released is not None and released.end is not None:
            at_once = self._partitions.all()[partition].generation <= released.generation + 1
            comes_back = at_once or not is_behind(released.end)
        if offset is not None and heard is not None and offset < heard:
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

    def _owed_beside(
        self, partition: TopicPartition, committed: Remaining | None
    ) -> tuple[Remaining, Remaining]:
        """What neither a batch nor the group has read, and what neither has proven."""
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
        """Released to the group in this generation, and read to where the group stands."""
        self._handed_over[partition] = _HandedOver(generation, end)

    # -- changes of a log -------------------------------------------------------------------------

    def move_to(
        self, partition: TopicPartition, position: int, is_another_topic: bool = False
    ) -> bool:
        """Go on at another position, because what lay between is gone from Kafka.

        What was set aside below it is still to be read, as far as it is there, of a log that was
        truncated. Of one that was created anew it is forgotten: where the topic is known to be
        another, or the group had dropped its offset, and nothing was read since that is known.

        Returns
        -------
        bool
            Whether anything that was set aside is forgotten.
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
        """What of its gaps lies below this offset is gone from Kafka."""
        self._gaps.lose(partition, end)
        self._commits.compare([partition])

    def delete(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Deleted: nothing of them is read or committed any more, and a revoke waits for nothing.

        Owned are they until the group takes them back.

        Returns
        -------
        dict
            How far each was handed out; None where its start was not known.
        """
        read = {p: self._marks.handed_out(p) for p in partitions}
        for partition in partitions:
            self._partitions.delete(partition)
            self._forget_marks(partition)
        self._commits.compare(partitions)
        return read

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are gone from Kafka for good; what is owned, or not proven, stays."""
        for partition in partitions:
            if partition not in self._partitions.all() and not self._batches.have(partition):
                self._forget_marks(partition)

    def _forget_marks(self, partition: TopicPartition) -> None:
        """Of a log that is no more, or is read anew."""
        self._marks.forget(partition)
        self._gaps.forget(partition)
        self._batches.forget(partition)
