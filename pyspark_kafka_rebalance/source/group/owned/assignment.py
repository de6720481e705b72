"""QueryAssignment: a query's partitions, and how a change affects marks and batches. Pure.

Invariants:
 1. A partition gets a new range only while it is owned, its start is known, and no revoke of it
    is requested. The range starts where the last one ended, even if another member owned the
    partition in between.
 2. A revoke completes only when everything handed out of the partition is acknowledged and, if
    event rows are enabled, Spark has committed the batch with its ``revoke_requested`` row. That
    row is awaited only if something was read since the assignment, or before a restart: Spark has
    kept that state. While the members of a run with an end are still joining, only reads since the
    assignment matter (:meth:`release_unread`).
 3. A lost partition is no longer committed. Its marks stay, in case it comes back.
 4. A batch that the sink decides (``SinkBatches``) is proven and acknowledged in one step, so the
    group never lacks anything of it, and nothing of it is committed here.

``OwedCommits`` decides what to commit, ``positioning`` where reading starts.

Not thread-safe: the owner holds one lock around every call, and never over I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

from kafka.structs import TopicPartition

from ....consumer.offsets.offset_set import Gap
from ....fetch.offset_range import OffsetRange
from ...offsets.stream_offset import RebalanceEvent
from ..batches.batch import NOTHING, Batch, CaughtUp
from ..batches.open_batches import OpenBatches
from .marks import GapMarks, Marks, OwedCommits
from .owned_partitions import EventRows, OwnedPartition, OwnedPartitions
from .positioning import Positioning


class QueryAssignment:
    """The partitions of all members of one query.

    Call a part directly if only that part changes, and this class if several do. With
    ``include_events``, events are kept for rows, and hold revokes back until their batch is
    committed.
    """

    def __init__(self, include_events: bool = False) -> None:
        self.partitions = OwnedPartitions()
        self.marks = Marks()
        self.gaps = GapMarks()
        self.batches = OpenBatches()
        self.events = EventRows(include_events)
        self.commits = OwedCommits(self.partitions, self.marks, self.gaps, self.batches)
        self.positioning = Positioning(
            self.partitions, self.marks, self.gaps, self.batches, self.commits
        )
        # Read by the previous process and not flushed yet: Spark has kept their state.
        self._unflushed: set[TopicPartition] = set()

    # -- changes of the assignment ----------------------------------------------------------------

    def assign(self, member: int, generation: int, partitions: Collection[TopicPartition]) -> None:
        """The group assigned partitions to a member; their start is not known yet."""
        # Sorted, because every batch plans and reports them in this order.
        for partition in sorted(partitions):
            read = partition in self._unflushed
            self.partitions.add(partition, OwnedPartition(member, generation, read=read))
            self.events.add("assigned", partition, generation)
        self.commits.compare(partitions)

    def request_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Hand out no new range of these from now on."""
        for partition in partitions:
            owned = self.partitions.request_revoke(partition)
            if owned is not None:
                self.events.add("revoke_requested", partition, owned.generation)

    def keep(self, member: int, to_be_revoked: Collection[TopicPartition]) -> None:
        """Cancel the requested revokes of this member that are not in ``to_be_revoked`` now."""
        for partition, owned in self.partitions.keep(member, to_be_revoked):
            owned.read = owned.read or partition in self._unflushed  # see release_unread
            self.events.add("assigned", partition, owned.generation)

    def complete_revoke(
        self,
        member: int,
        partitions: Iterable[TopicPartition],
        ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """The partitions were released to the group; ``ends``: their end offsets, where known."""
        for partition, owned in self._pop(member, partitions):
            self.positioning.hand_over(partition, owned.generation, ends.get(partition))
            self.events.add("revoked", partition, owned.generation)

    def lose(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are lost, without a hand-over (invariant 3)."""
        for partition, owned in self._pop(member, partitions):
            self.events.add("lost", partition, owned.generation)
            self.batches.forget_request(partition)

    def _pop(
        self, member: int, partitions: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        for partition, owned in self.partitions.pop(member, partitions):
            self.commits.forget(partition)
            if owned.read:
                self._unflushed.discard(partition)
            yield partition, owned

    def end(self) -> list[RebalanceEvent]:
        """The members have left; returns the events that the query's next members must report.

        These are the events that wait for a batch, plus a loss for each owned partition: others may
        have read it since, and no batch reported its revoke request first.
        """
        for member in {owned.member for owned in self.partitions.all().values()}:
            owned = [p for p, own in self.partitions.all().items() if own.member == member]
            self.lose(member, owned)
        return self.events.untold()

    def begin_after(self, events: Iterable[RebalanceEvent]) -> None:
        """Take over the unreported events of the previous members; call after :meth:`restore`."""
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
        whole: bool = False,
    ) -> dict[TopicPartition, OffsetRange]:
        """Record the ranges that are still allowed now, and return only those (invariant 1).

        The last step of planning: it drops partitions that changed during the planner's I/O.
        ``batches`` has the parts of gaps that were allowed.

        Parameters
        ----------
        certain : callable
            Whether this member's membership is certain right now (its lease).
        whole : bool
            Whether the ranges are recorded all or none: with an order among partitions, the rest
            of a batch would overtake the dropped ranges.
        """
        owned, revoking = self.partitions.all(), self.partitions.revoking()
        certain = cache(certain)

        def allowed(partition: TopicPartition) -> OwnedPartition | None:
            own = owned.get(partition)
            may = own is not None and partition not in revoking and certain(own.member)
            return own if may else None

        ranges = {
            partition: handed
            for partition, handed in planned.items()
            if (own := allowed(partition)) is not None and own.position == handed.start
        }
        if whole and len(ranges) < len(planned):
            ranges = {}
        for partition, handed in ranges.items():
            own = owned[partition]
            own.position, own.read = handed.end, True
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
        """The ranges that are handed out, unproven and still owned: one for each partition.

        Excludes offsets below the start of the live position: see :meth:`unproven_gaps`.
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
        """The gaps of owned partitions that unproven batches read, below the live positions."""
        owned = self.partitions.all()
        under_way = {p: self.gaps.under_way(p) for p in self.gaps.all_unproven() if p in owned}
        return {p: found for p, found in under_way.items() if found}

    def gaps_left(self) -> dict[TopicPartition, Sequence[Gap]]:
        """The gaps that a restart must read: unread ones if owned, else all unproven ones."""
        owned, unread = self.partitions.all(), self.gaps.all_unread()
        left = {
            p: unread.get(p, ()) if p in owned else found
            for p, found in self.gaps.all_unproven().items()
        }
        return {p: found for p, found in left.items() if found}

    def plannable_gaps(self) -> dict[TopicPartition, Sequence[Gap]]:
        """The gaps that may be read now, by partition."""
        owned, revoking = self.partitions.all(), self.partitions.revoking()
        return {
            p: tuple(found)
            for p, found in self.gaps.all_unread().items()
            if p in owned and owned[p].position is not None and p not in revoking
        }

    def take_events(self) -> list[RebalanceEvent]:
        """The events for the rows of the batch being planned."""
        events, owned = self.events.take(), self.partitions.all()
        asked = [e.partition for e in events if e.event == "revoke_requested"]
        self.batches.request_revokes([p for p in asked if p in owned])
        return events

    # -- proof ------------------------------------------------------------------------------------

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        gaps: Mapping[TopicPartition, Sequence[Gap]] | None = None,
    ) -> None:
        """Take over the positions that Spark's checkpoint proves, before anything is handed out.

        After :meth:`resume` this does nothing. The positions are then those of the resumed batch's
        end or older ones, and must not undo that a position was set back or deleted.

        ``gaps`` are still to be read below the live positions.
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
        """Spark reruns a logged batch: its ranges were handed out by a previous process.

        If a member gets one of its partitions, a revoke of that waits for the batch, and reading
        continues after it. ``gaps`` are still to be read after the batch.
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

    def prove(self, batches: Iterable[Batch] | None = None) -> None:
        """Spark has committed these, which ``batches`` has just let go; by default all it has."""
        if batches is None:
            batches = self.batches.prove_up_to(self.batches.number)
        for batch in batches:
            ranges = batch.ranges
            self.marks.prove((p, handed.end) for p, handed in ranges.items())
            self.gaps.prove(batch.catch_up)
            if self.gaps.any():  # the live position may have moved forward
                self.gaps.prove({p: (handed,) for p, handed in ranges.items()})
            self.commits.compare({**ranges, **batch.catch_up})

    def decide(self, batch: Batch) -> None:
        """The sink's transaction with this batch and its offsets is committed (invariant 4)."""
        left = self.commits.remaining_after(batch)
        self.prove(self.batches.prove(batch.end or {}))
        self.commits.acknowledge_remaining(left)

    def leave_out(self, batch: Batch, partitions: Collection[TopicPartition]) -> None:
        """A batch that is run again does not read these: others have read them, at least in part.

        They are read from where the group is, so nothing of the batch counts as handed out.
        """
        reads, owned = batch.all_reads(), self.partitions.all()
        for partition in partitions:
            batch.forget(partition)
            self.marks.drop(partition, reads[partition][0].start)
            self.gaps.drop(partition)
            if partition in owned and owned[partition].position is not None:
                self.partitions.look_up_again(partition)
        self.commits.compare(partitions)

    def drop(self, batch: Batch, is_known: bool) -> set[TopicPartition]:
        """This batch was not delivered, or, without ``is_known``, nobody knows.

        Where the query has owned a partition all the time, it reads again from the proven position
        on. Otherwise the start is looked up, and the group decides. Returns those that it owns.
        """
        self.batches.drop(batch)
        owned, kept = self.partitions.all(), set()
        for partition, reads in batch.all_reads().items():
            position = self.marks.drop(partition, reads[0].start)
            self.gaps.drop(partition)
            own = owned.get(partition)
            if own is None:
                continue
            kept.add(partition)
            if is_known and own.read and own.position is not None:
                own.position = position
            elif own.position is not None:
                self.partitions.look_up_again(partition)
        self.commits.compare(batch.all_reads())
        return kept

    # -- revokes ----------------------------------------------------------------------------------

    def undrained(self, partitions: Collection[TopicPartition]) -> set[TopicPartition]:
        """The given partitions whose revoke must not complete yet (invariant 2)."""
        return self.awaiting_batch(partitions) | {p for p in partitions if self.commits.is_open(p)}

    def awaiting_batch(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """The given partitions whose revoke waits for a batch: for its ranges, or for its row."""
        owned = self.partitions.all()
        # A partition that was never read has nothing to flush.
        requests = self.events.requests() | self.batches.requests()
        flushed_later = {p for p in requests if p in owned and owned[p].read}
        return {p for p in partitions if self.batches.have(p) or p in flushed_later}

    def release_unread(self) -> None:
        """Release partitions that this process has not read, without waiting for their rows.

        Their state stays unflushed: the member that gets or regets the partition must flush it. If
        another query gets it, it is simply a partition that did not come back after the restart.
        """
        for partition in self.partitions.revoking() & self._unflushed:
            if not self.batches.have(partition):
                self.partitions.all()[partition].read = False

    def waits_for_proof(self) -> bool:
        """Whether a revoke waits for Spark's commit of the batch under way."""
        requests = self.batches.requests()
        revoking = self.partitions.revoking()
        return any(self.batches.have(p) or p in requests for p in revoking)

    def waiting_revokes(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """The given partitions whose revoke waits for Spark to commit ranges handed out."""
        revoking = self.partitions.revoking()
        return sorted(p for p in partitions if p in revoking and self.batches.have(p))
