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
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..consumer.deferred import DeferredRevokeConsumer
from ..errors import KafkaRebalanceError, PartitionsLostError, names_of
from ..fetch.offset_range import OffsetRange
from .assignment import QueryAssignment, RebalanceEvent
from .clients import build_clients, partitions_of
from .commit_log_watch import CommitLogWatch
from .log_sizes import log_sizes
from .open_batches import OpenBatches
from .starting_offsets import AtTimestamp, Start

if TYPE_CHECKING:
    from .options import SourceOptions

log = logging.getLogger(__name__)

#: The pump looks at every member this often (1 % of a core). While something waits for an
#: acknowledgement, which takes 3 to 8 ms, it looks as often as that.
_TICK_S = 0.02
_EAGER_TICK_S = 0.005

#: Idle triggers come every 10 ms; end offsets older than this are asked for again.
_END_OFFSETS_MAX_AGE_S = 0.03

#: Of ``maxBytesPerTrigger``: what an offset takes on average changes with the whole log only.
_BYTES_PER_OFFSET_MAX_AGE_S = 60.0

#: How long one look-up of committed or end offsets may take before the next tick tries again.
_LOOKUP_TIMEOUT_MS = 5_000

#: How often the group's committed offsets of lost partitions are looked at, to forget them.
_LOST_CHECK_S = 10.0

#: Nothing new to read, and a batch whose end Spark may not have logged yet (async progress
#: tracking, which logs once a second by default): how often an empty batch makes Spark go on.
_ASK_FOR_COMMIT_S = 1.0

#: Spark does not wait for stop(); what it leaves undone is left to the session timeout.
STOP_TIMEOUT_S = 3.0

