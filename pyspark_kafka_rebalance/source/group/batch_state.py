"""BatchState: the group's state for one batch, as written into the batch's offset and rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap
from ...fetch.offset_range import OffsetRange
from ..offsets.stream_offset import MemberState, RebalanceEvent, StreamOffset
from .batches.batch import NOTHING, CaughtUp
from .query_state import SharedState

Gaps = Mapping[TopicPartition, Sequence[Gap]]


@dataclass(frozen=True)
class BatchState:
    """The group's state for one batch.

    Attributes
    ----------
    generations : tuple of int
        The generation of each member, in the order of the readers.
    member_of : dict
        The member that owns each partition of the batch; a missing one is not owned any more.
    revoking, lost : frozenset of TopicPartition
        Partitions being revoked now; partitions lost since the previous batch was planned.
    positions : dict
        Proven positions of all partitions that this batch neither reads nor has pending.
    imported : frozenset of TopicPartition
        Partitions whose position comes from Spark's own source, and which this query has not owned
        yet.
    pending : dict
        The ranges that were handed out before this batch and are not proven.
    catch_up : mapping
        What this batch reads below the live positions.
    pending_catch_up : mapping
        What earlier, unproven batches read there.
    gaps : mapping
        What is left there after it.
    topic_ids : mapping
        The id of the topic in which each partition it reads was started, where known.
    """

    generations: tuple[int, ...]
    member_of: dict[TopicPartition, int]
    revoking: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    imported: frozenset[TopicPartition] = frozenset()
    pending: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    catch_up: CaughtUp = field(default_factory=dict)
    pending_catch_up: Gaps = field(default_factory=dict)
    gaps: Gaps = field(default_factory=dict)
    topic_ids: Mapping[TopicPartition, UUID] = field(default_factory=dict)

    def offset(
        self,
        run: str,
        initial: frozenset[TopicPartition] | None,
        ranges: Mapping[TopicPartition, OffsetRange] | None = None,
        events: Iterable[RebalanceEvent] = (),
    ) -> StreamOffset:
        """The offset where the batch ends; parameters as the attributes of :class:`StreamOffset`.

        Without ``ranges``, the offset names no members.
        """
        made = StreamOffset(
            pending=self.pending,
            others=self.positions,
            run=run,
            initial=initial,
            imported=self.imported,
            catch_up={p: tuple(pieces) for p, pieces in self.catch_up.items()},
            pending_catch_up={p: tuple(pieces) for p, pieces in self.pending_catch_up.items()},
            gaps={p: tuple(pieces) for p, pieces in self.gaps.items()},
        )
        if ranges is None:
            return made
        owned_by: list[list[TopicPartition]] = [[] for _ in self.generations]
        for partition, member in self.member_of.items():
            owned_by[member].append(partition)
        return replace(
            made,
            ranges=ranges,
            members=tuple(
                MemberState(generation, tuple(sorted(partitions)))
                for generation, partitions in zip(self.generations, owned_by, strict=True)
            ),
            revoking=self.revoking,
            lost=self.lost,
            events=tuple(events),
        )


def state_now(state: SharedState, ranges: Collection[TopicPartition]) -> BatchState:
    """The state that marks the rows of a batch that reads these partitions."""
    owned = state.assignment.partitions.all()
    return BatchState(
        generations=state.generations,
        member_of={p: own.member for p in ranges if (own := owned.get(p)) is not None},
        revoking=state.assignment.partitions.revoking(),
        lost=frozenset(),
        imported=state.starts.imported,
        topic_ids=state.starts.started_in(ranges),
    )


def state_for_offset(
    state: SharedState,
    ranges: Collection[TopicPartition],
    pending: Mapping[TopicPartition, OffsetRange],
    lost: Collection[TopicPartition] = (),
    catch_up: CaughtUp = NOTHING,
    pending_catch_up: Gaps | None = None,
) -> BatchState:
    """The state to write into the offset that is being made.

    Parameters
    ----------
    state : SharedState
        With the lock held.
    ranges : collection of TopicPartition
        The partitions that the batch reads.
    pending : Mapping[TopicPartition, OffsetRange]
        What was unproven before these ranges were handed out.
    lost : collection of TopicPartition
        Lost since the previous batch.
    catch_up : mapping
        What the batch reads below the live positions.
    pending_catch_up : mapping, optional
        What was unproven there before ``catch_up`` was handed out.
    """
    known = state.assignment.marks.log_positions()
    state.assignment.gaps.logged()
    return replace(
        state_now(state, {*ranges, *catch_up} if catch_up else ranges),
        lost=frozenset(lost),
        positions={p: known[p] for p in known.keys() - ranges - pending.keys()},
        pending=dict(pending),
        catch_up=catch_up,
        pending_catch_up=pending_catch_up or {},
        gaps=state.assignment.gaps_left(),
    )


class LeftBehind(NamedTuple):
    """What an abandoned run knew, for the run that continues the query.

    Attributes
    ----------
    untold : list of RebalanceEvent
        The event rows that it had not reported yet.
    known : dict
        The position at which each partition was to go on.
    heard : dict
        The group's committed offsets: if one is lower now, that log has become shorter.
    gaps : dict
        What is still to be read below those positions.
    """

    untold: list[RebalanceEvent]
    known: dict[TopicPartition, int]
    heard: dict[TopicPartition, int]
    gaps: Gaps
