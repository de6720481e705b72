"""The offset that Spark logs, with everything needed to read its batch again.

An offset says more than how far the stream has come. It has the ranges that the batch ending there
reads, so that planning needs neither the previous offset nor the group; what the group said of
them, so that a replay gives the same rows; and the positions of all other partitions, so that a
restart needs no group. Every end is the *next* offset. ``offset_json`` has the form that Spark
logs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from ...consumer.offsets.commit_metadata import Remaining
from ...consumer.offsets.offset_set import Gap
from ...fetch.offset_range import OffsetRange


@dataclass(frozen=True, slots=True)
class MemberState:
    """One group member: its generation, and which of the batch's ranges it owns, in order."""

    generation: int
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class RebalanceEvent:
    """One row of ``includeRebalanceEvents``."""

    event: str  # assigned, revoke_requested, revoked, lost
    partition: TopicPartition
    generation: int


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """All positions after one batch, and the ranges that the batch reads."""

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    #: The ranges of earlier, unproven batches: after a kill, Spark may have forgotten them (async
    #: progress tracking), and then runs this batch from an offset before them.
    pending: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    #: Next offsets of all other partitions that the query has owned: up to where Spark has
    #: committed them.
    others: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    members: tuple[MemberState, ...] = ()  #: in reader order
    #: Partitions whose revoke was requested, and partitions that the query no longer owned, when
    #: the batch was planned; with a range here or without.
    revoking: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    events: tuple[RebalanceEvent, ...] = ()  #: in the order in which they happened
    run: str | None = None  #: that planned the batch: the prefix of its members' client ids
    #: Not None for a batch without ranges that only opens connections. The number makes its offset
    #: differ from the previous one.
    warm_up: int | None = None
    #: In a batch without ranges, while the query has read nothing: the partitions that start as
    #: ``startingOffsets`` says, which are those that the query found when it first started. All
    #: others are new since. None with ranges: then every partition that neither Spark nor the
    #: group knows is new.
    initial: frozenset[TopicPartition] | None = None
    #: Partitions whose positions are still those of Spark's own source. That source has no group,
    #: so what this group has committed for them is ignored.
    imported: frozenset[TopicPartition] = frozenset()
    #: What the batch reads below the live positions (KIP-333), what earlier, unproven batches read
    #: there, and what is left there after the batch; each in order.
    catch_up: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(
        default_factory=dict, hash=False
    )
    pending_catch_up: Mapping[TopicPartition, tuple[Gap, ...]] = field(
        default_factory=dict, hash=False
    )
    gaps: Mapping[TopicPartition, tuple[Gap, ...]] = field(default_factory=dict, hash=False)
    built_in: bool = False  #: whether Spark's own source made the offset
    #: The id of the query that planned the batch (``QueryIdentity``). None if an older release, or
    #: Spark's own source, made the offset.
    query: str | None = None
    batch: int | None = None  #: that query's number of the batch; it only grows
    #: The query's group, if ``groupIdPrefix`` names it; for those who read the progress.
    group: str | None = None
    #: With ``initial``: where the logs of those partitions ended when the query first started, if
    #: it is to start at their ends and has no position in them yet.
    first_ends: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    #: Of partitions on which the group was set back to a restored checkpoint: the token of the last
    #: set-back that the query has followed (``consumer/offsets/set_backs.py``).
    followed: Mapping[TopicPartition, str] = field(default_factory=dict, hash=False)

    #: Whether transactions of the query's sink decide its batches: the group has what it wrote.
    by_sink: bool = False

    def before_batch(self) -> StreamOffset:
        """Return the positions and gaps before the batch that ends here, which was not delivered.

        Batches before it count as delivered.
        """
        positions = {**self.positions(), **{p: r.start for p, r in self.ranges.items()}}
        gaps = {
            p: Remaining.of(
                [
                    *self.gaps.get(p, ()),
                    *((one.start, one.end) for one in self.catch_up.get(p, ())),
                ],
                positions[p],
            ).gaps
            for p in {*self.gaps, *self.catch_up}
        }
        return replace(
            self,
            ranges={},
            pending={},
            catch_up={},
            pending_catch_up={},
            others=positions,
            gaps=gaps,
        )

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next live offset of every partition that this offset knows."""
        return {
            **self.others,
            **{p: r.end for p, r in self.pending.items()},
            **{p: r.end for p, r in self.ranges.items()},
        }

    def positions_before(self, later: StreamOffset) -> dict[TopicPartition, int]:
        """As :meth:`positions`, without those that had to be set back since, by the later offset.

        There the later batches read from a lower position on.
        """
        positions = self.positions()
        if self.followed == later.followed:
            return positions
        return {
            p: at for p, at in positions.items() if self.followed.get(p) == later.followed.get(p)
        }

    def lowest_positions(self) -> dict[TopicPartition, int]:
        """Like :meth:`positions`, but the first unread offset for a partition with gaps.

        Reading from there skips nothing, and repeats some records.
        """
        lowest = {p: gaps[0].start for p, gaps in self.gaps.items()}
        return {**self.positions(), **lowest}

    def lowest_found(self) -> dict[TopicPartition, int]:
        """Return the first offset in each partition's gaps that was not proven before."""
        found: dict[TopicPartition, int] = {}
        for fields in (self.catch_up, self.pending_catch_up, self.gaps):
            for p, pieces in fields.items():
                found[p] = min(pieces[0].start, found.get(p, pieces[0].start))
        return found

    @property
    def has_gaps(self) -> bool:
        """Whether anything below a live position is left, or was read."""
        return bool(self.catch_up or self.pending_catch_up or self.gaps)

    def catch_up_after(
        self, start: StreamOffset
    ) -> Mapping[TopicPartition, tuple[OffsetRange, ...]]:
        """Return what the batch from ``start`` to this offset reads below the live positions.

        Only ``catch_up``, unless ``start`` lies before batches that are pending here.
        """
        if not self.pending_catch_up:
            return self.catch_up
        read = {p: list(pieces) for p, pieces in self.catch_up.items()}
        known = start.positions_before(self)
        for partition, pieces in self.pending_catch_up.items():
            unread = Remaining.of(start.gaps.get(partition, ()), known.get(partition, 0))
            read.setdefault(partition, []).extend(
                OffsetRange(partition.topic, partition.partition, *gap)
                for piece in pieces
                for gap in unread.between(*piece)
            )
        return {p: tuple(sorted(pieces)) for p, pieces in read.items() if pieces}

    def reads(self) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """Return all that the batch reads of each partition, in order."""
        reads = {p: tuple(pieces) for p, pieces in self.catch_up.items()}
        for partition, live in self.ranges.items():
            reads[partition] = (*reads.get(partition, ()), live)
        return reads

    def ranges_after(self, start: StreamOffset) -> Mapping[TopicPartition, OffsetRange]:
        """Return what the batch from ``start`` to this offset reads.

        Only ``ranges``, unless ``start`` lies before batches that are pending here. A pending range
        that does not continue into the batch's own was given up (``failOnDataLoss=false``).
        """
        if self.built_in:
            return self._after_built_in(start)
        if not self.pending:
            return self.ranges
        known, ranges = start.positions_before(self), dict(self.ranges)
        for partition, pending in self.pending.items():
            begin = max(pending.start, known.get(partition, pending.start))
            own = ranges.get(partition)
            if begin < pending.end and (own is None or own.start == pending.end):
                ranges[partition] = replace(pending, start=begin, end=(own or pending).end)
        return ranges

    def _after_built_in(self, start: StreamOffset) -> dict[TopicPartition, OffsetRange]:
        """As Spark's own source does: a partition not in ``start`` is new, and read from 0."""
        known = start.positions()
        return {
            p: OffsetRange(p.topic, p.partition, begin, end)
            for p, end in self.others.items()
            if (begin := known.get(p, 0)) < end
        }


#: Where a query without a checkpoint starts. Constant, because Spark does not log it, and asks a
#: new process for it when it replays the first batch.
INITIAL_OFFSET = StreamOffset()
