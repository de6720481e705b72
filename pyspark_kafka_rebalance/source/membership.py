"""QueryMembership: the group members of one query, and the thread that keeps them going.

    planner thread (Spark's calls)          pump thread                 coordinator
      plan, prove            ──────►  one lock, decisions only
                                      poll_membership, commits  ◄────►  join, heartbeat, commit
      end offsets  ─────────────────────────────────────────────────►  (partition leaders)

The pump drives coordinator and revocation lists only: the members never fetch and keep no
positions. What it learns is applied under the lock; what the planner hands out is decided under
the same lock, after all I/O, so that a release and a new range can never cross.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..consumer.deferred import DeferredRevokeConsumer
from ..consumer.group_description import describe_group
from ..consumer.pump import Pump
from ..errors import KafkaRebalanceError, PartitionsLostError, names_of
from ..fetch.offset_range import OffsetRange
from .assignment import RebalanceEvent
from .batch_time import BatchTime, advice_on_overdue
from .clients import partitions_of
from .cluster_query import ask_cluster
from .commit_log_watch import CommitLogWatch
from .coverage import Coverage
from .deletion_watch import DeletionWatch
from .foreign_ranges import ForeignRanges
from .log_ends import LogEnds
from .query_members import QueryMembers
from .query_state import QueryState
from .start_lookup import StartLookup

if TYPE_CHECKING:
    from .options import SourceOptions

log = logging.getLogger(__name__)

#: The pump looks at every member this often (1 % of a core). While something waits for an
#: acknowledgement, which takes 3 to 8 ms, it looks as often as that.
_TICK_S = 0.02
_EAGER_TICK_S = 0.005

#: After a change in the group the pump looks as often for the next one, for so long.
_SETTLING_S = 5.0

#: Positions that no offset has are worth a batch of their own when nothing else has happened for
#: so long. Sooner, the batch might be in the way of records that are about to come.
_LOG_POSITIONS_AFTER_S = 1.0

#: Nothing new to read, and a batch whose end Spark may not have logged yet (async progress
#: tracking, which logs once a second by default): how often an empty batch makes Spark go on.
_ASK_FOR_COMMIT_S = 1.0

#: How long the commit log may take to say that a batch which seems to take too long is done.
_PROBE_S = 1.0

#: Spark does not wait for stop(); what it leaves undone is left to the session timeout. Who asks by
#: ``stop_gracefully`` waits, and may grant more.
STOP_TIMEOUT_S = 3.0


@dataclass(frozen=True)
class BatchState:
    """What the membership says of one batch.

    Attributes
    ----------
    generations : tuple of int
        The generation of each member, in the order of the readers.
    member_of : dict
        The member that owns each partition of the batch; what is missing is not owned any more.
    revoking, lost : frozenset of TopicPartition
        Being revoked now; lost since the batch before was planned.
    positions : dict
        Proven positions of all partitions that this batch neither reads nor has pending.
    imported : frozenset of TopicPartition
        Whose position Spark's own source has left, and which this query has not owned yet.
    pending : dict
        What was handed out before this batch and is not proven.
    """

    generations: tuple[int, ...]
    member_of: dict[TopicPartition, int]
    revoking: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    imported: frozenset[TopicPartition] = frozenset()
    pending: dict[TopicPartition, OffsetRange] = field(default_factory=dict)


class QueryMembership:
    """The ``readers`` members of one query run.

    Parameters
    ----------
    options : SourceOptions
        The source's options.
    client_id : str
        Prefix of the members' client ids.
    """

    def __init__(self, options: SourceOptions, client_id: str) -> None:
        self._options = options
        self._commit_log = (
            CommitLogWatch(options.checkpoint_location) if options.checkpoint_location else None
        )
        self._asked_at = 0.0
        self._moves: dict[TopicPartition, int] = {}
        self._may_join = False
        self._pump = Pump(
            self._tick,
            name=f"membership-{options.group_id}",
            what=f"group {options.group_id}: the membership",
            begin=self._begin,
            finish=self._commit_the_rest,
            close=lambda: self._members.close(),
        )
        self._state = QueryState(options)
        self._members = QueryMembers(options, client_id, self._state, self._pump)
        self._start_lookup = StartLookup(options, self._state, self._members, self._pump)
        self.log_ends = LogEnds(options, self._members, self._pump)
        self.deletions = DeletionWatch(options, self._state, self._members)
        self.coverage = Coverage(options, self._state, self._members, self.log_ends, self._pump)
        self.foreign_ranges = ForeignRanges(self._state, self._members, self._pump)
        limit_ms = options.max_batch_duration_ms
        self._batch_time = BatchTime(None if limit_ms is None else limit_ms / 1000)
        self._stands_aside = False  # out of the group until the batch under way is done
        self._advised = False

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the members in the pump; idempotent. They join when :meth:`join` allows it."""
        self._pump.start()

    def join(self) -> None:
        """Let the members join the group; every trigger calls it, so it wakes nobody twice."""
        if not self._may_join:
            self._may_join = True
            self._pump.wake()

    def has_others(self) -> bool:
        """Whether others are in the group, asked before our members join; True if nobody tells.

        Raises what ended the membership.
        """
        if self._options.partitions is not None:
            self._members.client()
            return False
        group_id = self._options.group_id
        try:
            group = ask_cluster(  # while the pump builds the members
                self._options,
                f"whether group {group_id!r} has members",
                lambda admin: describe_group(admin, group_id),
            )
        except KafkaRebalanceError as error:
            self._members.client()  # it says better what is wrong
            log.info("group %s: %s", group_id, error)
            return True
        self._members.client()
        return bool(group.members)

    def wait_until_positioned(
        self, until: Callable[[], bool], timeout_s: float, unchanged_s: float = 0.0
    ) -> None:
        """Wait until the members have joined and know where their partitions start.

        Ends early when a revoke waits for the next batch.

        Parameters
        ----------
        until : callable
            Ends the wait early as well.
        timeout_s : float
            After which it is not waited for any more.
        unchanged_s : float
            For how long nothing must have changed, unless nobody else can change anything.
        """
        deadline = time.monotonic() + timeout_s
        unchanged_s = unchanged_s if self._options.partitions is None else 0.0
        while not (
            self._members.have_settled()
            and not self._state.unpositioned()
            and self._state.unchanged_s() >= unchanged_s
        ):
            self.raise_failure()
            if until() or self._a_revoke_waits_for_a_batch() or time.monotonic() >= deadline:
                return
            self._pump.wait(_EAGER_TICK_S)

    def _a_revoke_waits_for_a_batch(self) -> bool:
        """Whether nothing settles before the next batch: a revoke waits for its row in that."""
        with self._state as state:
            waiting = state.assignment.undrained(state.assignment.revoking())
            return bool(waiting) and not state.assignment.commits()

    def wait_until_acknowledged(self) -> None:
        """Wait until the group has what is proven, or the time is up; for a run that ends now.

        Raises what ended the membership: a commit that is refused later would be in the log alone.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            self.raise_failure()
            if not self.has_open_commits():
                return
            time.sleep(_EAGER_TICK_S)

    def leave(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """As :meth:`stop`, without waiting for it; idempotent."""
        self._pump.leave(timeout_s)

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Commit what is proven, leave the group, close; idempotent, at most ``timeout_s``.

        :meth:`uncommitted` tells what it could not commit.
        """
        if not self._pump.stop(timeout_s):
            log.warning("group %s: stopped without leaving in time", self._options.group_id)

    def raise_failure(self) -> None:
        """Raise what ended the pump: background errors surface in the next planner call."""
        self._pump.raise_failure()

    # -- the planner's calls ----------------------------------------------------------------------

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        initial: frozenset[TopicPartition] | None = None,
        imported: Collection[TopicPartition] = (),
    ) -> None:
        """Of the offset that Spark starts this run with: positions, ``initial``, ``imported``."""
        with self._state as state:
            state.starts.restore(positions, initial, imported)
            state.assignment.restore(positions)

    def resume(
        self,
        proven: Mapping[TopicPartition, int],
        ranges: Mapping[TopicPartition, OffsetRange],
        end: dict[str, Any],
        imported: Collection[TopicPartition] = (),
    ) -> None:
        """Spark runs a batch of its log again, before the members join.

        Parameters
        ----------
        proven : Mapping[TopicPartition, int]
            Positions of the batches before it.
        ranges : Mapping[TopicPartition, OffsetRange]
            What it reads.
        end : dict
            The offset where it ends.
        imported : collection of TopicPartition
            Of that offset.
        """
        with self._state as state:
            state.starts.resume(imported)
            state.assignment.restore(proven)
            state.assignment.resume(ranges)
            state.open_batches.resume(end, state.assignment.batch)

    def initial_partitions(self) -> frozenset[TopicPartition]:
        """``StreamOffset.initial`` of a batch without ranges; waits for the members to be built."""
        with self._state as state:
            if state.starts.has_read:
                return frozenset()
            knows = state.starts.knows_initial
        if not knows:
            self._members.client()
        with self._state as state:
            return state.starts.initial

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether Spark was seen to track this query's progress asynchronously."""
        with self._state as state:
            return state.open_batches.progress_is_asynchronous

    def progress_is_synchronous(self) -> None:
        """The trigger is one with which Spark does not track its progress asynchronously."""
        with self._state as state:
            state.open_batches.progress_is_synchronous()

    def planned(self, offset: dict[str, Any]) -> None:
        """This offset goes to Spark as the end of the next batch."""
        with self._state as state:
            state.open_batches.add(offset, state.assignment.batch)

    def committed(self, offset: dict[str, Any]) -> None:
        """Spark's ``commit``: the batch that ends here is proven; the pump commits its positions.

        An offset of no open batch says nothing: it was proven before.
        """
        with self._state as state:
            self._prove(state, state.open_batches.commit(offset))

    def done(self, offset: dict[str, Any]) -> None:
        """By Spark's progress the batch that ends here is done, which proves it if it is logged."""
        with self._state as state:
            if not state.open_batches.progress_is_asynchronous:
                self._prove(state, state.open_batches.commit(offset))

    def begin_trigger(self, start: dict[str, Any]) -> None:
        """Spark plans the batch after ``start``: proves the batch before if that is logged.

        Raises
        ------
        KafkaRebalanceError
            It goes on from somewhere else than where the batch planned last ends.
        """
        with self._state as state:
            known = state.open_batches.progress_is_asynchronous
            self._prove(state, state.open_batches.begin_trigger(start))
            learned = state.open_batches.progress_is_asynchronous and not known
        if learned:
            log.info(
                "group %s: Spark tracks this query's progress asynchronously; offsets are "
                "committed when they are in its log",
                self._options.group_id,
            )

    def _prove(self, state: QueryState, batch: int | None) -> None:
        """Note, under the lock, that this batch is proven, if it is one."""
        if batch is not None:
            state.assignment.prove(batch)
            self._pump.wake()

    def wants_commit(self) -> bool:
        """Whether an empty batch is due, since only building one makes Spark call ``commit``."""
        now = time.monotonic()
        with self._state as state:
            unproven = state.assignment.has_unproven()
        if not unproven or now - self._asked_at < _ASK_FOR_COMMIT_S:
            return False
        self._asked_at = now
        return True

    def wants_log(self, at_once: bool) -> bool:
        """Whether a batch without records is due that logs where partitions start.

        Spark's log must know it before the first record does: the group may forget it.

        Parameters
        ----------
        at_once : bool
            Whether there is no later trigger.
        """
        with self._state as state:
            quiet_s = state.unchanged_s()
            return state.assignment.has_unlogged_positions() and (
                at_once or quiet_s >= _LOG_POSITIONS_AFTER_S
            )

    def waits_for_proof(self) -> bool:
        """Whether a batch with ranges is not proven."""
        with self._state as state:
            return state.assignment.oldest_unproven() is not None

    def uncommitted(self) -> list[TopicPartition]:
        """As ``QueryAssignment``'s; after :meth:`stop` the last word."""
        with self._state as state:
            return sorted(state.assignment.uncommitted())

    def has_open_commits(self) -> bool:
        """Whether the group lacks something that is proven."""
        with self._state as state:
            return bool(state.assignment.commits())

    def plannable(self) -> dict[TopicPartition, int]:
        """Positions of the partitions that may get a new range."""
        with self._state as state:
            return state.assignment.plannable()

    def unpositioned(self) -> list[TopicPartition]:
        """Partitions that were assigned just now, and whose start is still to be found out."""
        return self._state.unpositioned()

    def wait_for_change(self, seconds: float = _TICK_S) -> None:
        """Give the group or new metadata a moment; raises what ended the membership."""
        self._members.client().request_metadata()
        self._pump.wait(seconds)
        self.raise_failure()

    def known_end_offsets(self) -> dict[TopicPartition, int]:
        """The end offset of every owned partition as last answered, without asking again."""
        with self._state as state:
            owned = state.assignment.owned().keys() - self.deletions.deleted
        return self.log_ends.known_end_offsets(owned)

    def move_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on elsewhere after records were lost in Kafka (``failOnDataLoss=false``).

        Done by the pump, so that it cannot cross a commit of the old position.
        """
        with self._state:
            self._moves.update(positions)
        self._pump.wake()

    def hand_out(
        self, planned: Mapping[TopicPartition, OffsetRange]
    ) -> tuple[dict[TopicPartition, OffsetRange], list[RebalanceEvent], BatchState] | None:
        """The last step of planning, under the lock: what is still certain, recorded.

        Returns
        -------
        tuple or None
            The ranges, the rows of events, and the state to write into the offset; None when
            there is nothing worth a batch.
        """
        with self._state as state:
            pending = state.assignment.unproven()
            ranges = state.assignment.hand_out(
                planned, lambda member: self._members[member].may_hand_out()
            )
            if not ranges and not state.assignment.has_events():
                return None
            if ranges:
                state.starts.read()
            batch = self._batch_state(state, ranges, state.assignment.take_lost(), pending)
            return ranges, state.assignment.take_events(), batch

    def state_of(self, ranges: Collection[TopicPartition]) -> BatchState:
        """The state right now, for these partitions of a batch."""
        with self._state as state:
            return self._batch_state(state, ranges, ())

    def state_without_ranges(self) -> BatchState:
        """The state for a batch that reads nothing."""
        with self._state as state:
            return self._batch_state(state, (), (), state.assignment.unproven())

    def _batch_state(
        self,
        state: QueryState,
        ranges: Collection[TopicPartition],
        lost: Collection[TopicPartition],
        pending: Mapping[TopicPartition, OffsetRange] | None = None,
    ) -> BatchState:
        owned = state.assignment.owned()
        positions: dict[TopicPartition, int] = {}
        if pending is not None:  # the state of an offset that is being made
            known = state.assignment.log_positions().items()
            positions = {p: at for p, at in known if p not in ranges and p not in pending}
        return BatchState(
            generations=state.generations,
            member_of={p: owned[p].member for p in ranges if p in owned},
            revoking=frozenset(state.assignment.revoking()),
            lost=frozenset(lost),
            positions=positions,
            imported=state.starts.imported,
            pending=dict(pending or {}),
        )

    # -- the pump ---------------------------------------------------------------------------------

    def _begin(self) -> None:
        if self._commit_log is not None:
            self._commit_log.begin()
        self._members.build_first()
        with self._state as state:
            state.starts.found(partitions_of(self._options, self._members[0]))
        self._members.build_others()
        self._start_lookup.find_new_to_group()

    def _is_settling(self) -> bool:
        """Whether members join, or partitions move, and may go on any moment."""
        if self._state.unchanged_s() >= _SETTLING_S:
            return False
        return bool(self._state.unpositioned()) or not self._members.have_settled()

    def _tick(self) -> float | None:
        """One round, once the members may join; as ``Pump`` has it."""
        if not self._may_join:
            return None
        self._stand_aside_if_overdue()
        if not self._stands_aside:
            for index, member in enumerate(self._members):
                self._apply(index, member)
        self._move()
        self.deletions.find()
        self._start_lookup.find_committed()
        self._start_lookup.find()
        self._probe_commit_log()
        waiting = self._commit()
        self.deletions.forget()
        self.foreign_ranges.look()
        return _EAGER_TICK_S if waiting or self._is_settling() else _TICK_S

    def _stand_aside_if_overdue(self) -> None:
        """Leave the group while a batch takes longer than ``maxBatchDurationMs``.

        Until it is done: the members join again with their next poll. What they had is lost, so it
        is not committed; what of it comes back later was delivered by the batch.
        """
        limit_ms = self._options.max_batch_duration_ms
        if limit_ms is None:
            return
        waits = self.foreign_ranges.are_awaited
        with self._state as state:
            batch = None if waits else state.assignment.oldest_unproven()
            over = self._batch_time.is_over(batch, time.monotonic())
        if over and not self._stands_aside:
            self._probe(wait_s=_PROBE_S)  # it may be done, and Spark wait for its next trigger
            with self._state as state:
                over = state.assignment.oldest_unproven() == batch
        if over == self._stands_aside:
            return
        self._stands_aside = over
        if not over:
            log.info("group %s: the batch is done; joining again", self._options.group_id)
            return
        reason = f"a batch takes longer than maxBatchDurationMs={limit_ms}"
        with self._state as state:
            owned = sorted(state.assignment.owned())
        log.warning(
            "group %s: %s; leaving the group until it is done: %s",
            self._options.group_id,
            reason,
            names_of(owned),
        )
        for index, member in enumerate(self._members):
            with self._state as state:
                mine = [p for p, o in state.assignment.owned().items() if o.member == index]
                state.assignment.lose(index, mine)
                state.note_change()
            member.leave_until_polled(reason)

    def _apply(self, index: int, member: DeferredRevokeConsumer) -> None:
        """Poll one member and apply what happened to it."""
        result = member.poll_membership()
        with self._state as state:
            assignment = state.assignment
            if result.lost or result.revoked or result.assigned:
                state.note_change()
            overdue = assignment.waiting_revokes(result.lost)
            assignment.lose(index, result.lost)
            if self._options.partitions is not None:  # those are deleted
                assignment.delete(result.lost)
                state.starts.created_anew(result.lost)
            assignment.complete_revoke(index, result.revoked)
            assignment.assign(index, member.generation, result.assigned)
            if state.generations[index : index + 1] != (member.generation,):
                state.generations = tuple(m.generation for m in self._members)
                state.note_change()
                assignment.new_generation(index, member.generation)
            assignment.keep(index, result.to_be_revoked)
            assignment.request_revoke(result.to_be_revoked)
            undrained = assignment.undrained(result.to_be_revoked)
        member.delay_revoke(undrained)
        if gone := result.revoked | result.lost:
            self.deletions.left(gone)
        if overdue and member.is_stable and not self._advised:  # fenced, it is out of the group
            self._advised = True
            advice = advice_on_overdue(overdue, self._commit_log is not None)
            log.warning("group %s: %s", self._options.group_id, advice)

    def _move(self) -> None:
        """Put positions elsewhere, and forget the commits that were based on the old ones."""
        with self._state as state:
            moves, self._moves = self._moves, {}
            for partition, position in moves.items():
                owned = state.assignment.owned().get(partition)
                if owned is not None:
                    self._members[owned.member].forget_commits([partition])
                    state.assignment.move_to(partition, position)

    def _probe_commit_log(self) -> None:
        """While a revoke waits for its batch, look for the batch in the query's commit log."""
        with self._state as state:
            wanted = self._stands_aside or state.assignment.waits_for_proof()
        if wanted:
            self._probe()

    def _probe(self, wait_s: float | None = None) -> bool:
        """Look whether the batch planned last is in the commit log, which proves it."""
        with self._state as state:
            offset = state.open_batches.last_end
        if self._commit_log is None or offset is None:
            return False
        found = (
            self._commit_log.is_committed(offset)
            if wait_s is None
            else self._commit_log.wait_for_answer(offset, wait_s)
        )
        if found:
            with self._state as state:
                self._prove(state, state.open_batches.prove(offset))
        return found

    def _commit(self) -> bool:
        """Commit what is proven and note what is acknowledged; whether something is still open."""
        doubtful = self.deletions.in_doubt
        with self._state as state:
            commits = state.assignment.commits()
        for index, behind in commits.items():
            offsets = {p: offset for p, offset in behind.items() if p not in doubtful}
            member = self._members[index]
            try:
                member.commit_processed(offsets)
            except PartitionsLostError as error:
                log.info("not committed: %s", error)  # the next poll_membership tells of the loss
                continue
            self._note_acknowledged(index, offsets)
        return bool(commits)

    def _note_acknowledged(self, index: int, partitions: Collection[TopicPartition]) -> None:
        """What the coordinator has acknowledged to this member so far."""
        with self._state as state:
            for partition in partitions:
                acknowledged = self._members[index].acknowledged(partition)
                if acknowledged is not None:
                    state.assignment.acknowledge(partition, acknowledged)

    def _commit_the_rest(self) -> None:
        """What stop() can still do: the last batch if the commit log has it, then drain."""
        self._commit()
        # Half of it, so that the commit and leaving the group still have their turn.
        if self._probe(wait_s=self._left_to_leave_s()):
            self._commit()
        for index, member in enumerate(self._members):
            drained = member.drain((self._pump.left_s() - self._left_to_leave_s()) * 1000)
            with self._state as state:
                behind = state.assignment.commits().get(index, {})
            self._note_acknowledged(index, behind)
            if not drained:
                log.warning("group %s: stopped with commits open", self._options.group_id)
        self._ask_for_the_rest()

    def _left_to_leave_s(self) -> float:
        """What is kept back of the time to stop, so that leaving the group still has its turn."""
        return min(self._pump.left_s(), STOP_TIMEOUT_S) / 2

    def _ask_for_the_rest(self) -> None:
        """The group may have what it did not acknowledge to us.

        The answer was lost, or the partition, and its next owner has committed as much.
        """
        missing = self.uncommitted()
        if not missing:
            return
        try:
            timeout_ms = self._left_to_leave_s() * 1000
            committed = self._members[0].committed_offsets(missing, timeout_ms)
        except kafka_errors.KafkaError as error:
            log.info("group %s: offsets not known: %r", self._options.group_id, error)
            return
        with self._state as state:
            for partition, offset in committed.items():
                state.assignment.acknowledge(partition, offset)
