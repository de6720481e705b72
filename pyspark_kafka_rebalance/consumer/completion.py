"""Completion: which handed out records are processed, in whatever order that happens.

Asynchronous workers finish out of order; a committed position may only pass what is complete
(KIP-983, problem 4). Offsets are kept as ranges: memory grows with the gaps between what is
pending (out of order workers, compaction, transaction markers), not with the records.

Invariants:
 1. What is pending was handed out, is not complete, and lies below ``next_offset``.
 2. The position to commit is the lowest pending offset, or ``next_offset`` when none is.
 3. What was never handed out (a forward seek, compaction) holds nothing up.
 4. A call that is refused changes nothing.
 5. Handed out again after a seek, a record is pending again. Handed out at a lower offset than
    where the last hand-out ended and without a seek, records are others than those that were
    there before (the log was truncated, or its topic created anew): those are forgotten.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence

from kafka.structs import TopicPartition

from ..errors import PartitionsLostError
from .inherited import Inherited
from .remaining import Remaining


class PartitionCompletion:
    """The handed out records of one partition, from the first after its assignment."""

    def __init__(self) -> None:
        # Disjoint and not touching, in order: first offset, and the offset after the last.
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._lowest: int | None = None
        self._next: int | None = None
        self._continues_at: int | None = None  # where the last hand-out ended
        # Leader epochs of what was handed out, each from an offset on; -1: unknown.
        self._epochs: list[tuple[int, int]] = []
        self._singly = False  # whether records were completed one by one
        self._sought_past: int | None = None  # the first that a forward seek left out
        #: What the owner before had completed out of order; those records are not handed out.
        self.inherited: Inherited | None = None

    @property
    def next_offset(self) -> int | None:
        """The offset after the highest that was handed out; None before the first."""
        return self._next

    @property
    def continues_at(self) -> int | None:
        """Where the last hand-out ended; None before the first."""
        return self._continues_at

    def leader_epoch(self, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 where it is unknown."""
        at = bisect_right(self._epochs, next_offset - 1, key=lambda known: known[0]) - 1
        return self._epochs[at][1] if at >= 0 else -1

    def reached(self, offset: int) -> bool:
        """Whether the offset lies between the lowest and the highest that were handed out.

        Those between that do not exist are not remembered, and count as handed out.
        """
        return (
            self._lowest is not None
            and self._next is not None
            and (self._lowest <= offset < self._next)
        )

    @property
    def position(self) -> int | None:
        """The offset to commit, exclusive (invariant 2); None before the first hand-out."""
        if self._starts or self._next is None or self.inherited is None:
            return self._starts[0] if self._starts else self._next
        return self.inherited.remaining.next_from(self._next)

    @property
    def any_pending(self) -> bool:
        """Whether something that was handed out is not complete."""
        return bool(self._starts)

    def remaining(self, offset: int) -> tuple[Remaining, int]:
        """What is left to process when this offset is committed, and the highest leader epoch.

        Everything from where polls go on, and what is pending below. Without gaps while nobody
        completes records one by one: what is left out of a log is nothing to tell of.
        """
        inherited = self.inherited
        if self._continues_at is None or not (self._singly or inherited):
            return Remaining(offset), -1
        live = self._continues_at
        if self._sought_past is not None and offset <= self._sought_past:
            live = min(live, self._sought_past)  # who takes over has not sought
        remaining = Remaining.of(zip(self._starts, self._ends, strict=True), max(offset, live))
        epoch = self.leader_epoch(self._continues_at)
        if inherited is not None:
            remaining = remaining.merge(inherited.remaining)
            known = epoch >= 0 and inherited.leader_epoch >= 0
            epoch = max(epoch, inherited.leader_epoch) if known else -1
        remaining = remaining.trim(offset)
        if offset not in remaining:  # committed lower than it might be
            between = remaining.between(offset, remaining.live)
            remaining = Remaining.of([(offset, offset + 1), *between], remaining.live)
        return remaining, epoch

    def hand_out(self, offsets: Sequence[int], leader_epoch: int = -1) -> None:
        """These offsets, ascending, are in processing now; also again, after a seek back."""
        if not offsets:
            return
        self._learn_epoch(offsets[0], leader_epoch)
        if offsets[-1] - offsets[0] == len(offsets) - 1:
            self._add(offsets[0], offsets[-1] + 1)
        else:
            start = previous = offsets[0]
            for offset in offsets[1:]:
                if offset != previous + 1:
                    self._add(start, previous + 1)
                    start = offset
                previous = offset
            self._add(start, previous + 1)
        after = offsets[-1] + 1
        self._lowest = offsets[0] if self._lowest is None else min(self._lowest, offsets[0])
        self._next = after if self._next is None else max(self._next, after)
        self._continues_at = after

    def seek(self, offset: int) -> None:
        """The application said that polls go on from this offset."""
        after = self._continues_at
        if after is not None and offset > after:
            past = self._sought_past
            self._sought_past = after if past is None or self._reached(past) else min(past, after)

    def _reached(self, offset: int) -> bool:
        """Whether the position to commit is beyond this offset."""
        return (self.position or 0) > offset

    def _learn_epoch(self, offset: int, epoch: int) -> None:
        while self._epochs and self._epochs[-1][0] >= offset:
            self._epochs.pop()
        if not self._epochs or self._epochs[-1][1] != epoch:
            self._epochs.append((offset, epoch))
            position = self.position or 0
            while len(self._epochs) > 1 and self._epochs[1][0] < position:
                del self._epochs[0]  # nothing so low will be committed any more

    def truncate(self, offset: int) -> None:
        """Forget what was handed out from this offset on: those records are gone."""
        self.inherited = None
        at = bisect_right(self._starts, offset - 1)
        del self._starts[at:], self._ends[at:]
        if self._ends and self._ends[-1] > offset:
            self._ends[-1] = offset
        self._learn_epoch(offset, -1)
        if self._next is not None:
            self._next = min(self._next, offset)
        if self._lowest is not None:
            self._lowest = min(self._lowest, offset)
        self._continues_at = offset

    def complete(self, offset: int) -> None:
        """The record at this offset is processed; again is fine."""
        self._singly = True
        at = bisect_right(self._starts, offset) - 1
        if at < 0 or offset >= self._ends[at]:
            return
        start, end = self._starts[at], self._ends[at]
        if start == offset and end == offset + 1:
            del self._starts[at], self._ends[at]
        elif start == offset:
            self._starts[at] = offset + 1
        elif end == offset + 1:
            self._ends[at] = offset
        else:
            self._ends[at] = offset
            self._starts.insert(at + 1, offset + 1)
            self._ends.insert(at + 1, end)

    def complete_below(self, offset: int) -> int:
        """Everything below this next offset is processed.

        Returns
        -------
        int
            The position to commit: what was given, or more if workers have completed more.
        """
        at = bisect_right(self._ends, offset)
        del self._starts[:at], self._ends[:at]
        if self._starts and self._starts[0] < offset:
            self._starts[0] = offset
        # Without workers no more than was asked for, although nothing may lie in between.
        return max(offset, self.position or 0) if self._singly or self.inherited else offset

    def _add(self, start: int, end: int) -> None:
        """Add a range, merged with what it touches."""
        first = bisect_right(self._ends, start - 1)
        last = bisect_right(self._starts, end)
        if first < last:
            start = min(start, self._starts[first])
            end = max(end, self._ends[last - 1])
        self._starts[first:last] = [start]
        self._ends[first:last] = [end]


