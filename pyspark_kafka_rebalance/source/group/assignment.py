"""QueryAssignment: what one query owns, and what that makes of its marks and batches. Pure.

Invariants:
 1. A partition gets a new range only while it is owned, its start is known, and no revoke of it
    is requested; the range starts where the last one ended, whoever owned it in between.
 2. A revoke may complete only when all that was handed out of the partition is acknowledged, and
    Spark has committed the batch with its ``revoke_requested`` row, if such rows are wanted and
    anything was read since the assignment, or before a restart: Spark has kept its state. While
    the members of a run with an end still join, only what is read since counts
    (:meth:`release_unread`).
 3. What is lost is not committed any more; its marks stay, for the case that it comes back.

What the group is told: ``owed_commits``. Where reading begins: ``positioning``.

Not thread-safe: the owner holds one lock around every call, and never over I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from kafka.structs import TopicPartition

from ...consumer.gaps import Gap
from ...fetch.offset_range import OffsetRange
from ..offsets import RebalanceEvent
from .event_rows import EventRows
from .gap_marks import GapMarks
from .marks import Marks
from .owed_commits import OwedCommits
from .owned_partitions import OwnedPartition, OwnedPartitions
from .positioning import Positioning
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
        What of each is to be caught up below that.
    batches : UnprovenBatches
        What is handed out and not proven.
    events : EventRows
        What the next batch has to tell.
    commits : OwedCommits
        What of all that the group is to be told.
    positioning : Positioning
        Told by the brokers where partitions start, and what is gone of their logs.
    """

    def __init__(self, include_events: bool = False) -> None:
        self.partitions = OwnedPartitions()
        self.marks = Marks()
        self.gaps = GapMarks()
        self.batches = UnprovenBatches()
        self.events = EventRows(include_events)
        self.commits = OwedCommits(self.partitions, self.marks, self.gaps, self.batches)
        self.positioning = Positioning(
            self.partitions, self.marks, self.gaps, self.batches, self.commits
        )
        # Read by the process before this one, whose state Spark has kept: not flushed so far.
        self._unflushed: set[TopicPartition] = set()

    # -- what happens to the assignment -----------------------------------------------------------

    def assign(self, member: int, generation: int, partitions: Collection[TopicPartition]) -> None:
        """The group gives partitions to a member; their start is still to be found out."""
        # In order, in which they are planned and told from then on, with each batch anew.
        for partition in sorted(partitions):
            read = partition in self._unflushed
            self.partitions.add(partition, OwnedPartition(member, generation, read=read))
            self.events.add("assigned", partition, generation)
        self.commits.compare(partitions)

    def request_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """No new range from now on."""
        for partition in partitions:
            owned = self.partitions.request_revoke(partition)
            if owned is not None:
                self.events.add("revoke_requested", partition, owned.generation)

    def keep(self, member: int, to_be_revoked: Collection[TopicPartition]) -> None:
        """The group took back the revoke of what the member owns and need not give up now."""
        for partition, owned in self.partitions.keep(member, to_be_revoked):
            owned.read = owned.read or partition in self._unflushed  # see release_unread
            self.events.add("assigned", partition, owned.generation)

    def complete_revoke(
        self,
        member: int,
        partitions: Iterable[TopicPartition],
        ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Released to the group; ``ends``: where logs end, as far as it is known."""
        for partition, owned in self._pop(member, partitions):
            self.positioning.hand_over(partition, owned.generation, ends.get(partition))
            self.events.add("revoked", partition, owned.generation)

    def lose(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """Gone without a hand-over (invariant 3)."""
        for partition, owned in self._pop(member, partitions):
            self.events.add("lost", partition, owned.generation)

    def _pop(
        self, member: int, partitions: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        for partition, owned in self.partitions.pop(member, partitions):
            self.commits.forget(partition)
            if owned.read:
                self._unflushed.discard(partition)
            yield partition, owned

    def end(self) -> list[RebalanceEvent]:
        """The members have left, and the query reads on with others, which have this to tell.

        Beside what waits for a batch, each partition that was owned is lost: others may have read
        on since, and no batch with its request came before.
        """
        for member in {owned.member for owned in self.partitions.all().values()}:
            owned = [p for p, own in self.partitions.all().items() if own.member == member]
            self.lose(member, owned)
        return self.events.untold()

    def begin_after(self, events: Iterable[RebalanceEvent]) -> None:
        """Tell what the members before these had to tell; after :meth:`restore`."""
        for event in events:
            self.events.add(event.event, event.partition, event.generation)
            if event.event == "lost":  # its row says to flush
                self._unflushed.discard(event.partition)

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
        certain = cache(certain)

        def allowed(partition: TopicPartition) -> OwnedPartition | None:
            own = owned.get(partition)
            may = own is not None and partition not in revoking and certain(own.member)
            return own if may else None

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
        """What was handed out, is not proven, and still owned: one range for each partition.

        Without what lies below where the live position began: see :meth:`unproven_gaps`.
        """
        ranges = self.batches.ranges(of=self.partitions.all())
        for partition in ranges.keys() & self.gaps.all_unproven().keys():
            began_at = max(ranges[partition].start, self.gaps.unproven(partition)[-1].end)
            if began_at < ranges[partition].end:
                ranges[partition] = replace(ranges[partition], start=began_at)
            else:
                del ranges[partition]
        return ranges

    def unproven_gaps(self) -> dict[TopicPartition, list[Gap]]:
        """The same below the live positions: what batches read there that are not proven."""
        owned = self.partitions.all()
        under_way = {p: self.gaps.under_way(p) for p in self.gaps.all_unproven() if p in owned}
        return {p: found for p, found in under_way.items() if found}

    def gaps_left(self) -> dict[TopicPartition, Sequence[Gap]]:
        """What a restart has to read of gaps: what no batch reads, or of others has proven."""
        owned, unread = self.partitions.all(), self.gaps.all_unread()
        left = {
            p: unread.get(p, ()) if p in owned else found
            for p, found in self.gaps.all_unproven().items()
        }
        return {p: found for p, found in left.items() if found}

    def plannable_gaps(self) -> dict[TopicPartition, Sequence[Gap]]:
        """What may be read of gaps now, by partition."""
        owned, revoking = self.partitions.all(), self.partitions.revoking()
        return {
            p: tuple(found)
            for p, found in self.gaps.all_unread().items()
            if p in owned and owned[p].position is not None and p not in revoking
        }

    def take_events(self) -> list[RebalanceEvent]:
        """The events for the rows of the batch being planned."""
        return self.events.take(self.batches.number, self.partitions.all())

    # -- proof ------------------------------------------------------------------------------------

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        gaps: Mapping[TopicPartition, Sequence[Gap]] | None = None,
    ) -> None:
        """Positions that Spark's checkpoint proves, in a process that handed out none of them.

        After :meth:`resume` they say nothing new: the end of the batch that it was given, and what
        is older. Whatever has set a position back since, or deleted it, counts.

        ``gaps`` are to be read below the live ones.
        """
        if not self.batches.number:
            self._unflushed |= positions.keys()
            for partition, left in (gaps or {}).items():
                self.gaps.restore(partition, left, left)
            self.marks.restore(positions)
            self.commits.compare(positions)

    def resume(
        self,
        ranges: Mapping[TopicPartition, OffsetRange],
        catch_up: CaughtUp = NOTHING,
        gaps: Mapping[TopicPartition, Sequence[Gap]] | None = None,
    ) -> None:
        """What a logged batch reads that Spark runs again: handed out, in a process before this.

        A revoke of what the members get of it waits for the batch, and reading goes on behind it.
        ``gaps`` are what is left of them after it.
        """
        self.batches.add(ranges, catch_up)
        self._unflushed |= {*ranges, *catch_up}
        self.marks.resume(ranges)
        gaps = gaps or {}
        for partition in {*catch_up, *gaps}:
            left = gaps.get(partition, ())
            read = [Gap(one.start, one.end) for one in catch_up.get(partition, ())]
            self.gaps.restore(partition, left, sorted([*left, *read]))
        self.commits.compare({*ranges, *catch_up})

    def prove(self, batch: int | None = None) -> None:
        """Spark has committed this batch, by default the one planned last, and all before it."""
        last = self.batches.number if batch is None else batch
        for ranges, caught_up in self.batches.prove(last):
            self.marks.prove((p, handed.end) for p, handed in ranges.items())
            self.gaps.prove(caught_up)
            if self.gaps.any():  # the live position may have been set further since
                self.gaps.prove({p: (handed,) for p, handed in ranges.items()})
            self.commits.compare({**ranges, **caught_up})
        self.events.prove(last)

    # -- revokes ----------------------------------------------------------------------------------

    def undrained(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """Of these, the partitions whose revoke must not complete yet (invariant 2)."""
        return self.awaiting_batch(partitions) | {p for p in partitions if self.commits.is_open(p)}

    def awaiting_batch(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Of these, the partitions whose revoke waits for a batch: what it reads, or its row."""
        owned = self.partitions.all()
        # Of what was never read there is nothing to flush.
        flushed_later = {p for p in self.events.requests() if p in owned and owned[p].read}
        return {p for p in partitions if self.batches.have(p) or p in flushed_later}

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
