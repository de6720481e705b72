"""QueryAssignment: what one query owns, and what that makes of its marks and batches. Pure.

Invariants:
 1. A partition gets a new range only while it is owned, its start is known, and no revoke of it
    is requested; the range starts where the last one ended, whoever owned it in between.
 2. Only what is proven is committed, only while owned, and only forward.
 3. A revoke may complete only when all that was handed out of the partition is acknowledged, and
    Spark has committed the batch with its ``revoke_requested`` row, if such rows are wanted and
    anything was read since the assignment, or before a restart: Spark has kept its state. While
    the members of a run with an end still join, only what is read since counts
    (:meth:`release_unread`).
 4. What is lost is not committed any more; its marks stay, for the case that it comes back.

Not thread-safe: the owner holds one lock around every call, and never over I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange
from ..offsets import RebalanceEvent
from .event_rows import EventRows
from .gap_marks import GapMarks
from .marks import Marks
from .owned_partitions import OwnedPartition, OwnedPartitions
from .unproven_batches import NOTHING, CaughtUp, UnprovenBatches


class QueryAssignment:
    """The partitions of all members of one query.

    What concerns one of its parts alone is asked of that part; what changes several, of this.

    Parameters
    ----------
    include_events : bool
        Whether events are kept for rows, and hold revokes back until their batch is committed.

    Attributes
    ----------
    partitions : OwnedPartitions
        What is owned now.
    marks : Marks
        How far each partition has come.
    gaps : GapMarks
        What of each is to be caught up below that; nothing sets anything aside yet.
    batches : UnprovenBatches
        What is handed out and not proven.
    events : EventRows
        What the next batch has to tell.
    """

    def __init__(self, include_events: bool = False) -> None:
        self.partitions = OwnedPartitions()
        self.marks = Marks()
        self.gaps = GapMarks()
        self.batches = UnprovenBatches()
        self.events = EventRows(include_events)
        self._behind: dict[TopicPartition, None] = {}  # owned, proven, and not acknowledged
        # Read by the process before this one, whose state Spark has kept: not flushed so far.
        self._unflushed: set[TopicPartition] = set()

    # -- what happens to the assignment -----------------------------------------------------------

    def assign(self, member: int, generation: int, partitions: Collection[TopicPartition]) -> None:
        """The group gives partitions to a member; their start is still to be found out."""
        for partition in partitions:
            read = partition in self._unflushed
            self.partitions.add(partition, OwnedPartition(member, generation, read=read))
            self.events.add("assigned", partition, generation)
        self._compare(partitions)

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
        heard = self.marks.acknowledged(partition)
        if committed is not None and heard is not None and committed < heard:
            self._forget_marks(partition)
        unread = not self.batches.have(partition)
        start = self.marks.start_at(partition, committed, otherwise, unread)
        self.partitions.start_at(partition, start)
        self._compare([partition])
        return start

    def request_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """No new range from now on."""
        for partition in partitions:
            owned = self.partitions.request_revoke(partition)
            if owned is not None:
                self.events.add("revoke_requested", partition, owned.generation)

    def keep(self, member: int, to_be_revoked: Collection[TopicPartition]) -> None:
        """The group took back the revoke of what the member owns and need not give up now."""
        for partition, owned in self.partitions.keep(member, to_be_revoked):
            self.events.add("assigned", partition, owned.generation)

    def complete_revoke(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """Released to the group."""
        for partition, owned in self._pop(member, partitions):
            self.events.add("revoked", partition, owned.generation)

    def lose(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """Gone without a hand-over (invariant 4)."""
        for partition, owned in self._pop(member, partitions):
            self.events.add("lost", partition, owned.generation)

    def _pop(
        self, member: int, partitions: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        for partition, owned in self.partitions.pop(member, partitions):
            self._behind.pop(partition, None)
            if owned.read:
                self._unflushed.discard(partition)
            yield partition, owned

    def move_to(self, partition: TopicPartition, position: int) -> None:
        """Go on at another position, because what lay between is gone from Kafka."""
        owned = self.partitions.all().get(partition)
        if owned is not None and owned.position is not None:
            owned.position = position
            self._forget_marks(partition)
            self.marks.move_to(partition, position)
            self._compare([partition])

    def delete(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Deleted: nothing of them is read or committed any more, and a revoke waits for nothing.

        Owned are they until the group takes them back.

        Returns
        -------
        dict
            How far each was handed out; None where its start was not known.
        """
        read = {p: self.marks.handed_out(p) for p in partitions}
        for partition in partitions:
            self.partitions.delete(partition)
            self._forget_marks(partition)
        self._compare(partitions)
        return read

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are gone from Kafka for good; what is owned, or not proven, stays."""
        for partition in partitions:
            if partition not in self.partitions.all() and not self.batches.have(partition):
                self._forget_marks(partition)

    def _forget_marks(self, partition: TopicPartition) -> None:
        """Of a log that is no more, or is read anew."""
        self.marks.forget(partition)
        self.gaps.forget(partition)
        self.batches.forget(partition)

    # -- planning ---------------------------------------------------------------------------------

    def hand_out(
        self,
        planned: Mapping[TopicPartition, OffsetRange],
        certain: Callable[[int], bool],
        catch_up: CaughtUp = NOTHING,
    ) -> dict[TopicPartition, OffsetRange]:
        """Record the ranges that are still allowed now, and return just those (invariant 1).

        The last step of planning: whatever changed during its I/O is left out.

        Parameters
        ----------
        planned : dict
            Ranges decided from an earlier ``partitions.plannable()``.
        certain : callable
            Whether the membership of this member is certain right now (its lease).
        catch_up : mapping
            Parts of gaps, decided likewise; ``batches`` tells which were allowed.
        """
        owned, revoking = self.partitions.all(), self.partitions.revoking()
        sure: dict[int, bool] = {}

        def allowed(partition: TopicPartition) -> OwnedPartition | None:
            own = owned.get(partition)
            if own is None or partition in revoking:
                return None
            if own.member not in sure:
                sure[own.member] = certain(own.member)
            return own if sure[own.member] else None

        ranges = {}
        for partition, handed in planned.items():
            own = allowed(partition)
            if own is not None and own.position == handed.start:
                own.position, own.read = handed.end, True
                ranges[partition] = handed
        caught_up = {}
        for partition, pieces in catch_up.items():
            own = allowed(partition)
            if own is not None and self.gaps.are_unread(partition, pieces):
                own.read = True
                caught_up[partition] = pieces
        self.marks.hand_out(ranges)
        self.gaps.hand_out(caught_up)
        self.batches.add(ranges, caught_up)
        return ranges

    def unproven(self) -> dict[TopicPartition, OffsetRange]:
        """What was handed out, is not proven, and still owned: one range for each partition."""
        return self.batches.ranges(of=self.partitions.all())

    def take_events(self) -> list[RebalanceEvent]:
        """The events for the rows of the batch being planned."""
        return self.events.take(self.batches.number, self.partitions.all())

    # -- proof and commit -------------------------------------------------------------------------

    def restore(self, positions: Mapping[TopicPartition, int]) -> None:
        """Positions that Spark's checkpoint proves, in a process that handed out none of them.

        After :meth:`resume` they say nothing new: the end of the batch that it was given, and what
        is older. Whatever has set a position back since, or deleted it, counts.
        """
        if not self.batches.number:
            self._unflushed |= positions.keys()
            self.marks.restore(positions)
            self._compare(positions)

    def resume(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """What a logged batch reads that Spark runs again: handed out, in a process before this.

        A revoke of what the members get of it waits for the batch, and reading goes on behind it.
        """
        self.batches.add(ranges)
        self._unflushed |= ranges.keys()
        self.marks.resume(ranges)
        self._compare(ranges)

    def prove(self, batch: int | None = None) -> None:
        """Spark has committed this batch, by default the one planned last, and all before it."""
        last = self.batches.number if batch is None else batch
        for ranges, caught_up in self.batches.prove(last):
            self.marks.prove((p, handed.end) for p, handed in ranges.items())
            self.gaps.prove(caught_up)
            self._compare({*ranges, *caught_up})
        self.events.prove(last)

    def commits(self) -> dict[int, dict[TopicPartition, int]]:
        """By member, the offsets to commit: proven, not acknowledged, owned (invariant 2)."""
        by_member: dict[int, dict[TopicPartition, int]] = {}
        owned, proven = self.partitions.all(), self.marks.positions()
        for partition in self._behind:
            own = owned[partition]
            if own.position is not None:
                offset = self.gaps.committed(partition, proven[partition])
                by_member.setdefault(own.member, {})[partition] = offset
        return by_member

    def acknowledge(self, offsets: Mapping[TopicPartition, int]) -> None:
        """The group's committed offsets are now at least these."""
        self.marks.acknowledge(offsets)
        self._compare(offsets)

    def uncommitted(self) -> set[TopicPartition]:
        """Of which partitions the group is not known to have what this query has read.

        Counted are the last batch with ranges, the batches that are not proven, and what is owned.
        What an earlier batch read of a partition that was lost since is not: its next owner has
        repeated that by now, and no later stop changes it.
        """
        owned = self.partitions.all()
        missing = set(self.marks.unacknowledged(self.batches.read_to()))
        # Of what was never read, only the start is to be committed.
        return missing | {p for p in self._behind if owned[p].read}

    def _compare(self, partitions: Collection[TopicPartition]) -> None:
        """After a change of what is owned, proven or acknowledged."""
        owned, behind = self.partitions.all(), self.marks.behind(partitions, self.gaps.committed)
        for partition in partitions:
            if partition in behind and partition in owned:
                self._behind[partition] = None
            else:
                self._behind.pop(partition, None)

    # -- revokes ----------------------------------------------------------------------------------

    def undrained(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Of these, the partitions whose revoke must not complete yet (invariant 3)."""
        owned = self.partitions.all()
        # Of what was never read there is nothing to flush.
        flushed_later = {p for p in self.events.requests() if p in owned and owned[p].read}
        return {
            partition
            for partition in partitions
            if self.batches.have(partition)
            or partition in flushed_later
            or partition in self._behind
        }

    def release_unread(self) -> None:
        """Let go, without its row, what this process has read nothing of.

        Its state stays unflushed: whichever of the members gets the partition, or gets it back, is
        to flush it. If another query gets it, the restart just has not brought it back.
        """
        for partition in self.partitions.revoking() & self._unflushed:
            if not self.batches.have(partition):
                self.partitions.all()[partition].read = False

    def waits_for_proof(self) -> bool:
        """Whether a revoke waits for Spark's commit of the batch under way."""
        return any(
            self.batches.have(partition) or self.events.have_unproven_request(partition)
            for partition in self.partitions.revoking()
        )

    def waiting_revokes(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Of these, those whose revoke waits for Spark's commit of what was handed out."""
        revoking = self.partitions.revoking()
        return sorted(p for p in partitions if p in revoking and self.batches.have(p))
