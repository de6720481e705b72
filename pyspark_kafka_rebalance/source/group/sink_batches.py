"""SinkBatches: the batches that the query's own sink decides, in one transaction with its output.

    planner thread (Spark)      door's threads (sink)            group's coordinator
      plan batch N
      tasks …                   ask N: who owns it now?
                                  (the sink's process)  ───────► TxnOffsetCommit, EndTxn
                                tell N: committed / dropped
      plan batch N + 1

Invariants:
 1. From the first ``ask`` of the sink on, nothing of the batch is committed by the source: it is
    proven and acknowledged at once when the sink tells that it is committed. Revokes wait for that.
 2. A batch is held only if the members own all of its partitions for certain, none of them has a
    commit under way (it could arrive after the transaction, and set the group back), and the group
    has nothing of the batch. The last is known where a partition was owned ever since it was handed
    out. Otherwise the group's offsets are requested; pending transactions delay that answer
    (KIP-447).
 3. A dropped batch is read again before anything behind it, where the query still owns it. Until
    the group's commit says that the sink decides, the checkpoint would win after a restart, and
    skip it: so such a commit is made before ``tell`` returns.
 4. If Spark proves a batch and the sink has not told us, or if the sink told of a batch that was
    not held, the group's offsets decide: the starts of its partitions are looked up again.

The members check nothing of all this: the coordinator does, by their ids and generations.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...consumer.offsets.commit_metadata import GroupCommit
from ...errors import KafkaRebalanceError, names_of
from ...fetch.offset_range import OffsetRange
from ..door.snapshot import MemberOffsets, Outcome, Snapshot, State, UnknownBatchError
from .batch_proofs import BatchProofs
from .batches.batch import Batch
from .batches.standing import Standing, standing, taken
from .clients.query_part import QueryCore, QueryPart
from .owned.owned_partitions import OwnedPartition
from .query_state import SharedState

log = logging.getLogger(__name__)

#: How often to check whether the batch's partitions have settled.
_TICK_S = 0.01

#: How long ``tell`` waits for the commit that says that the sink decides (invariant 3).
_SAID_WITHIN_S = 5.0

#: Which partitions of a batch the query owns for certain, as what; and those still in doubt.
_View = tuple[dict[TopicPartition, OwnedPartition], set[TopicPartition]]


class SinkBatches(QueryPart):
    """Answers the sink's process, on the door's threads."""

    def __init__(self, core: QueryCore, proofs: BatchProofs, run: str) -> None:
        super().__init__(core)
        self._proofs = proofs
        self._run = run
        #: The last batch that was decided, and what it read.
        self._decided: tuple[dict[str, Any], Outcome, Snapshot] | None = None

    # -- the sink ---------------------------------------------------------------------------------

    def ask(self, end: dict[str, Any], by_sink: bool, timeout_s: float) -> Snapshot:
        """Return who holds the batch that ends here; waits until that is certain.

        Raises
        ------
        UnknownBatchError
            No batch of this run ends there.
        KafkaRebalanceError
            It is not certain within ``timeout_s``; names the partitions. Or the membership ended.
        """
        deadline = time.monotonic() + timeout_s
        self._members.client()  # waits until they are built
        commits: dict[TopicPartition, GroupCommit] = {}
        seen: _View | None = None
        while True:
            self._check()
            with self._state as state:
                batch = state.assignment.batches.ending_at(end)
                if batch is None:
                    return self._decided_before(end)
                if self._options.partitions is not None:
                    return self._snapshot(state, batch, "held", {}, frozenset())
                if by_sink:
                    batch.by_sink = state.own_commits.by_sink = True
                reads = batch.all_reads()
                view = self._view(state, batch, reads)
                owned, doubtful = view
                looked = seen == view
                if not doubtful and (looked or self._is_known(batch, reads, owned)):
                    return self._answer(state, batch, reads, owned, commits if looked else {})
            if doubtful:
                self._wait(deadline, timeout_s, doubtful)
                continue
            commits = self._commits_of(reads, deadline, timeout_s)
            seen = view

    def tell(self, end: dict[str, Any], outcome: Outcome, timeout_s: float) -> None:
        """Take note of what was decided of a batch; idempotent. Raises UnknownBatchError."""
        said: set[TopicPartition] = set()
        with self._state as state:
            assignment = state.assignment
            batch = assignment.batches.ending_at(end)
            if batch is None:
                self._decided_before(end)
                return
            if self._options.partitions is not None:
                return  # the planner commits it, once Spark has
            reads = batch.all_reads()
            state.own_commits.by_sink = batch.by_sink = True
            if outcome == "committed" and batch.is_held:
                assignment.decide(batch)
                state.own_commits.decided(reads)
            else:
                owned = assignment.drop(batch, is_known=outcome == "dropped")
                if outcome == "dropped":
                    said = state.own_commits.not_told_by_sink(owned)
                    state.to_say |= said
            batch.done(state.pace, time.monotonic())
            state_told: State = "decided" if outcome == "committed" else "lost"
            lost = frozenset() if outcome == "committed" else frozenset(reads)
            self._decided = end, outcome, self._snapshot(state, batch, state_told, {}, lost)
        self._pump.wake()
        if outcome == "dropped":
            log.warning(
                "group %s: a batch was dropped, since other members have got some of its "
                "partitions; the rest is read again: %s",
                *(self._options.group_id, names_of(reads)),
            )
        if said:
            self._wait_until_said(said, min(timeout_s, _SAID_WITHIN_S))

    # -- the planner's thread ---------------------------------------------------------------------

    def leave_out(self, end: dict[str, Any], timeout_s: float) -> frozenset[TopicPartition]:
        """Decide which partitions a rerun of this batch does not read; call it before the tasks.

        Those are the ones that others have read, unless the batch is decided: then a stateful query
        needs all of its rows once more, and the sink writes none of them.

        Raises KafkaRebalanceError if the group's offsets cannot be requested.
        """
        with self._state as state:
            batch = state.assignment.batches.ending_at(end)
            if batch is None:
                return frozenset()
            reads = batch.all_reads()
        commits = self._commits_of(reads, time.monotonic() + timeout_s, timeout_s)
        with self._state as state:
            state.own_commits.hear(commits)
            left_out = taken(self._standings(state, reads, commits))
            state.assignment.leave_out(batch, left_out)
        if left_out:
            log.warning(
                "group %s: others have read parts of the batch that is run again; it is run "
                "without them: %s",
                *(self._options.group_id, names_of(left_out)),
            )
        return left_out

    # -- under the lock ---------------------------------------------------------------------------

    def _view(
        self,
        state: SharedState,
        batch: Batch,
        reads: Mapping[TopicPartition, tuple[OffsetRange, ...]],
    ) -> _View:
        """The batch's partitions that the members own, and those of which that is in doubt.

        One that no member owns is lost; but a batch that is run again may come before its members
        have joined.
        """
        owned = state.assignment.partitions.all()
        # Not whether they are stable: a revoke may wait for this very batch.
        sure = [member.may_hand_out() for member in self._members]
        joined = bool(state.generations) and all(member.is_stable for member in self._members)
        found: dict[TopicPartition, OwnedPartition] = {}
        doubtful: set[TopicPartition] = set()
        for partition in reads:
            own = owned.get(partition)
            if own is None:
                if batch.is_rerun and not joined:
                    doubtful.add(partition)
                continue
            found[partition] = own
            waits = own.position is None or state.assignment.commits.is_open(partition)
            if waits or not sure[own.member]:
                doubtful.add(partition)
        return found, doubtful

    def _is_known(
        self,
        batch: Batch,
        reads: Mapping[TopicPartition, tuple[OffsetRange, ...]],
        owned: Mapping[TopicPartition, OwnedPartition],
    ) -> bool:
        """Whether the group has nothing of the batch, for all we know (invariant 2)."""
        if batch.is_rerun or batch.is_held:  # held before: that transaction may be committed
            return False
        return all(p in owned and owned[p].read for p in reads)

    def _standings(
        self,
        state: SharedState,
        reads: Mapping[TopicPartition, tuple[OffsetRange, ...]],
        commits: Mapping[TopicPartition, GroupCommit],
    ) -> dict[TopicPartition, Standing]:
        query = state.own_commits.query
        return {p: standing(pieces, commits.get(p), query) for p, pieces in reads.items()}

    def _answer(
        self,
        state: SharedState,
        batch: Batch,
        reads: Mapping[TopicPartition, tuple[OffsetRange, ...]],
        owned: Mapping[TopicPartition, OwnedPartition],
        commits: Mapping[TopicPartition, GroupCommit],
    ) -> Snapshot:
        standings = self._standings(state, reads, commits)
        if "decided" in standings.values():
            batch.is_held = False
            return self._snapshot(state, batch, "decided", {}, frozenset())
        lost = frozenset(p for p in reads if p not in owned or standings[p] == "taken")
        batch.is_held = not lost
        if lost:
            return self._snapshot(state, batch, "lost", {}, lost)
        return self._snapshot(state, batch, "held", owned, lost)

    def _snapshot(
        self,
        state: SharedState,
        batch: Batch,
        found: State,
        owned: Mapping[TopicPartition, OwnedPartition],
        lost: frozenset[TopicPartition],
    ) -> Snapshot:
        left = state.assignment.commits.remaining_after(batch) if owned else {}
        members = []
        for index in sorted({own.member for own in owned.values()}):
            mine = {p: left[p] for p, own in owned.items() if own.member == index}
            member = self._members.cluster_of(index)  # a group member fills both roles
            metadata = member.describe_remaining(mine)
            now = member.group_metadata()
            members.append(
                MemberOffsets(
                    now.member_id,
                    now.generation_id,
                    now.group_instance_id,
                    {p: (one.committed(), metadata[p]) for p, one in mine.items()},
                )
            )
        return Snapshot(
            run=self._run,
            group_id=self._options.group_id,
            cluster_id=self._members.cluster_of(0).cluster_id,
            state=found,
            members=tuple(members),
            ranges=batch.all_reads(),
            lost=lost,
            fenced=self._options.partitions is None,
        )

    # -- waits, without the lock ------------------------------------------------------------------

    def _decided_before(self, end: dict[str, Any]) -> Snapshot:
        if self._decided is None or self._decided[0] != end:
            raise UnknownBatchError
        return self._decided[2]

    def _check(self) -> None:
        self._pump.raise_failure()
        if self._pump.is_stopping:
            raise KafkaRebalanceError(
                f"group {self._options.group_id!r}: the source is being stopped, so the batch "
                "cannot be decided; it is run again when the query starts again"
            )

    def _wait(self, deadline: float, timeout_s: float, doubtful: set[TopicPartition]) -> None:
        if time.monotonic() >= deadline:
            raise KafkaRebalanceError(
                f"group {self._options.group_id!r}: it was not certain within {timeout_s:g} s who "
                f"owns the partitions of the batch: {names_of(doubtful)}"
            )
        self._pump.wait(_TICK_S)

    def _commits_of(
        self,
        reads: Mapping[TopicPartition, tuple[OffsetRange, ...]],
        deadline: float,
        timeout_s: float,
    ) -> dict[TopicPartition, GroupCommit]:
        """Request the group's commits of these; pending transactions delay the answer."""
        if not reads:
            return {}
        self._members.client()  # waits until they are built: a rerun comes early
        left_ms = max(0.0, deadline - time.monotonic()) * 1000
        try:
            return self._members.group_commits(list(reads), left_ms)
        except kafka_errors.KafkaError as error:
            raise KafkaRebalanceError(
                f"group {self._options.group_id!r}: the committed offsets of the batch's "
                f"partitions were not found out within {timeout_s:g} s ({error!r}): "
                f"{names_of(reads)}"
            ) from error

    def _wait_until_said(self, partitions: set[TopicPartition], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and not self._pump.is_stopping:
            with self._state as state:
                assignment = state.assignment
                owned = assignment.partitions.all()
                waiting = state.to_say | {p for p in partitions if assignment.commits.is_open(p)}
                waiting &= partitions & owned.keys()
                if not waiting:
                    state.own_commits.decided(partitions & owned.keys())
                    return
            self._pump.wait(_TICK_S)
        # Spark must not log the batch as committed then: a restart would skip it.
        raise KafkaRebalanceError(
            f"group {self._options.group_id!r}: a batch was dropped, and the group did not take "
            f"note within {timeout_s:g} s that this was not delivered: {names_of(partitions)}. "
            "Restart the query: it runs the batch again, without what others have read by then"
        )
