"""QueryAssignment: what one query owns, and how far each partition has come. Pure.

Each partition passes four marks, each at or behind the one before:

    handed out    some batch's range ends here
    proven        Spark has committed that batch, and has logged where it ends
    acknowledged  the group has accepted the commit

Invariants:
 1. A partition gets a new range only while it is owned, its start is known, and no revoke of it
    is requested; the range starts where the last one ended, whoever owned it in between.
 2. Only what is proven is committed, only while owned, and only forward.
 3. A revoke may complete only when all that was handed out of the partition is acknowledged, and
    Spark has committed the batch with its ``revoke_requested`` row, if such rows are wanted and
    anything was read since the assignment, or before a restart: Spark has kept its state.
 4. What is lost is not committed any more; its marks stay, for the case that it comes back.

Not thread-safe: the owner holds one lock around every call, and never over I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from kafka.structs import TopicPartition

from ..fetch.offset_range import OffsetRange


@dataclass
class OwnedPartition:
    """A partition that one of the query's members owns."""

    member: int
    generation: int
    position: int | None = None  # next offset to hand out; None until its start is known
    read: bool = False  # there may be something to flush: handed out since it was assigned


@dataclass(frozen=True)
class RebalanceEvent:
    """One row of ``includeRebalanceEvents``."""

    event: str  # assigned, revoke_requested, revoked, lost
    partition: TopicPartition
    generation: int


