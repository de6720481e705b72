"""QueryMembership: the group members of one query, and the thread that keeps them going.

    planner thread (Spark's calls)          pump thread                 coordinator
      plan, prove            ──────►  one lock, decisions only
                                      poll_membership, commits  ◄────►  join, heartbeat, commit
      end offsets  ─────────────────────────────────────────────────►  (partition leaders)

The pump drives only the coordinator and the revocation lists: the members never fetch and keep no
positions. It applies the results under the lock. The planner records ranges under the same lock,
after all I/O, so that a release and a new range can never cross.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from ...consumer.pump import Pump
from ...fetch.offset_range import OffsetRange
from ..offsets.query_identity import QueryIdentity
from ..offsets.stream_offset import StreamOffset
from .batch_proofs import BatchProofs, OverdueBatch
from .batch_state import (
    BatchState,
    Gaps,
    LeftBehind,
    offset_of_positions,
    state_now,
    state_of_batch,
)
from .batches.batch import NOTHING, CaughtUp
from .catch_up import CatchUp
from .clients.query_member import QueryMember
from .clients.query_members import QueryMembers, partitions_of
from .clients.query_part import QueryCore
from .group_commits import STOP_TIMEOUT_S, GroupCommits
from .logs.deletion_watch import DeletionWatch
from .logs.log_ends import LogEnds
from .logs.record_times import RecordTimes
from .others.coverage import Coverage
from .others.foreign_ranges import ForeignRanges
from .others.joining import Joining
from .others.known_to_group import KnownToGroup
from .owned.deleted_partitions import Left
from .owned.own_commits import OwnCommits
from .query_state import QueryState
from .sink_batches import SinkBatches
from .starts.first_ends import FirstEnds
from .starts.start_lookup import StartLookup

if TYPE_CHECKING:
    from ..options.source_options import SourceOptions

log = logging.getLogger(__name__)

#: The pump polls every member this often (1 % of a core). While something waits for an
#: acknowledgement, which takes 3 to 8 ms, it uses the eager tick.
_TICK_S = 0.02
_EAGER_TICK_S = 0.005

#: How long after a change in the group the pump may use the eager tick to see the next one.
_SETTLING_S = 5.0

#: Positions that no offset has yet get a batch of their own when nothing else has happened for this
#: long. Any sooner, the batch could delay records that are about to come.
_LOG_POSITIONS_AFTER_S = 1.0


class QueryMembership:
    """The ``readers`` members of one query run.

    ``client_id`` is the prefix of their client ids, the run's name. The identity is the query's,
    which outlives the run; by default a new one.
    """

    def __init__(
        self, options: SourceOptions, client_id: str, identity: QueryIdentity | None = None
    ) -> None:
        self._options = options
        self._may_join = False
        self._is_restored = False  # whether the checkpoint's state is taken over
        self._pump = Pump(
            self._tick,
            name=f"membership-{options.group_id}",
            what=f"group {options.group_id}: the membership",
            begin=self._begin,
            finish=lambda: self.commits.finish(),
            close=lambda: self._members.close(),
        )
        identity = identity or QueryIdentity()
        in_order = options.catch_up is None
        self._state = QueryState(
            options, OwnCommits(identity, client_id, options.follows_checkpoint, in_order)
        )
        self._members = QueryMembers(options, client_id, self._state, self._pump)
        self._core = core = QueryCore(options, self._state, self._members, self._pump)
        self._known_to_group = KnownToGroup(core)
        self.joining = Joining(core)
        self.log_ends = LogEnds(core)
        self.record_times = RecordTimes(core, self.log_ends)
        self.deletions = DeletionWatch(core)
        self._start_lookup = StartLookup(core, self.deletions, identity, self.joining)
        self.coverage = Coverage(core, self.log_ends)
        self.foreign_ranges = ForeignRanges(core)
        self.catch_up = CatchUp(core, self.log_ends)
        self.proofs = BatchProofs(core)
        self.commits = GroupCommits(core, self.proofs, self.deletions)
        self.sink_batches = SinkBatches(core, self.proofs, client_id)
        self._overdue_batch = OverdueBatch(core, self.proofs, self.foreign_ranges)

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the members in the pump; idempotent. They join once :meth:`join` is called."""
        self._pump.start()

    def join(self) -> None:
        """Let the members join the group; every trigger calls it, so only the first call acts."""
        if not self._may_join:
            self._may_join = True
            self._pump.wake()

    def leave(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """As :meth:`stop`, but without waiting; idempotent."""
        self._pump.leave(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Commit proven offsets, leave the group, close; idempotent, at most ``timeout_s``.

        ``commits.uncommitted()`` then returns the partitions that it could not commit.
        """
        if not self._pump.stop(timeout_s):
            log.warning("group %s: stopped without leaving in time", self._options.group_id)

    def left_behind(self) -> LeftBehind:
        """After :meth:`stop`: the state that the query's next members continue with."""
        with self._state as state:
            assignment = state.assignment
            return LeftBehind(
                untold=assignment.end(),
                known=assignment.marks.known(),
                heard=assignment.marks.heard(),
                gaps=dict(assignment.gaps.all_unread()),
            )

    def go_on(self, before: LeftBehind) -> None:
        """Take over the previous members' state; call after :meth:`restore`."""
        with self._state as state:
            state.assignment.begin_after(before.untold)
            state.assignment.commits.acknowledge(before.heard)

    def raise_failure(self) -> None:
        """Raise the error that ended the pump: the next planner call reports background errors."""
        self._pump.raise_failure()

    # -- the planner's calls ----------------------------------------------------------------------

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        initial: frozenset[TopicPartition] | None = None,
        imported: Collection[TopicPartition] = (),
        gaps: Gaps | None = None,
        first_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    ) -> None:
        """Take over these fields of Spark's start offset; see :class:`StreamOffset`."""
        with self._state as state:
            state.starts.restore(positions, initial, imported, first_ends)
            state.assignment.restore(positions, gaps)
        self._look_for_absent()

    def resume(
        self,
        proven: Mapping[TopicPartition, int],
        ranges: Mapping[TopicPartition, OffsetRange],
        end: dict[str, Any],
        imported: Collection[TopicPartition] = (),
        catch_up: CaughtUp = NOTHING,
        gaps: Gaps | None = None,
    ) -> None:
        """Spark reruns a batch of its log, before the members join.

        It starts at the ``proven`` positions, reads ``ranges`` and ``catch_up``, and leaves
        ``gaps``. ``end`` is the offset where it ends, ``imported`` the field of that offset.
        """
        with self._state as state:
            state.starts.resume(imported)
            state.assignment.restore(proven)
            state.assignment.resume(ranges, catch_up, gaps)
            state.assignment.batches.resume(end)
        self._look_for_absent()

    def follow(self, followed: Mapping[TopicPartition, str]) -> None:
        """Take over ``StreamOffset.followed``; call it before the positions are taken over."""
        with self._state as state:
            state.own_commits.restore(followed)

    def follow_group(self) -> None:
        """The query's sink decides its batches: the group wins over the checkpoint.

        Call it before the positions are taken over.
        """
        with self._state as state:
            state.own_commits.by_sink = True

    def _look_for_absent(self) -> None:
        self._is_restored = True
        self._pump.wake()  # check before a topic is created again under a deleted one's name

    def initial_partitions(self) -> frozenset[TopicPartition]:
        """``StreamOffset.initial`` for a batch without ranges; may wait for the members."""
        with self._state as state:
            knows = state.starts.has_read or state.starts.knows_initial
        if not knows:
            self._members.client()
        with self._state as state:
            return state.starts.log_initial()

    def first_ends(self, known: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """``StreamOffset.first_ends`` of an offset that has positions for the known partitions."""
        with self._state as state:
            return {p: end for p, end in state.starts.log_first_ends().items() if p not in known}

    def wants_log(self, at_once: bool) -> bool:
        """Whether a batch without records is due, to log where partitions start.

        Spark's log must have the start before the first record is read, because the group can
        lose it. The same holds for gaps that changed because Kafka deleted records, or because
        another query has read some. ``at_once``: there is no later trigger.
        """
        quiet = at_once or self._state.unchanged_s() >= _LOG_POSITIONS_AFTER_S
        with self._state as state:
            assignment = state.assignment
            unlogged = assignment.marks.are_unlogged() or assignment.gaps.are_unlogged()
            return quiet and (unlogged or state.starts.is_unlogged)

    def plannable(self) -> dict[TopicPartition, int]:
        """Positions of the partitions that may get a new range."""
        with self._state as state:
            return state.assignment.partitions.plannable()

    def unpositioned(self) -> list[TopicPartition]:
        """Newly assigned partitions whose start is not known yet."""
        return self._state.unpositioned()

    def wait_for_change(self, seconds: float = _TICK_S) -> None:
        """Wait a moment for the group or new metadata; raises the membership's error."""
        self._members.client().request_metadata()
        self._pump.wait(seconds)
        self.raise_failure()

    def known_end_offsets(self) -> dict[TopicPartition, int]:
        """The last answered end offset of every owned partition, without a request."""
        with self._state as state:
            owned = state.assignment.partitions.all().keys() - self.deletions.deleted
        return self.log_ends.known_end_offsets(owned)

    def hand_out(
        self, planned: Mapping[TopicPartition, OffsetRange], catch_up: CaughtUp = NOTHING
    ) -> BatchState | None:
        """The last step of planning, under the lock: record the ranges that are still certain.

        With ``maxTaskIdleMs`` all or none of them. None if nothing is worth a batch.
        """
        with self._state as state:
            assignment = state.assignment
            pending, pending_catch_up = assignment.unproven(), assignment.unproven_gaps()
            ranges = assignment.hand_out(
                planned,
                lambda member: self._members[member].may_hand_out(),
                catch_up,
                whole=self._options.event_time is not None,
            )
            caught_up = assignment.batches.caught_up()
            if not ranges and not caught_up and not assignment.events.wait():
                return None
            if ranges or caught_up:
                state.starts.read()
            lost = assignment.events.take_lost()
            offset = offset_of_positions(state, ranges, pending, caught_up, pending_catch_up)
            return state_of_batch(state, offset, lost, assignment.take_events())

    def state_of(self, ranges: Collection[TopicPartition]) -> BatchState:
        """The current state, for these partitions of a batch."""
        with self._state as state:
            return state_now(state, ranges)

    def offset_without_ranges(self) -> StreamOffset:
        """The offset of a batch that reads nothing."""
        with self._state as state:
            pending, under_way = state.assignment.unproven(), state.assignment.unproven_gaps()
            return offset_of_positions(state, pending=pending, pending_catch_up=under_way)

    # -- the pump ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        self.proofs.begin()
        self._members.build_first()
        with self._state as state:
            cluster = self._members.cluster_of(0)
            there = partitions_of(self._options, cluster)
            state.starts.found(there, cluster.topic_ids({p.topic for p in there}))
        first_ends = FirstEnds(self._core)
        self._members.build_others()
        first_ends.note()
        self._members.are_built()
        self._known_to_group.find_new()

    def _is_settling(self) -> bool:
        """Whether members are joining or partitions moving, so that more changes are likely."""
        if self._state.unchanged_s() >= _SETTLING_S:
            return False
        return bool(self._state.unpositioned()) or not self._members.have_settled()

    def _tick(self) -> float | None:
        """One round of the pump (see ``Pump``); polls the members once they may join."""
        looked = not self._is_restored or self.deletions.find_absent()
        if not self._may_join:
            return None if looked else _TICK_S
        self._overdue_batch.look()
        stands_aside = self._overdue_batch.stands_aside
        if not stands_aside:
            for index, member in enumerate(self._members):
                self._apply(index, member)
            heard_at = min(member.heard_at for member in self._members)
            with self._state as state:
                state.last_change.heard(heard_at)
        self.commits.move()
        self.commits.say()
        self.deletions.find()
        self._known_to_group.find_committed()
        self._start_lookup.find()
        self.proofs.look_if_awaited(stands_aside)
        waiting = self.commits.commit()
        self.deletions.forget()
        self.foreign_ranges.look()
        return _EAGER_TICK_S if waiting or self._is_settling() else _TICK_S

    def _apply(self, index: int, member: QueryMember) -> None:
        """Poll one member and apply the result."""
        result = member.poll_membership()
        with self._state as state:
            assignment = state.assignment
            if result.lost or result.revoked or result.assigned:
                state.last_change.note()
            overdue = assignment.waiting_revokes(result.lost)
            owned = assignment.partitions.all()
            gone = {p for p in result.revoked | result.lost if p in owned}
            gone = {p for p in gone if owned[p].member == index}
            # One assigned here while another of our members still has it: it is in a new topic of
            # that name, so it is another partition.
            gone |= {p for p in result.assigned if p in owned and owned[p].member != index}
            topic_ids = state.starts.started_in(gone)
            left = {
                p: Left(owned[p].position, topic_ids.get(p))
                for p in gone
                if owned[p].position is not None
            }
            assignment.lose(index, result.lost)
            if self._options.partitions is not None:  # with assign, a lost one was deleted
                left = {}
                state.deleted |= assignment.positioning.delete(result.lost)
                state.starts.created_anew(result.lost)
            ends = self.log_ends.told() if result.revoked else {}
            assignment.complete_revoke(index, result.revoked, ends)
            assignment.assign(index, member.generation, result.assigned)
            if self._options.partitions is not None:  # no other client has committed any of them
                anew = state.starts.are_created_anew(result.assigned)
                assignment.partitions.created_while_owned(anew)
            state.starts.assigned(result.assigned)
            if self._options.event_time is not None:  # otherwise nothing takes them
                state.gained |= result.assigned
            if state.generations[index : index + 1] != (member.generation,):
                state.generations = tuple(m.generation for m in self._members)
                state.last_change.note()
                assignment.partitions.new_generation(index, member.generation)
            assignment.keep(index, result.to_be_revoked)
            assignment.request_revoke(result.to_be_revoked)
            undrained = assignment.undrained(result.to_be_revoked)
        member.delay_revoke(undrained)
        if left:
            self.deletions.left(left)
        if overdue and member.is_stable:  # not if it was fenced, which puts it out of the group
            self._overdue_batch.advise(overdue)
