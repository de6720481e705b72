"""Completion: which handed out records of the owned partitions are processed.

Of each partition ``PartitionCompletion`` knows, with its invariants; here is what outlives it: a
seek, what the owner before had completed, what was handed out under an assignment that is over.

Invariants:
 1. A call that is refused changes nothing.
 2. Brought at a lower offset than where polls stood and without a seek, records are others than
    those that were there before (the log was truncated, or its topic created anew): those are
    forgotten.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from .handed_out_before import HandedOutBefore
from .inherited import Inherited
from .leader_epochs import UNKNOWN, LeaderEpochs
from .partition_completion import PartitionCompletion
from .remaining import Remaining


class Completion:
    """The handed out records of every owned partition."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionCompletion] = {}
        # Of revokes that are completed, and whose last commits are on their way.
        self._leaving: dict[TopicPartition, PartitionCompletion] = {}
        # Where polls go on, and nothing handed out since; None is the beginning, wherever that is.
        self._sought: dict[TopicPartition, int | None] = {}
        self._inherited: dict[TopicPartition, Inherited] = {}
        self._epochs: dict[TopicPartition, LeaderEpochs] = {}
        self._before = HandedOutBefore()

    def hand_out(
        self, partition: TopicPartition, offsets: Sequence[int], leader_epoch: int = -1
    ) -> None:
        """A poll returned the records at these offsets, ascending, all of one leader epoch."""
        sought = partition in self._sought
        self._sought.pop(partition, None)
        found = self._found(partition)
        if sought and offsets:
            found.seek(offsets[0])
        found.hand_out(offsets, leader_epoch)

    def go_on(self, partition: TopicPartition, offset: int) -> None:
        """Polls have come to here; what lies before was handed out or left out."""
        self._found(partition).go_on(offset)

    def _found(self, partition: TopicPartition) -> PartitionCompletion:
        found = self._partitions.get(partition)
        if found is None:
            epochs = self._epochs.setdefault(partition, LeaderEpochs())
            found = self._partitions[partition] = PartitionCompletion(epochs)
            found.inherited = self._inherited.get(partition)
        return found

    def learn_epoch(self, partition: TopicPartition, start: int, end: int, epoch: int) -> None:
        """Records in [start, end) are of this leader epoch, whether they are handed out or not."""
        self._epochs.setdefault(partition, LeaderEpochs()).learn(start, end, epoch)

    def inherit(self, partition: TopicPartition, inherited: Inherited) -> None:
        """What the owner before had completed is not handed out, until polls go back."""
        self._inherited[partition] = inherited
        if partition in self._partitions:
            self._partitions[partition].inherited = inherited

    def inherited(self, partition: TopicPartition, offset: int) -> Inherited | None:
        """What to leave out of the records that a poll brought from this offset on.

        Nothing once the application said where polls go on, or where the log was truncated.
        """
        found = self._inherited.get(partition)
        if found is not None and (
            offset < found.offset
            or partition in self._sought
            or self.truncated_at(partition, offset)
        ):
            self.disinherit(partition)
            return None
        return found

    def disinherit(self, partition: TopicPartition) -> None:
        """Hand out again what the owner before had completed."""
        self._inherited.pop(partition, None)
        if partition in self._partitions:
            self._partitions[partition].inherited = None

    def position(self, partition: TopicPartition) -> int | None:
        """The offset to commit, exclusive; None before the first hand-out.

        After a seek back it is where polls go on; none while that is not known.
        """
        found = self._partitions.get(partition)
        position = None if found is None else found.position
        if position is None or partition not in self._sought:
            return position
        offset = self._sought[partition]
        return None if offset is None else min(position, offset)

    def remaining(self, partition: TopicPartition, offset: int) -> tuple[Remaining, int]:
        """What is left to process when this offset is committed, and the highest leader epoch.

        After a seek everything from where polls go on, although nothing is handed out there yet.
        """
        found = self._still_committed(partition)
        if found is None:
            return Remaining(offset), -1
        remaining, leader_epoch = found.remaining(offset)
        if partition in self._sought:
            remaining = remaining.start_over(max(offset, self._sought[partition] or 0))
        return remaining, leader_epoch

    def is_complete(self, partition: TopicPartition, offset: int) -> bool:
        """Whether the record at this offset is processed, as far as it was handed out here."""
        found = self._still_committed(partition)
        return found is not None and found.is_complete(offset)

    def _still_committed(self, partition: TopicPartition) -> PartitionCompletion | None:
        return self._partitions.get(partition) or self._leaving.get(partition)

    def has_begun(self, partition: TopicPartition) -> bool:
        """Whether polls brought something since it is assigned, or the application has sought."""
        return partition in self._partitions or partition in self._sought

    def truncated_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether polls that go on from here say that the log was truncated (invariant 2)."""
        found = self._partitions.get(partition)
        return (
            found is not None
            and found.continues_at is not None
            and offset < found.continues_at
            and partition not in self._sought
        )

    def leader_epoch(self, partition: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 where it is unknown."""
        found = self._epochs.get(partition)
        return -1 if found is None else found.of(next_offset)

    def sought(self, partitions: Iterable[TopicPartition], offset: int | None = None) -> None:
        """The application said where polls go on; None is the beginning, wherever that is."""
        for partition in partitions:
            self._sought[partition] = offset
            self.disinherit(partition)

    def skip(self, partition: TopicPartition, start: int, end: int) -> None:
        """The application gave up the records in [start, end), where polls stopped; they go on.

        What the owner before had completed behind them is left out as before. Whoever is next may
        be able to read them.
        """
        if partition in self._sought:
            return
        if partition in self._partitions:
            self._partitions[partition].skip(end)
        else:
            self.learn_epoch(partition, start, end, UNKNOWN)

    def was_sought(self, partition: TopicPartition) -> bool:
        """Whether nothing was handed out since the application said where polls go on."""
        return partition in self._sought

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The records from this offset on are gone, and others may be there by now."""
        found = self._partitions[partition]
        self.disinherit(partition)
        self._before.note(partition, found.next_offset)
        found.truncate(offset)

    def complete(self, partition: TopicPartition, offsets: Iterable[int]) -> int | None:
        """The records at these offsets are processed.

        Returns
        -------
        int or None
            The partition's position to commit if it advanced, or moved back since the last call.

        Raises
        ------
        PartitionsLostError
            One was handed out before the partition was lost or revoked, and not again since it is
            assigned anew; or its record is gone since, because the log was truncated.
        ValueError
            One was not handed out: nobody can have processed it.
        """
        offsets = tuple(offsets)
        found = self._partitions.get(partition, PartitionCompletion())
        for offset in offsets:
            if not found.reached(offset):
                raise self._before.why_not(partition, offset)
        before = self.position(partition)
        for offset in offsets:
            found.complete(offset)
        after = self.position(partition)
        if after is None:
            found.moved_back = True
            return None
        moved, found.moved_back = found.moved_back or after != before, False
        return after if moved else None

    def refuse_truncated(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise PartitionsLostError when next offsets are those of records that are gone."""
        for partition, offset in offsets.items():
            found = self._partitions.get(partition)
            reached = [self._sought.get(partition)]
            if found is not None:
                reached += found.next_offset, found.continues_at
            self._before.refuse(partition, offset, max(at or 0 for at in reached))

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Everything below these next offsets is processed; what to commit therefore."""
        reached = {}
        for partition, offset in offsets.items():
            found = self._partitions.get(partition)
            # Without workers no more than was asked for, although nothing may lie in between.
            if found is not None and found.complete_below(offset):
                reached[partition] = max(offset, self.position(partition) or 0)
            else:
                reached[partition] = offset
        return reached

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of which polls brought something under the present assignment."""
        return frozenset(self._partitions)

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.any_pending)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """As ``forget``, but :meth:`remaining` is still told, until the last commit is answered."""
        for partition in partitions:
            found = self._partitions.get(partition)
            sought = partition in self._sought
            self.forget([partition])
            if found is not None and not sought:
                self._leaving[partition] = found

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not owned any more; assigned again, they begin anew."""
        for partition in partitions:
            self._leaving.pop(partition, None)
            self._sought.pop(partition, None)
            self._inherited.pop(partition, None)
            self._epochs.pop(partition, None)
            found = self._partitions.pop(partition, None)
            if found is not None:
                self._before.note(partition, found.next_offset)

    def forget_all(self) -> None:
        """No partition is owned any more."""
        known = (self._partitions, self._leaving, self._sought, self._inherited, self._epochs)
        self.forget([partition for partitions in known for partition in partitions])
