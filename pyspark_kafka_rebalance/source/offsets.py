"""StreamOffset: where the stream stands, and from which a batch can be read again.

An offset says more than how far the stream has come. It names the ranges that the batch ending in
it reads, so that planning needs neither the offset before nor the group; what the group said of
them, so that a replay gives the same rows; and where all other partitions stand, so that a restart
needs no group. Every number that ends something is the *next* offset. As Spark logs it:
``offset_json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from kafka.structs import TopicPartition

from ..consumer.gaps import Gap
from ..consumer.remaining import Remaining
from ..fetch.offset_range import OffsetRange


@dataclass(frozen=True, slots=True)
class MemberState:
    """Which of the batch's ranges one group member owns, in order, and its generation."""

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
    """Where the stream stands after one batch, and what that batch reads.

    Attributes
    ----------
    ranges : Mapping[TopicPartition, OffsetRange]
        What the batch reads.
    pending : Mapping[TopicPartition, OffsetRange]
        What batches before this one read that are not proven: Spark may have forgotten them after
        a kill (async progress tracking) and then runs this batch from an offset before them.
    others : Mapping[TopicPartition, int]
        Next offsets of the partitions that neither ``ranges`` nor ``pending`` has: of all that the
        query has owned, up to where Spark has committed them.
    members : tuple of MemberState
        The query's members, in reader order.
    revoking, lost : frozenset of TopicPartition
        Whose revoke was requested, which were no longer the query's, when the batch was planned;
        with a range here or without.
    events : tuple of RebalanceEvent
        The rows of ``includeRebalanceEvents``, in the order in which they happened.
    run : str or None
        Prefix of the client ids of the members of the run that planned the batch.
    warm_up : int or None
        Not None: a batch without ranges that only opens connections. The number makes it differ.
    initial : frozenset of TopicPartition or None
        Of a batch without ranges: the partitions that start as ``startingOffsets`` says, being
        those that the query found when it first began, as long as it has read nothing. All others
        are new since. None with ranges: then all that Spark and the group do not know is new.
    imported : frozenset of TopicPartition
        Whose positions are still those of Spark's own source, which knows of no group: what this
        group has committed for them does not count.
    catch_up : Mapping[TopicPartition, tuple of OffsetRange]
        What the batch reads below the live positions (KIP-333), in order.
    pending_catch_up : Mapping[TopicPartition, tuple of Gap]
        What batches before it read there that are not proven, as ``pending``.
    gaps : Mapping[TopicPartition, tuple of Gap]
        What is left there after it.
    built_in : bool
        Whether the offset itself is one of Spark's own source.
    """

    ranges: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    pending: Mapping[TopicPartition, OffsetRange] = field(default_factory=dict, hash=False)
    others: Mapping[TopicPartition, int] = field(default_factory=dict, hash=False)
    members: tuple[MemberState, ...] = ()
    revoking: frozenset[TopicPartition] = frozenset()
    lost: frozenset[TopicPartition] = frozenset()
    events: tuple[RebalanceEvent, ...] = ()
    run: str | None = None
    warm_up: int | None = None
    initial: frozenset[TopicPartition] | None = None
    imported: frozenset[TopicPartition] = frozenset()
    catch_up: Mapping[TopicPartition, tuple[OffsetRange, ...]] = field(
        default_factory=dict, hash=False
    )
    pending_catch_up: Mapping[TopicPartition, tuple[Gap, ...]] = field(
        default_factory=dict, hash=False
    )
    gaps: Mapping[TopicPartition, tuple[Gap, ...]] = field(default_factory=dict, hash=False)
    built_in: bool = False

    def positions(self) -> dict[TopicPartition, int]:
        """Return the next offset of every partition that this offset knows of; the live one."""
        return {
            **self.others,
            **{p: r.end for p, r in self.pending.items()},
            **{p: r.end for p, r in self.ranges.items()},
        }

    def lowest_positions(self) -> dict[TopicPartition, int]:
        """As :meth:`positions`; of a partition with gaps, the first offset that is left there.

        From there on nothing is left out, and some comes again.
        """
        lowest = {p: gaps[0].start for p, gaps in self.gaps.items()}
        return {**self.positions(), **lowest}

    def lowest_found(self) -> dict[TopicPartition, int]:
        """Of each partition with gaps, the first offset there that was not proven before."""
        found: dict[TopicPartition, int] = {}
        for fields in (self.catch_up, self.pending_catch_up, self.gaps):
            for p, pieces in fields.items():
                found[p] = min(pieces[0].start, found.get(p, pieces[0].start))
        return found

    @property
    def has_gaps(self) -> bool:
        """Whether anything lies below a live position, or was read there."""
        return bool(self.catch_up or self.pending_catch_up or self.gaps)

    def catch_up_after(
        self, start: StreamOffset
    ) -> Mapping[TopicPartition, tuple[OffsetRange, ...]]:
        """What the batch from ``start`` to this offset reads below the live positions.

        ``catch_up`` alone, unless ``start`` lies before batches that are pending here.
        """
        if not self.pending_catch_up:
            return self.catch_up
        read = {p: list(pieces) for p, pieces in self.catch_up.items()}
        known = start.positions()
        for partition, pieces in self.pending_catch_up.items():
            unread = Remaining.of(start.gaps.get(partition, ()), known.get(partition, 0))
            read.setdefault(partition, []).extend(
                OffsetRange(partition.topic, partition.partition, *gap)
                for piece in pieces
                for gap in unread.between(*piece)
            )
        return {p: tuple(sorted(pieces)) for p, pieces in read.items() if pieces}

    def reads(self) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """All that the batch reads of each partition, in order."""
        reads = {p: tuple(pieces) for p, pieces in self.catch_up.items()}
        for partition, live in self.ranges.items():
            reads[partition] = (*reads.get(partition, ()), live)
        return reads

    def ranges_after(self, start: StreamOffset) -> Mapping[TopicPartition, OffsetRange]:
        """What the batch from ``start`` to this offset reads.

        The ranges alone, unless ``start`` lies before batches that are pending here. What is
        pending and does not go on into the range was given up (``failOnDataLoss=false``).
        """
        if self.built_in:
            return self._after_built_in(start)
        if not self.pending:
            return self.ranges
        known, ranges = start.positions(), dict(self.ranges)
        for partition, pending in self.pending.items():
            begin = max(pending.start, known.get(partition, pending.start))
            own = ranges.get(partition)
            if begin < pending.end and (own is None or own.start == pending.end):
                ranges[partition] = replace(pending, start=begin, end=(own or pending).end)
        return ranges

    def _after_built_in(self, start: StreamOffset) -> dict[TopicPartition, OffsetRange]:
        """As Spark's own source does: what ``start`` does not have is new, and read as a whole."""
        known = start.positions()
        return {
            p: OffsetRange(p.topic, p.partition, begin, end)
            for p, end in self.others.items()
            if (begin := known.get(p, 0)) < end
        }


#: What a query without a checkpoint starts from. Constant: Spark does not log it, and asks a new
#: process for it when it replays the first batch.
INITIAL_OFFSET = StreamOffset()