#: For AvailableNow and Once, whose end is fixed at the start: how long the members may take to
#: join, and for how long nothing must have changed for the group to count as settled.
_SETTLE_TIMEOUT_S = 60.0
_SETTLED_FOR_S = 1.0


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
    unacknowledged : dict
        Proven positions without a range in this batch that the group does not have yet.
    pending : dict
        What was handed out before this batch and is not proven.
    """

    generations: tuple[int, ...]
    member_of: dict[TopicPartition, int]
    revoking: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]
    unacknowledged: dict[TopicPartition, int]
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
        self._client_id = client_id
        self._lock = threading.Lock()
        self._assignment = QueryAssignment(options.include_rebalance_events)
        self._commit_log = (
            CommitLogWatch(options.checkpoint_location) if options.checkpoint_location else None
        )
        self._members: list[DeferredRevokeConsumer] = []
        self._generations: list[int] = []
        self._open = OpenBatches()
        self._asked_at = 0.0
        self._initial: frozenset[TopicPartition] | None = None  # as the checkpoint says
        self._first_seen: frozenset[TopicPartition] = frozenset()
        self._has_read = False
        self._moves: dict[TopicPartition, int] = {}
        self._failure: BaseException | None = None
        self._pump: threading.Thread | None = None
        self._wake = threading.Event()
        self._built = threading.Event()
        self._may_join = threading.Event()
        self._stopping = threading.Event()
        self._stop_by = 0.0
        self._changed_at = time.monotonic()
        self._lost_checked_at = 0.0
        self._end_offsets: dict[TopicPartition, int] = {}
        self._end_offsets_at = 0.0
        self._known_end_offsets: dict[TopicPartition, int] = {}
        self._bytes_per_offset: dict[TopicPartition, float] = {}
        self._bytes_per_offset_at = 0.0

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Build the members in the pump; idempotent. They join when :meth:`join` allows it."""
        if self._pump is None:
            self._pump = threading.Thread(
                target=self._run, name=f"membership-{self._options.group_id}", daemon=True
            )
            self._pump.start()

    def join(self) -> None:
        """Let the members join the group; every trigger calls it, so it wakes nobody twice."""
        self._may_join.set()

    def wait_until_settled(self) -> None:
        """Wait until every member has joined and nothing changes any more, or the time is up.

        Raises what ended the membership.
        """
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        # Without a group nobody else can change anything.
        unchanged_s = _SETTLED_FOR_S if self._options.partitions is None else 0.0
        while time.monotonic() < deadline:
            self.raise_failure()
            with self._lock:
                settled = (
                    bool(self._generations)
                    and all(member.is_stable for member in self._members)
                    and not self._assignment.unpositioned()
                    and not self._assignment.revoking()
                    and time.monotonic() - self._changed_at > unchanged_s
                )
            if settled:
                return
            time.sleep(_TICK_S)
        log.warning(
            "group %s: not settled within %.0f s; reading what is assigned so far",
            self._options.group_id,
            _SETTLE_TIMEOUT_S,
        )

    def wait_until_acknowledged(self) -> None:
        """Wait until the group has what is proven, or the time is up; for a run that ends now.

        Raises what ended the membership: a commit that is refused later would be in the log alone.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            self.raise_failure()
            with self._lock:
                if not self._assignment.commits():
                    return
            time.sleep(_EAGER_TICK_S)

    def leave(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """As :meth:`stop`, without waiting for it; idempotent."""
        if not self._stopping.is_set():
            self._stop_by = time.monotonic() + timeout_s
            self._stopping.set()
            self._may_join.set()
            self._wake.set()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Commit what is proven, leave the group, close; idempotent, at most ``timeout_s``."""
        self.leave(timeout_s)
        if self._pump is not None and self._pump is not threading.current_thread():
            self._pump.join(timeout_s)
            if self._pump.is_alive():
                log.warning("group %s: stopped without leaving in time", self._options.group_id)

    def raise_failure(self) -> None:
        """Raise what ended the pump: background errors surface in the next planner call."""
        if self._failure is not None:
            raise self._failure

    # -- the planner's calls ----------------------------------------------------------------------

    def restore(
        self,
        positions: Mapping[TopicPartition, int],
        initial: frozenset[TopicPartition] | None = None,
    ) -> None:
        """Positions, and ``initial``, of the offset that Spark starts this run with."""
        with self._lock:
            self._initial = frozenset() if initial is None and positions else initial
            self._assignment.restore(positions)

    def initial_partitions(self) -> frozenset[TopicPartition]:
        """``StreamOffset.initial`` of a batch without ranges; waits for the members to be built."""
        if self._has_read:
            return frozenset()
        if self._initial is None:
            self._client()
        return self._starting_as_told()

    def progress_is_synchronous(self) -> None:
        """The trigger is one with which Spark does not track its progress asynchronously."""
        self._open.progress_is_synchronous()

    def planned(self, offset: dict[str, Any]) -> None:
        """This offset goes to Spark as the end of the next batch."""
        with self._lock:
            self._open.add(offset, self._assignment.batch)

    def committed(self, offset: dict[str, Any]) -> None:
        """Spark's ``commit``: the batch that ends here is proven; the pump commits its positions.

        An offset of no open batch says nothing: it was proven before.
        """
        with self._lock:
            self._prove(self._open.commit(offset))

    def done(self, offset: dict[str, Any]) -> None:
        """By Spark's progress the batch that ends here is done, which proves it if it is logged."""
        with self._lock:
            if not self._open.progress_is_asynchronous:
                self._prove(self._open.commit(offset))

    def begin_trigger(self, start: dict[str, Any]) -> None:
        """Spark plans the batch after ``start``: proves the batch before if that is logged.

        Raises
        ------
        KafkaRebalanceError
            It goes on from somewhere else than where the batch planned last ends.
        """
        with self._lock:
            known = self._open.progress_is_asynchronous
            self._prove(self._open.begin_trigger(start))
            learned = self._open.progress_is_asynchronous and not known
        if learned:
            log.info(
                "group %s: Spark tracks this query's progress asynchronously; offsets are "
                "committed when they are in its log",
                self._options.group_id,
            )

    def _prove(self, batch: int | None) -> None:
        """Note, under the lock, that this batch is proven, if it is one."""
        if batch is not None:
            self._assignment.prove(batch)
            self._wake.set()

    def wants_commit(self) -> bool:
        """Whether an empty batch is due, since only building one makes Spark call ``commit``."""
        now = time.monotonic()
        with self._lock:
            unproven = self._assignment.has_unproven()
        if not unproven or now - self._asked_at < _ASK_FOR_COMMIT_S:
            return False
        self._asked_at = now
        return True

    def plannable(self) -> dict[TopicPartition, int]:
        """Positions of the partitions that may get a new range."""
        with self._lock:
            return self._assignment.plannable()

    def end_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """End offsets, exclusive: high watermark, or last stable offset under read_committed.

        One request for each broker; a few milliseconds old at most. Partitions without a known
        leader are left out.
        """
        now = time.monotonic()
        fresh = now - self._end_offsets_at <= _END_OFFSETS_MAX_AGE_S
        if not fresh or not self._end_offsets.keys() >= set(partitions):
            with self._asking() as client:
                led = client.partitions_with_leader(partitions)
                try:
                    self._end_offsets = client.end_offsets(led, _LOOKUP_TIMEOUT_MS) if led else {}
                except kafka_errors.KafkaTimeoutError:
                    # A leader is moving or gone: plan nothing now, ask again with the next trigger.
                    log.warning("end offsets not answered in %d ms: %s", _LOOKUP_TIMEOUT_MS, led)
                    self._end_offsets = {}
            self._end_offsets_at = now
        return {p: self._end_offsets[p] for p in partitions if p in self._end_offsets}

    def bytes_per_offset(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """What an offset of each partition takes on its brokers' disks, on average.

        Without those of which it cannot be found out now; a minute old at most otherwise.

        Raises
        ------
        KafkaRebalanceError
            The brokers do not tell.
        """
        now = time.monotonic()
        aged = now - self._bytes_per_offset_at > _BYTES_PER_OFFSET_MAX_AGE_S
        if aged or not self._bytes_per_offset.keys() >= ends.keys():
            try:
                with self._asking() as client:
                    begins = client.beginning_offsets(list(ends), _LOOKUP_TIMEOUT_MS)
                sizes = log_sizes(self._options.client_config, ends)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("the sizes of the logs are not known now: %r", error)
            else:
                self._bytes_per_offset = {
                    p: sizes[p] / max(1, end - begins[p]) for p, end in ends.items()
                }
                self._bytes_per_offset_at = now
        return {p: self._bytes_per_offset[p] for p in ends if p in self._bytes_per_offset}

    def end_offsets_of_topics(self) -> dict[TopicPartition, int]:
        """End offsets of every partition of the subscribed topics, whoever owns it.

        Raises
        ------
        KafkaRebalanceError
            Some partition's leader does not answer for a minute; names them.
        """
        client = self._client()
        partitions = partitions_of(self._options, client)
        deadline = time.monotonic() + _SETTLE_TIMEOUT_S
        ends: dict[TopicPartition, int] = {}
        while missing := sorted(partitions - ends.keys()):
            if time.monotonic() >= deadline:
                raise KafkaRebalanceError(
                    f"end offsets not known within a minute: {names_of(missing)}"
                )
            ends.update(self.end_offsets(missing))
            if not ends.keys() >= partitions:
                client.request_metadata()
                self._stopping.wait(_TICK_S)
                self.raise_failure()
        return ends

    def unpositioned(self) -> list[TopicPartition]:
        """Partitions that were assigned just now, and whose start is still to be found out."""
        with self._lock:
            return [p for found in self._assignment.unpositioned().values() for p in found]

    def wait_for_change(self) -> None:
        """Give the group or new metadata a moment; raises what ended the membership."""
        self._client().request_metadata()
        self._stopping.wait(_TICK_S)
        self.raise_failure()

    def deleted(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that do not exist any more, by metadata that is fetched now.

        Raises
        ------
        kafka.errors.KafkaTimeoutError
            No broker answers.
        """
        with self._asking() as client:
            client.existing_topics(_LOOKUP_TIMEOUT_MS)
        return sorted(
            p for p in partitions if p.partition not in (client.partitions_for_topic(p.topic) or ())
        )

    def known_end_offsets(self) -> dict[TopicPartition, int]:
        """The end offset of every owned partition as last answered, without asking again.

        With those that are being revoked or have no leader now, which nobody asks for.
        """
        answered = {**self._known_end_offsets, **self._end_offsets}
        with self._lock:
            owned = self._assignment.owned()
            self._known_end_offsets = {p: end for p, end in answered.items() if p in owned}
        return self._known_end_offsets

    def move_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on elsewhere after records were lost in Kafka (``failOnDataLoss=false``).

        Done by the pump, so that it cannot cross a commit of the old position.
        """
        with self._lock:
            self._moves.update(positions)
        self._wake.set()

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
        with self._lock:
            pending = self._assignment.unproven()
            ranges = self._assignment.hand_out(
                planned, lambda member: self._members[member].may_hand_out()
            )
            if not ranges and not self._assignment.has_events():
                return None
            self._has_read |= bool(ranges)
            state = self._state(ranges, self._assignment.take_lost(), pending)
            return ranges, self._assignment.take_events(), state

    def state_of(self, ranges: Collection[TopicPartition]) -> BatchState:
        """The state right now, for these partitions of a batch."""
        with self._lock:
            return self._state(ranges, ())

    def state_without_ranges(self) -> BatchState:
        """The state for a batch that reads nothing."""
        with self._lock:
            return self._state((), (), self._assignment.unproven())

    def _state(
        self,
        ranges: Collection[TopicPartition],
        lost: Collection[TopicPartition],
        pending: Mapping[TopicPartition, OffsetRange] | None = None,
    ) -> BatchState:
        owned = self._assignment.owned()
        return BatchState(
            generations=tuple(self._generations),
            member_of={p: owned[p].member for p in ranges if p in owned},
            revoking=frozenset(self._assignment.revoking()),
            lost=frozenset(lost),
            unacknowledged={
                p: o
                for p, o in self._assignment.unacknowledged().items()
                if p not in ranges and p not in (pending or ())
            },
            pending=dict(pending or {}),
        )

    def _client(self) -> DeferredRevokeConsumer:
        """Any member's client, for look-ups that have nothing to do with membership."""
        self._built.wait()
        self.raise_failure()
        if not self._members:
            raise KafkaRebalanceError("the query was stopped before it had a member")
        return self._members[0]

    @contextmanager
    def _asking(self) -> Iterator[DeferredRevokeConsumer]:
        """The client for a look-up. If the pump ends meanwhile, why, not what that did to it."""
        client = self._client()
        try:
            yield client
        except Exception:
            self.raise_failure()
            raise

    # -- the pump ---------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._build()
            self._built.set()
            self._may_join.wait()
            while not self._stopping.is_set():
                eager = self._tick()
                self._wake.wait(_EAGER_TICK_S if eager else _TICK_S)
                self._wake.clear()
            self._commit_the_rest()
        except BaseException as error:
            log.exception("group %s: the membership ended", self._options.group_id)
            self._failure = error
        finally:
            self._built.set()
            for member in self._members:
                self._close(member)

    def _build(self) -> None:
        options = self._options
        if self._commit_log is not None:
            self._commit_log.begin()
        for client in build_clients(options, self._client_id):
            if not self._members:
                self._first_seen = frozenset(partitions_of(options, client))
            self._members.append(client)
            if self._stopping.is_set():
                return
        log.info(
            "group %s: %d clients built for %s",
            options.group_id,
            len(self._members),
            options.pattern or ", ".join(options.topics or ()),
        )

    def _tick(self) -> bool:
        """One round; whether something waits for an acknowledgement."""
        for index, member in enumerate(self._members):
            self._apply(index, member)
        self._move()
        self._find_starts()
        self._probe_commit_log()
        waiting = self._commit()
        self._forget_lost()
        return waiting

    def _apply(self, index: int, member: DeferredRevokeConsumer) -> None:
        """Poll one member and apply what happened to it."""
        result = member.poll_membership()
        assignment = self._assignment
        with self._lock:
            if result.lost or result.revoked or result.assigned:
                self._changed_at = time.monotonic()
            assignment.lose(index, result.lost)
            assignment.complete_revoke(index, result.revoked)
            assignment.assign(index, member.generation, result.assigned)
            if self._generations[index : index + 1] != [member.generation]:
                self._generations = [m.generation for m in self._members]
                self._changed_at = time.monotonic()
                assignment.new_generation(index, member.generation)
            assignment.keep(index, result.to_be_revoked)
            assignment.request_revoke(result.to_be_revoked)
            undrained = assignment.undrained(result.to_be_revoked)
        member.delay_revoke(undrained)

    def _move(self) -> None:
        """Put positions elsewhere, and forget the commits that were based on the old ones."""
        with self._lock:
            moves, self._moves = self._moves, {}
            for partition, position in moves.items():
                owned = self._assignment.owned().get(partition)
                if owned is not None:
                    self._members[owned.member].forget_commits([partition])
                    self._assignment.move_to(partition, position)

    def _find_starts(self) -> None:
        """Find out where newly assigned partitions start; a failed look-up is repeated."""
        with self._lock:
            wanted = self._assignment.unpositioned()
        for index, partitions in wanted.items():
            member = self._members[index]
            try:
                committed = member.committed_offsets(partitions, _LOOKUP_TIMEOUT_MS)
                unknown = [p for p in partitions if p not in committed]
                otherwise = self._configured_starts(member, unknown)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("start of %s not found yet: %r", partitions, error)
                continue
            with self._lock:
                still = set(self._assignment.unpositioned().get(index, ()))
                for partition in partitions:
                    known = partition in committed or partition in otherwise
                    if partition in still and known:
                        self._assignment.start_at(
                            partition, committed.get(partition), otherwise.get(partition, -1)
                        )
                self._changed_at = time.monotonic()

    def _configured_starts(
        self, member: DeferredRevokeConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where partitions start for which the group has no committed offset.

        Those that were created while the query ran, or between two runs, start with their first
        record, as with Spark's own source: nobody else has read them.

        Raises
        ------
        KafkaRebalanceError
            There is no record at the timestamp or later, and the strategy is ``error``.
        """
        rules = {p: self._start_of(p) for p in partitions}
        starts = {p: rule for p, rule in rules.items() if isinstance(rule, int)}
        times = {p: rule for p, rule in rules.items() if isinstance(rule, AtTimestamp)}
        if asked := member.partitions_with_leader(times):
            found = member.offsets_for_times(
                {p: times[p].timestamp_ms for p in asked}, _LOOKUP_TIMEOUT_MS
            )
            starts.update({p: at.offset for p in asked if (at := found.get(p)) is not None})
            for p in asked:
                if p not in starts and not times[p].or_latest:
                    raise times[p].no_record(p)
                rules[p] = "latest"
        for name, look_up in (
            ("earliest", member.beginning_offsets),
            ("latest", member.end_offsets),
        ):
            asked = member.partitions_with_leader(
                [p for p, rule in rules.items() if rule == name and p not in starts]
            )
            if asked:
                starts.update(look_up(asked, _LOOKUP_TIMEOUT_MS))
        return starts

    def _start_of(self, partition: TopicPartition) -> Start:
        created_since = partition not in self._starting_as_told()
        if created_since and partition not in self._options.starting_offsets.named:
            return "earliest"
        return self._options.start_of(partition)

    def _starting_as_told(self) -> frozenset[TopicPartition]:
        """The partitions that were there when the query first began, unless it has read since."""
        return self._first_seen if self._initial is None else self._initial

    def _probe_commit_log(self) -> None:
        """While a revoke waits for its batch, look for the batch in the query's commit log."""
        with self._lock:
            offset = self._open.last_end if self._assignment.waits_for_proof() else None
        if self._commit_log is None or offset is None:
            return
        if self._commit_log.is_committed(offset):
            with self._lock:
                self._prove(self._open.prove(offset))

    def _commit(self) -> bool:
        """Commit what is proven and note what is acknowledged; whether something is still open."""
        with self._lock:
            commits = self._assignment.commits()
        for index, offsets in commits.items():
            member = self._members[index]
            try:
                member.commit_processed(offsets)
            except PartitionsLostError as error:
                log.info("not committed: %s", error)  # the next poll_membership tells of the loss
                continue
            with self._lock:
                for partition in offsets:
                    acknowledged = member.acknowledged(partition)
                    if acknowledged is not None:
                        self._assignment.acknowledge(partition, acknowledged)
        return bool(commits)

    def _forget_lost(self) -> None:
        """Drop positions of lost partitions once the group is past them."""
        now = time.monotonic()
        if now - self._lost_checked_at < _LOST_CHECK_S:
            return
        self._lost_checked_at = now
        with self._lock:
            owned = self._assignment.owned().keys()
            lost = [p for p in self._assignment.unacknowledged() if p not in owned]
        if not lost:
            return
        try:
            committed = self._members[0].committed_offsets(lost, _LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("committed offsets of lost partitions not known: %r", error)
            return
        with self._lock:
            for partition, offset in committed.items():
                self._assignment.acknowledge(partition, offset)

    def _commit_the_rest(self) -> None:
        """What stop() can still do: the last batch if the commit log has it, then drain."""
        self._commit()
        with self._lock:
            offset = self._open.last_end
        if self._commit_log is not None and offset is not None:
            # Half of what is left, so that the commit and leaving the group still have their turn.
            left_s = max(0.0, self._stop_by - time.monotonic()) / 2
            if self._commit_log.wait_for_answer(offset, left_s):
                with self._lock:
                    self._prove(self._open.prove(offset))
                self._commit()
        for member in self._members:
            # Half of what is left, so that leaving the group still has its turn.
            left_ms = (self._stop_by - time.monotonic()) * 500
            if not member.drain(max(0.0, left_ms)):
                log.warning("group %s: stopped with commits open", self._options.group_id)

    def _close(self, member: DeferredRevokeConsumer) -> None:
        left_ms = max(100.0, (self._stop_by - time.monotonic()) * 1000)
        try:
            member.close(timeout_ms=left_ms)
        except Exception:
            log.exception("group %s: a member did not close cleanly", self._options.group_id)