class QueryAssignment:
    """The partitions of all members of one query.

    Parameters
    ----------
    include_events : bool
        Whether events are kept for rows, and hold revokes back until their batch is committed.
    """

    def __init__(self, include_events: bool = False) -> None:
        self._include_events = include_events
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        self._handed_out: dict[TopicPartition, int] = {}
        # By the number of the batch, in order. There is more than one batch only while Spark tracks
        # its progress asynchronously.
        self._unproven: dict[int, dict[TopicPartition, OffsetRange]] = {}
        self._batch = 0  # the number of the batch planned last
        self._proven: dict[TopicPartition, int] = {}
        self._acknowledged: dict[TopicPartition, int] = {}
        # Where they end: the ranges of the last batch that had any and is proven.
        self._last_read: dict[TopicPartition, int] = {}
        # What the pump asks for all the time, in the order in which it came to be: with thousands
        # of partitions nearly all of them are in none of these.
        self._unpositioned: dict[TopicPartition, None] = {}
        self._revoking: dict[TopicPartition, None] = {}
        self._behind: dict[TopicPartition, None] = {}  # owned, proven, and not acknowledged
        # Read by the process before this one, whose state Spark has kept: not flushed so far.
        self._unflushed: set[TopicPartition] = set()
        self._unlogged = False  # a position was found that no offset has, or one is gone
        self._events: list[RebalanceEvent] = []  # not in a batch yet
        # In which batch that is not proven the row of the request is.
        self._unproven_requests: dict[TopicPartition, int] = {}
        self._lost: set[TopicPartition] = set()  # since the last batch was planned

    # -- what happens to the assignment -----------------------------------------------------------

    def assign(self, member: int, generation: int, partitions: Iterable[TopicPartition]) -> None:
        """The group gives partitions to a member; their start is still to be found out."""
        for partition in partitions:
            unflushed = partition in self._unflushed
            self._owned[partition] = OwnedPartition(member, generation, read=unflushed)
            self._unpositioned[partition] = None
            self._revoking.pop(partition, None)
            self._lost.discard(partition)
            self._compare(partition)
            self._record("assigned", partition, generation)

    def new_generation(self, member: int, generation: int) -> None:
        """A member joined a new generation and keeps what it has."""
        for owned in self._owned.values():
            if owned.member == member:
                owned.generation = generation

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
        if committed is not None and committed < self._acknowledged.get(partition, -1):
            self._forget_marks(partition)
        known = max(-1 if committed is None else committed, self._handed_out.get(partition, -1))
        start = otherwise if known < 0 else known
        self._unlogged |= self._handed_out.get(partition) != start
        self._owned[partition].position = start
        self._unpositioned.pop(partition, None)
        if committed is not None:
            self._acknowledged[partition] = committed
            if committed >= self._proven.get(partition, -1):
                self._proven[partition] = committed
        else:
            self._acknowledged.pop(partition, None)  # what was there has expired or was deleted
            if partition not in self._proven and not self._is_unproven(partition):
                # Nobody has committed anything: without this, "latest" would be another offset
                # for the next owner, and what is produced in between would be lost.
                self._proven[partition] = start
        self._handed_out[partition] = start
        self._compare(partition)
        return start

    def _forget_marks(self, partition: TopicPartition) -> None:
        """What was handed out, proven and committed of a log that is no more, or is read anew.

        Proven later, what was handed out would say that the partition ends there.
        """
        for marks in (self._handed_out, self._proven, self._acknowledged, self._last_read):
            marks.pop(partition, None)
        for ranges in self._unproven.values():
            ranges.pop(partition, None)

    def request_revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """No new range from now on."""
        for partition in partitions:
            owned = self._owned.get(partition)
            if owned is not None and partition not in self._revoking:
                self._revoking[partition] = None
                self._record("revoke_requested", partition, owned.generation)

    def keep(self, member: int, to_be_revoked: Collection[TopicPartition]) -> None:
        """The group took back the revoke of what the member owns and need not give up now."""
        for partition in list(self._revoking):
            owned = self._owned[partition]
            if owned.member == member and partition not in to_be_revoked:
                del self._revoking[partition]
                self._record("assigned", partition, owned.generation)

    def complete_revoke(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """Released to the group."""
        for partition, owned in self._pop_owned(member, partitions):
            self._record("revoked", partition, owned.generation)

    def lose(self, member: int, partitions: Iterable[TopicPartition]) -> None:
        """Gone without a hand-over (invariant 4)."""
        for partition, owned in self._pop_owned(member, partitions):
            self._lost.add(partition)
            self._unproven_requests.pop(partition, None)
            self._record("lost", partition, owned.generation)

    def move_to(self, partition: TopicPartition, position: int) -> None:
        """Go on at another position, because what lay between is gone from Kafka."""
        owned = self._owned.get(partition)
        if owned is not None and owned.position is not None:
            owned.position = position
            self._forget_marks(partition)
            self._handed_out[partition] = self._proven[partition] = position
            self._unlogged = True
            self._acknowledged[partition] = -1  # the group's offset must move as well
            self._compare(partition)

    def delete(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int | None]:
        """Deleted: nothing of them is read or committed any more, and a revoke waits for nothing.

        Owned are they until the group takes them back.

        Returns
        -------
        dict
            How far each was handed out; None where its start was not known.
        """
        read: dict[TopicPartition, int | None] = {}
        for partition in partitions:
            owned = self._owned.get(partition)
            read[partition] = self._handed_out.get(partition)
            if owned is not None:
                owned.position = None
            self._unpositioned.pop(partition, None)
            # Until an offset without it is logged, a restart would go on in what gets its name.
            self._unlogged |= partition in self._proven
            self._forget_marks(partition)
            self._compare(partition)
        return read

    def start_anew(self, partitions: Iterable[TopicPartition]) -> None:
        """Deleted partitions are there again; their start is to be found out."""
        for partition in partitions:
            if partition in self._owned and self._owned[partition].position is None:
                self._unpositioned[partition] = None

    def _pop_owned(
        self, member: int, partitions: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        """Take away what this member owns; another of our members may have it by now."""
        for partition in partitions:
            owned = self._owned.get(partition)
            if owned is not None and owned.member == member:
                self._unpositioned.pop(partition, None)
                self._revoking.pop(partition, None)
                self._behind.pop(partition, None)
                self._unflushed.discard(partition)
                yield partition, self._owned.pop(partition)

    # -- planning ---------------------------------------------------------------------------------

    def plannable(self) -> dict[TopicPartition, int]:
        """The positions of the partitions that may get a new range (invariant 1)."""
        return {
            partition: owned.position
            for partition, owned in self._owned.items()
            if owned.position is not None and partition not in self._revoking
        }

    def unpositioned(self) -> dict[int, list[TopicPartition]]:
        """Newly assigned partitions whose start is still to be found out, by member."""
        by_member: dict[int, list[TopicPartition]] = {}
        for partition in self._unpositioned:
            by_member.setdefault(self._owned[partition].member, []).append(partition)
        return by_member

    def hand_out(
        self, planned: Mapping[TopicPartition, OffsetRange], certain: Callable[[int], bool]
    ) -> dict[TopicPartition, OffsetRange]:
        """Record the ranges that are still allowed now, and return just those.

        The last step of planning: whatever changed during its I/O is left out.

        Parameters
        ----------
        planned : dict
            Ranges decided from an earlier :meth:`plannable`.
        certain : callable
            Whether the membership of this member is certain right now (its lease).
        """
        self._batch += 1
        positions = self.plannable()
        sure = {member: certain(member) for member in {o.member for o in self._owned.values()}}
        ranges = {
            partition: planned_range
            for partition, planned_range in planned.items()
            if positions.get(partition) == planned_range.start
            and sure[self._owned[partition].member]
        }
        for partition, handed in ranges.items():
            self._owned[partition].position = handed.end
            self._owned[partition].read = True
            self._handed_out[partition] = handed.end
        if ranges:
            self._unproven[self._batch] = dict(ranges)
        return ranges

    @property
    def batch(self) -> int:
        """The number of the batch planned last, in this process."""
        return self._batch

    def unproven(self) -> dict[TopicPartition, OffsetRange]:
        """What was handed out, is not proven, and still owned: one range for each partition."""
        found: dict[TopicPartition, OffsetRange] = {}
        for ranges in self._unproven.values():
            for partition, handed in ranges.items():
                before = found.get(partition)
                if before is not None and before.end == handed.start:
                    handed = replace(handed, start=before.start)
                if partition in self._owned:
                    found[partition] = handed
        return found

    def take_events(self) -> list[RebalanceEvent]:
        """The events for the rows of the batch being planned."""
        events, self._events = self._events, []
        requests = {e.partition for e in events if e.event == "revoke_requested"}
        self._unproven_requests.update(dict.fromkeys(requests & self._owned.keys(), self._batch))
        return events

    def has_events(self) -> bool:
        """Whether events wait for a batch."""
        return bool(self._events)

    def take_lost(self) -> set[TopicPartition]:
        """Lost since the last planned batch."""
        lost, self._lost = self._lost, set()
        return lost

    # -- proof and commit -------------------------------------------------------------------------

    def restore(self, positions: Mapping[TopicPartition, int]) -> None:
        """Positions that Spark's checkpoint proves, in a process that handed out none of them.

        After :meth:`resume` they say nothing new: the end of the batch that it was given, and what
        is older. Whatever has set a position back since, or deleted it, counts.
        """
        if self._batch:
            return
        self._unflushed |= positions.keys()
        for partition, position in positions.items():
            self._handed_out[partition] = max(position, self._handed_out.get(partition, -1))
            self._proven[partition] = max(position, self._proven.get(partition, -1))
            self._compare(partition)

    def resume(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """What a logged batch reads that Spark runs again: handed out, in a process before this.

        A revoke of what the members get of it waits for the batch, and reading goes on behind it.
        """
        self._batch += 1
        self._unproven[self._batch] = dict(ranges)
        self._unflushed |= ranges.keys()
        for partition, handed in ranges.items():
            self._handed_out[partition] = max(handed.end, self._handed_out.get(partition, -1))
            # Before the batch nothing is unread: what the group does not know is committed at once.
            self._proven[partition] = max(handed.start, self._proven.get(partition, -1))
            self._compare(partition)

    def prove(self, batch: int | None = None) -> None:
        """Spark has committed this batch, by default the one planned last, and all before it."""
        last = self._batch if batch is None else batch
        for number in [n for n in self._unproven if n <= last]:
            ranges = self._unproven.pop(number)
            self._last_read = {p: handed.end for p, handed in ranges.items()} or self._last_read
            for partition, handed in ranges.items():
                self._proven[partition] = max(handed.end, self._proven.get(partition, -1))
                self._compare(partition)
        for partition in [p for p, number in self._unproven_requests.items() if number <= last]:
            del self._unproven_requests[partition]

    def commits(self) -> dict[int, dict[TopicPartition, int]]:
        """By member, the offsets to commit: proven, not acknowledged, owned (invariant 2)."""
        by_member: dict[int, dict[TopicPartition, int]] = {}
        for partition in self._behind:
            owned = self._owned.get(partition)
            if owned is not None and owned.position is not None:
                by_member.setdefault(owned.member, {})[partition] = self._proven[partition]
        return by_member

    def acknowledge(self, partition: TopicPartition, offset: int) -> None:
        """The group's committed offset of the partition is now at least ``offset``."""
        self._acknowledged[partition] = max(offset, self._acknowledged.get(partition, -1))
        self._compare(partition)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The group's committed offset of the partition, as far as it is known."""
        return self._acknowledged.get(partition)

    def unheard_of(self) -> list[TopicPartition]:
        """Partitions that this query knows, and whose committed offset it does not."""
        return [p for p in self._handed_out if p not in self._acknowledged]

    def uncommitted(self) -> set[TopicPartition]:
        """Of which partitions the group is not known to have what this query has read.

        Counted are the last batch with ranges, the batches that are not proven, and what is owned.
        What an earlier batch read of a partition that was lost since is not: its next owner has
        repeated that by now, and no later stop changes it.
        """
        ends = dict(self._last_read)
        for ranges in self._unproven.values():
            ends.update({p: handed.end for p, handed in ranges.items()})
        missing = {p for p, end in ends.items() if end > self._acknowledged.get(p, -1)}
        # Of what was never read, only the start is to be committed.
        return missing | {p for p in self._behind if self._owned[p].read}

    def positions(self) -> Mapping[TopicPartition, int]:
        """What is proven of every partition that was ever owned; not to be changed."""
        return self._proven

    def log_positions(self) -> Mapping[TopicPartition, int]:
        """As :meth:`positions`, which go into the offset that is being made."""
        self._unlogged = False
        return self._proven

    def has_unlogged_positions(self) -> bool:
        """Whether the last offset does not have where partitions stand, or has some deleted."""
        return self._unlogged

    def is_known(self, partition: TopicPartition) -> bool:
        """Whether this query has come to a position in the partition, in this run or before."""
        return partition in self._handed_out

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Partitions are gone from Kafka for good; what is owned, or not proven, stays."""
        for partition in partitions:
            if partition not in self._owned and not self._is_unproven(partition):
                self._unlogged |= partition in self._proven
                self._forget_marks(partition)

    def _compare(self, partition: TopicPartition) -> None:
        """After a change of what is owned, proven or acknowledged."""
        behind = self._proven.get(partition, -1) > self._acknowledged.get(partition, -1)
        if behind and partition in self._owned:
            self._behind[partition] = None
        else:
            self._behind.pop(partition, None)

    def undrained(self, partitions: Iterable[TopicPartition]) -> set[TopicPartition]:
        """Of these, the partitions whose revoke must not complete yet (invariant 3)."""
        requests = {e.partition for e in self._events if e.event == "revoke_requested"}
        requests |= self._unproven_requests.keys()
        # Of what was never read there is nothing to flush.
        waiting = {p for p in requests & self._owned.keys() if self._owned[p].read}
        return {
            partition
            for partition in partitions
            if self._is_unproven(partition) or partition in waiting or partition in self._behind
        }

    def waits_for_proof(self) -> bool:
        """Whether a revoke waits for Spark's commit of the batch under way."""
        return any(
            self._is_unproven(partition) or partition in self._unproven_requests
            for partition in self._revoking
        )

    def oldest_unproven(self) -> int | None:
        """The number of the oldest batch with ranges that is not proven."""
        return next(iter(self._unproven), None)

    def waiting_revokes(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Of these, those whose revoke waits for Spark's commit of what was handed out."""
        return sorted(p for p in partitions if p in self._revoking and self._is_unproven(p))

    def has_unproven(self) -> bool:
        """Whether anything that was handed out is not proven."""
        return bool(self._unproven or self._unproven_requests)

    def _is_unproven(self, partition: TopicPartition) -> bool:
        return any(partition in ranges for ranges in self._unproven.values())

    # -- what there is to see ---------------------------------------------------------------------

    def owned(self) -> dict[TopicPartition, OwnedPartition]:
        """The partitions owned now; not to be changed."""
        return self._owned

    def revoking(self) -> set[TopicPartition]:
        """The owned partitions whose revoke is requested."""
        return set(self._revoking)

    def _record(self, event: str, partition: TopicPartition, generation: int) -> None:
        if self._include_events:
            self._events.append(RebalanceEvent(event, partition, generation))
