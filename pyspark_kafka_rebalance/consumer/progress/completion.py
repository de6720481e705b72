"""Completion: which handed out records of the owned partitions are processed.

``PartitionCompletion`` knows that of each partition, and has invariants of its own. This class
keeps what outlives it: where polls go on after a seek, the leader epochs, what the previous owner
had completed, and what was handed out under an assignment that is over.

Invariants:
 1. A call that is refused changes nothing.
 2. If polls bring a lower offset than where they stood, without a seek, the records there are new
    (the log was truncated, or its topic created anew). The old ones are forgotten.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from kafka.structs import TopicPartition

from ..offsets.commit_metadata import Remaining
from ..offsets.leader_epochs import UNKNOWN, EpochsByPartition
from ..offsets.offset_set import Gap, without
from .partition import LOG_END, HandedOutBefore, Inherited, PartitionCompletion, Sought


class Completion:
    """The handed out records of every owned partition.

    Attributes
    ----------
    sought : Sought
        Where polls go on after a seek, until something is handed out there.
    epochs : EpochsByPartition
        The leader epochs of the records, whether they are handed out or not.
    before : HandedOutBefore
        What was handed out under assignments that are over, or of logs before their truncation.
    """

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionCompletion] = {}
        # Partitions whose revoke is completed, and whose last commits are on their way.
        self._leaving: dict[TopicPartition, PartitionCompletion] = {}
        self.sought = Sought()
        self.epochs = EpochsByPartition()
        self.before = HandedOutBefore()
        self._inherited: dict[TopicPartition, Inherited] = {}

    def hand_out(
        self, partition: TopicPartition, offsets: Sequence[int], leader_epoch: int = -1
    ) -> None:
        """A poll returned the records at these offsets, ascending, all of one leader epoch."""
        found = self.begun(partition)
        if partition in self.sought:
            if offsets:
                found.seek(offsets[0])
            del self.sought[partition]
        found.hand_out(offsets, leader_epoch)

    def of(self, partition: TopicPartition) -> PartitionCompletion | None:
        """What is processed of the partition; None if polls brought nothing in this assignment."""
        return self._partitions.get(partition)

    def begun(self, partition: TopicPartition) -> PartitionCompletion:
        """What is processed of the partition; begins one if nothing was handed out or set aside."""
        found = self._partitions.get(partition)
        if found is None:
            found = self._partitions[partition] = PartitionCompletion(self.epochs[partition])
            found.inherited = self._inherited.get(partition)
        return found

    def inherit(self, partition: TopicPartition, inherited: Inherited) -> None:
        """What the previous owner had completed is not handed out, until polls go back."""
        self._inherited[partition] = inherited
        if partition in self._partitions:
            self._partitions[partition].inherited = inherited

    def inherited(self, partition: TopicPartition, offset: int) -> Inherited | None:
        """What to leave out of the records that a poll brought from this offset on.

        Nothing once the application has sought, or if the log was truncated.
        """
        found = self._inherited.get(partition)
        if found is not None and (
            offset < found.offset
            or partition in self.sought
            or self.truncated_at(partition, offset)
        ):
            self.disinherit(partition)
            return None
        return found

    def disinherit(self, partition: TopicPartition) -> None:
        """Hand out again what the previous owner had completed."""
        self._inherited.pop(partition, None)
        if partition in self._partitions:
            self._partitions[partition].disinherit()

    def position(self, partition: TopicPartition, claims: Sequence[Gap] = ()) -> int | None:
        """The offset to commit, exclusive; None before the first hand-out.

        After a seek back it is where polls go on, or None while that is not known. After a seek
        forward it is as far as everything was handed out before. With claims, it is as if what was
        handed out of them were processed.
        """
        found = self._partitions.get(partition)
        if found is not None and claims:
            found = found.with_processed(claims)
        position = None if found is None else found.position
        if found is None or position is None or partition not in self.sought:
            return position
        offset = self.sought[partition]
        if offset is None:
            return None
        return position if offset == LOG_END else found.position_from(offset)

    def remaining(
        self, partition: TopicPartition, offset: int, claims: Sequence[Gap] = ()
    ) -> tuple[Remaining, int]:
        """What is left to process when this offset is committed, and the highest leader epoch.

        After a seek that is everything from where polls go on, although nothing is handed out there
        yet.
        """
        found = self.still_committed(partition)
        if found is None:
            return Remaining(offset), -1
        if claims:
            found = found.with_processed(claims)
        remaining, leader_epoch = found.remaining(offset)
        if partition in self.sought:
            remaining = remaining.start_over(max(offset, self.sought[partition] or 0))
        return remaining, leader_epoch

    def still_committed(self, partition: TopicPartition) -> PartitionCompletion | None:
        """As :meth:`of`, also while the last commit of a completed revoke is on its way."""
        return self._partitions.get(partition) or self._leaving.get(partition)

    def truncated_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether polls that go on from here show that the log was truncated (invariant 2)."""
        found = self._partitions.get(partition)
        return (
            found is not None
            and found.continues_at is not None
            and offset < found.continues_at
            and partition not in self.sought
        )

    def written_anew_from(
        self, partition: TopicPartition, offset: int, leader_epoch: int
    ) -> int | None:
        """The offset from which handed out records are gone, as this epoch proves; or None.

        After a seek back, polls continue below where the log was truncated, and return records
        written since. Offsets skipped by a later seek forward may be from either epoch; assume the
        new one.
        """
        found, epochs = self._partitions.get(partition), self.epochs.get(partition)
        if found is None or epochs is None or not epochs.is_news(offset, leader_epoch):
            return None
        return min(offset, found.continues_at or 0)

    def seek(self, partitions: Iterable[TopicPartition], offset: int | None = None) -> None:
        """The application sought: polls go on from this offset.

        None is the beginning, wherever that is, and LOG_END the end; this is called again when a
        poll has found it.
        """
        for partition in partitions:
            self.sought[partition] = offset
            self.disinherit(partition)
            if partition in self._partitions:
                self._partitions[partition].end_order()

    def skip(self, partition: TopicPartition, start: int, end: int) -> None:
        """The application gave up the records in [start, end), where polls stopped; polls go on.

        What the previous owner had completed behind them is left out as before. The next owner may
        be able to read them.
        """
        if partition in self.sought:
            return
        if partition in self._partitions:
            self._partitions[partition].skip(end)
        else:
            self.epochs[partition].learn(start, end, UNKNOWN)

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The records from this offset on are gone, and others may be there by now."""
        found = self._partitions[partition]
        self.disinherit(partition)
        self.before.note(partition, found.next_offset)
        found.truncate(offset)

    def complete(self, partition: TopicPartition, offsets: Iterable[int]) -> int | None:
        """The records at these offsets are processed.

        Returns
        -------
        int or None
            The partition's position to commit if it advanced; or, if it moved back, once, with the
            first of the records that were handed out again.

        Raises
        ------
        PartitionsLostError
            One was handed out before the partition was lost or revoked, and not again since it was
            assigned anew; or its record is gone, because the log was truncated.
        ValueError
            One was not handed out: nobody can have processed it.
        """
        offsets = tuple(offsets)
        found = self._partitions.get(partition, PartitionCompletion())
        for offset in offsets:
            if not found.reached(offset):
                raise self.before.why_not(partition, offset)
        before = self.position(partition)
        for offset in offsets:
            found.complete(offset)
        after = self.position(partition)
        if after is None:
            found.moved_back = True
            return None
        if after == before:
            below = self.sought.is_below(partition, found.position or 0)
            continues_at = found.continues_at or 0
            of_those = not below and any(offset < continues_at for offset in offsets)
            if not (found.moved_back and of_those):
                return None
        found.moved_back = False
        return after

    def refuse_truncated(
        self,
        offsets: Mapping[TopicPartition, int],
        positions: Mapping[TopicPartition, int | None] = MappingProxyType({}),
    ) -> None:
        """Raise PartitionsLostError if next offsets are those of records that are gone.

        The offset where polls stand, or that was sought, is accepted, whoever got there before. But
        while a set-aside backlog is unread, polls may stand where workers of an earlier assignment
        are. What lies below a sought offset was not handed out.
        """
        for partition, offset in offsets.items():
            position, sought = positions.get(partition), partition in self.sought
            found = self._partitions.get(partition)
            stands = offset == position and (found is None or not found.aside.unread)
            if stands or (sought and offset == self.sought[partition]):
                continue
            reached = 0
            if found is not None:
                reached = found.reached_below(offset, None if sought else position)
            self.before.refuse(partition, offset, reached)

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Everything below these next offsets is processed; returns what to commit."""
        reached = {}
        for partition, offset in offsets.items():
            found = self._partitions.get(partition)
            if found is not None and (
                found.catches_up or self.before.is_awaited(partition, offset)
            ):
                found.pending.discard_all(self.before.claims(partition, found.aside, offset))
                if (position := self.position(partition)) is not None:
                    reached[partition] = position
            # Without workers, commit no more than was asked for, even if nothing lies in between.
            elif found is not None and found.complete_below(offset):
                reached[partition] = max(offset, self.position(partition) or 0)
            else:
                reached[partition] = offset
        return reached

    # -- what is set aside (KIP-333) --------------------------------------------------------------

    def unread(self, partition: TopicPartition) -> Sequence[Gap]:
        """What is set aside of the partition and not handed out yet, in order.

        After a seek, only below the sought offset. The rest is the live reader's once it has
        brought something of it; until then the application may take the seek back.
        """
        found = self._partitions.get(partition)
        if found is None or partition not in self.sought:
            return () if found is None else found.aside.unread
        return without(found.aside.unread, self.sought[partition] or 0)

    def catching_up(self, partition: TopicPartition) -> PartitionCompletion | None:
        """What is processed of the partition; None once everything below its live part is."""
        found = self._partitions.get(partition)
        return found if found is not None and found.catches_up else None

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions from which polls brought something in the present assignment."""
        return frozenset(self._partitions)

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.pending)

    def leave(self, partitions: Iterable[TopicPartition]) -> None:
        """As ``forget``, but :meth:`remaining` still answers, until the last commit is answered."""
        for partition in partitions:
            found = self._partitions.get(partition)
            sought = partition in self.sought
            self.forget([partition])
            if found is not None and not sought:
                self._leaving[partition] = found

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not owned any more; if assigned again, they begin anew."""
        for partition in partitions:
            self._leaving.pop(partition, None)
            self.sought.pop(partition, None)
            self._inherited.pop(partition, None)
            self.epochs.pop(partition, None)
            found = self._partitions.pop(partition, None)
            if found is not None:
                self.before.note(partition, found.next_offset, found.live_in_processing())

    def forget_all(self) -> None:
        """No partition is owned any more."""
        known = (self._partitions, self._leaving, self.sought, self._inherited, self.epochs)
        self.forget([partition for partitions in known for partition in partitions])
