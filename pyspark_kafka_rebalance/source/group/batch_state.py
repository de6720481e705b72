"""BatchState: the query in its group as a batch is planned, for the batch's offset and its rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias
from uuid import UUID

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap
from ...fetch.offset_range import OffsetRange
from ..offsets.stream_offset import MemberState, RebalanceEvent, StreamOffset
from .batches.batch import NOTHING, CaughtUp
from .query_state import SharedState

Gaps: TypeAlias = Mapping[TopicPartition, Sequence[Gap]]

_NO_RANGES: Mapping[TopicPartition, OffsetRange] = {}
_NO_GAPS: Gaps = {}


@dataclass(frozen=True)
class BatchState:
    """The offset that Spark logs for a batch, and the topic ids, which Spark does not log."""

    offset: StreamOffset  #: without the names and numbers that the run gives it
    topic_ids: Mapping[TopicPartition, UUID]  #: in which each was started, where known


def state_now(state: SharedState, partitions: Collection[TopicPartition]) -> BatchState:
    """The members that own these partitions now, for the rows of a batch that reads them.

    A partition that no member has is not owned any more.
    """
    owned = state.assignment.partitions.all()
    owned_by: list[list[TopicPartition]] = [[] for _ in state.generations]
    for partition in partitions:
        if (own := owned.get(partition)) is not None:
            owned_by[own.member].append(partition)
    offset = StreamOffset(
        members=tuple(
            MemberState(generation, tuple(sorted(found)))
            for generation, found in zip(state.generations, owned_by, strict=True)
        ),
        revoking=state.assignment.partitions.revoking(),
    )
    return BatchState(offset, state.starts.started_in(partitions))


def state_of_batch(
    state: SharedState,
    offset: StreamOffset,
    lost: Collection[TopicPartition],
    events: Iterable[RebalanceEvent],
) -> BatchState:
    """The state of the batch that was handed out, with all that its offset says of the group.

    ``offset`` comes from :func:`offset_of_positions`; ``lost`` were lost since the batch before.
    """
    reads = {*offset.ranges, *offset.catch_up} if offset.catch_up else offset.ranges
    now = state_now(state, reads)
    offset = replace(
        offset,
        members=now.offset.members,
        revoking=now.offset.revoking,
        lost=frozenset(lost),
        events=tuple(events),
    )
    return replace(now, offset=offset)


def offset_of_positions(
    state: SharedState,
    ranges: Mapping[TopicPartition, OffsetRange] = _NO_RANGES,
    pending: Mapping[TopicPartition, OffsetRange] = _NO_RANGES,
    catch_up: CaughtUp = NOTHING,
    pending_catch_up: Gaps = _NO_GAPS,
) -> StreamOffset:
    """The offset that is being made, with ranges, positions and gaps; it names no members.

    The positions and gaps count as logged from now on. ``pending`` and ``pending_catch_up`` were
    unproven before the batch was handed out.
    """
    known = state.assignment.marks.log_positions()
    state.assignment.gaps.logged()
    return StreamOffset(
        ranges=ranges,
        pending=pending,
        others={p: known[p] for p in known.keys() - ranges.keys() - pending.keys()},
        imported=state.starts.imported,
        catch_up={p: tuple(pieces) for p, pieces in catch_up.items()},
        pending_catch_up={p: tuple(pieces) for p, pieces in pending_catch_up.items()},
        gaps={p: tuple(pieces) for p, pieces in state.assignment.gaps_left().items()},
        followed=dict(state.own_commits.followed()),
        by_sink=state.own_commits.by_sink,
    )


class LeftBehind(NamedTuple):
    """The state of an abandoned run, for the run that continues the query."""

    untold: list[RebalanceEvent]  #: not reported yet
    known: dict[TopicPartition, int]  #: the positions at which partitions were to continue
    heard: dict[TopicPartition, int]  #: committed by the group: a log whose is lower now is shorter
    gaps: Gaps  #: still to be read below those positions