class Completion:
    """The handed out records of every owned partition."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, PartitionCompletion] = {}
        self._sought: set[TopicPartition] = set()  # and nothing handed out since
        self._inherited: dict[TopicPartition, Inherited] = {}
        # The offset after the highest that was handed out under an assignment that is over.
        self._over: dict[TopicPartition, int] = {}
        # The same, of a log that was truncated under the present assignment.
        self._truncated_from: dict[TopicPartition, int] = {}

    def hand_out(
        self, partition: TopicPartition, offsets: Sequence[int], leader_epoch: int = -1
    ) -> None:
        """A poll returned the records at these offsets, ascending, all of one leader epoch."""
        sought = partition in self._sought
        self._sought.discard(partition)
        found = self._partitions.setdefault(partition, PartitionCompletion())
        found.inherited = self._inherited.get(partition)
        if sought and offsets:
            found.seek(offsets[0])
        found.hand_out(offsets, leader_epoch)

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
            self._disinherit(partition)
            return None
        return found

    def _disinherit(self, partition: TopicPartition) -> None:
        self._inherited.pop(partition, None)
        if partition in self._partitions:
            self._partitions[partition].inherited = None

    def position(self, partition: TopicPartition) -> int | None:
        """The offset to commit, exclusive; None before the first hand-out."""
        found = self._partitions.get(partition)
        return None if found is None else found.position

    def remaining(self, partition: TopicPartition, offset: int) -> tuple[Remaining, int]:
        """What is left to process when this offset is committed, and the highest leader epoch.

        Everything from there on between a seek and the next hand-out: nobody knows where that is.
        """
        found = self._partitions.get(partition)
        if found is None or partition in self._sought:
            return Remaining(offset), -1
        return found.remaining(offset)

    def truncated_at(self, partition: TopicPartition, offset: int) -> bool:
        """Whether polls that go on from here say that the log was truncated (invariant 5)."""
        found = self._partitions.get(partition)
        return (
            found is not None
            and found.continues_at is not None
            and offset < found.continues_at
            and partition not in self._sought
        )

    def leader_epoch(self, partition: TopicPartition, next_offset: int) -> int:
        """The leader epoch of the last record before this next offset; -1 where it is unknown."""
        found = self._partitions.get(partition)
        return -1 if found is None else found.leader_epoch(next_offset)

    def sought(self, partitions: Iterable[TopicPartition]) -> None:
        """The application said where polls go on."""
        for partition in partitions:
            self._sought.add(partition)
            self._disinherit(partition)
            self._truncated_from.pop(partition, None)

    def was_sought(self, partition: TopicPartition) -> bool:
        """Whether nothing was handed out since the application said where polls go on."""
        return partition in self._sought

    def truncate(self, partition: TopicPartition, offset: int) -> None:
        """The records from this offset on are gone, and others may be there by now."""
        found = self._partitions[partition]
        self._disinherit(partition)
        self._note_over(partition, found)
        if found.next_offset is not None:
            before = self._truncated_from.get(partition, 0)
            self._truncated_from[partition] = max(found.next_offset, before)
        found.truncate(offset)

    def complete(self, partition: TopicPartition, offsets: Iterable[int]) -> int | None:
        """The records at these offsets are processed.

        Returns
        -------
        int or None
            The partition's position to commit if it advanced.

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
                raise self._not_handed_out(partition, offset)
        before = found.position
        for offset in offsets:
            found.complete(offset)
        after = found.position
        return after if after != before else None

    def refuse_truncated(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Raise PartitionsLostError when next offsets are those of records that are gone.

        After a truncation whoever still processes the records of before does not know of it. What
        they reached lies beyond what was handed out since; committed, it would hide every record
        that is written there.
        """
        for partition, offset in offsets.items():
            found = self._partitions.get(partition)
            handed_out = 0 if found is None else found.next_offset or 0
            if handed_out < offset <= self._truncated_from.get(partition, -1):
                raise PartitionsLostError(
                    f"nothing committed: {partition.topic}-{partition.partition} at {offset} is "
                    f"past {handed_out}, where its log was truncated or read anew since"
                )

    def complete_below(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Everything below these next offsets is processed; what to commit therefore."""
        return {
            partition: (
                self._partitions[partition].complete_below(offset)
                if partition in self._partitions
                else offset
            )
            for partition, offset in offsets.items()
        }

    def partitions(self) -> frozenset[TopicPartition]:
        """The partitions of which something was handed out under the present assignment."""
        return frozenset(self._partitions)

    def pending(self) -> frozenset[TopicPartition]:
        """The partitions with handed out records that are not complete."""
        return frozenset(p for p, found in self._partitions.items() if found.any_pending)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are not owned any more; assigned again, they begin anew."""
        for partition in partitions:
            self._sought.discard(partition)
            self._inherited.pop(partition, None)
            self._truncated_from.pop(partition, None)
            found = self._partitions.pop(partition, None)
            if found is not None:
                self._note_over(partition, found)

    def _note_over(self, partition: TopicPartition, found: PartitionCompletion) -> None:
        if found.next_offset is not None:
            self._over[partition] = max(found.next_offset, self._over.get(partition, 0))

    def forget_all(self) -> None:
        """No partition is owned any more."""
        self.forget([*self._partitions, *self._sought, *self._inherited])

    def _not_handed_out(self, partition: TopicPartition, offset: int) -> Exception:
        name = f"{partition.topic}-{partition.partition}"
        if partition in self._over and offset < self._over[partition]:
            return PartitionsLostError(
                f"nothing committed: {name} was lost or revoked after offset {offset} was handed "
                "out, and is assigned anew, or its log was truncated"
            )
        return ValueError(f"{name}: offset {offset} was not handed out")
