"""GroupCommits: commits proven offsets to the group, and records its acknowledgements.

A member commits in the background (``commit_processed``). This class decides which offsets to
commit, records those that the coordinator has acknowledged, and at the end waits for the rest.
Everything runs on the pump's thread unless it says otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...errors import PartitionsLostError, names_of
from .batch_proofs import BatchProofs
from .clients.query_members import LOOKUP_TIMEOUT_MS
from .clients.query_part import QueryCore, QueryPart
from .logs.deletion_watch import DeletionWatch

log = logging.getLogger(__name__)

#: Spark does not wait for stop(); the session timeout settles the rest. The caller of
#: ``stop_gracefully`` does wait, and can grant more time.
STOP_TIMEOUT_S = 3.0

#: How often to check for an acknowledgement, which takes 3 to 8 ms.
_LOOK_EVERY_S = 0.005


class GroupCommits(QueryPart):
    """Gives each member the proven offsets of the partitions that it owns."""

    def __init__(self, core: QueryCore, proofs: BatchProofs, deletions: DeletionWatch) -> None:
        super().__init__(core)
        self._proofs = proofs
        self._deletions = deletions

    # -- the planner's thread ---------------------------------------------------------------------

    def are_open(self) -> bool:
        """Whether the group lacks something that is proven; callable on any thread."""
        with self._state as state:
            return bool(state.assignment.commits.by_member())

    def uncommitted(self) -> list[TopicPartition]:
        """See ``OwedCommits.uncommitted``; final once the pump has ended. On any thread."""
        with self._state as state:
            return sorted(state.assignment.commits.uncommitted())

    def wait_until_acknowledged(self) -> None:
        """Wait until the group has all proven offsets, or the time is up; for a run that ends now.

        Raises the error that ended the membership: a later refusal would only be logged.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            self._pump.raise_failure()
            if not self.are_open():
                return
            time.sleep(_LOOK_EVERY_S)

    def move_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Continue from these positions after records were lost (``failOnDataLoss=false``).

        The pump makes the move, so that it cannot cross a commit of the old position.
        """
        with self._state as state:
            state.moves.update(positions)
        self._pump.wake()

    # -- the pump's thread ------------------------------------------------------------------------

    def move(self) -> None:
        """Move the positions, and forget the commits that were based on the old ones."""
        with self._state as state:
            topics = {p.topic for p in state.moves}
        if not topics:
            return
        topic_ids = self._topic_ids_now(topics)
        forgotten = []
        with self._state as state:
            moves, state.moves = state.moves, {}
            another = state.starts.of_another_topic(moves, topic_ids)
            for partition, position in moves.items():
                owned = state.assignment.partitions.all().get(partition)
                if owned is not None:
                    self._members[owned.member].forget_commits([partition])
                    positioning = state.assignment.positioning
                    state.own_commits.move_back(partition, position)
                    if positioning.move_to(partition, position, partition in another):
                        forgotten.append(partition)
        if forgotten:
            log.warning(
                "group %s: not catching up on partitions that were recreated: %s",
                *(self._options.group_id, names_of(forgotten)),
            )

    def say(self) -> None:
        """Commit some positions once more: only the new metadata differ (``SinkBatches``)."""
        with self._state as state:
            owned = state.assignment.partitions.all()
            # The others' starts are looked up: that would take the group's offset for said.
            partitions = {p for p in state.to_say if p in owned and owned[p].position is not None}
            state.to_say = (state.to_say & owned.keys()) - partitions
            by_member: dict[int, list[TopicPartition]] = {}
            for partition in partitions:
                by_member.setdefault(owned[partition].member, []).append(partition)
            for index, found in by_member.items():
                self._members[index].forget_commits(found)
                state.assignment.marks.doubt(found)
                state.assignment.commits.compare(found)

    def _topic_ids_now(self, topics: Collection[str]) -> dict[str, UUID]:
        """Topic ids from freshly fetched metadata; empty if no broker answers, or not needed."""
        if self._options.catch_up is None:
            return {}
        client = self._members.cluster_of(0)
        try:
            client.existing_topics(LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("cannot check whether topics were recreated: %r", error)
            return {}
        return client.topic_ids(topics)

    def commit(self) -> bool:
        """Record acknowledgements, commit the rest; returns whether anything was open before."""
        doubtful = self._deletions.in_doubt
        with self._state as state:
            open_before = state.assignment.commits.by_member()
        # First, or everything acknowledged since the last call would be committed again.
        for index, behind in open_before.items():
            self._note_acknowledged(index, behind.keys() - doubtful)
        with self._state as state:
            commits = state.assignment.commits.by_member()
            remaining = (
                state.assignment.commits.remaining(p for behind in commits.values() for p in behind)
                if self._options.catch_up is not None
                else {}
            )
        for index, behind in commits.items():
            offsets = {p: offset for p, offset in behind.items() if p not in doubtful}
            member = self._members[index]
            try:
                if self._options.catch_up is not None:
                    member.commit_remaining({p: remaining[p] for p in offsets})
                else:
                    member.commit_processed(offsets)
            except PartitionsLostError as error:
                log.info("not committed: %s", error)  # the next poll_membership reports the loss
        return bool(open_before)

    def finish(self) -> None:
        """Commit at stop(), the last batch too if the commit log has it, then drain."""
        self.commit()
        # Half of the time, so that the commit and leaving the group still have their turn.
        if self._proofs.look(wait_s=self._left_to_leave_s()):
            self.commit()
        for index, member in enumerate(self._members):
            drained = member.drain((self._pump.left_s() - self._left_to_leave_s()) * 1000)
            with self._state as state:
                behind = state.assignment.commits.by_member().get(index, {})
            self._note_acknowledged(index, behind)
            if not drained:
                log.warning("group %s: stopped with commits outstanding", self._options.group_id)
        self._ask_for_the_rest()

    def _note_acknowledged(self, index: int, partitions: Collection[TopicPartition]) -> None:
        """Record the offsets that the coordinator has acknowledged to this member so far."""
        member = self._members[index]
        with self._state as state:
            if self._options.catch_up is not None:
                wholes = {p: member.acknowledged_remaining(p) for p in partitions}
                state.assignment.commits.acknowledge_remaining(
                    {p: left for p, left in wholes.items() if left is not None}
                )
                return
            told = ((p, member.acknowledged(p)) for p in partitions)
            state.assignment.commits.acknowledge(
                {p: offset for p, offset in told if offset is not None}
            )

    def _left_to_leave_s(self) -> float:
        """The part of the stop time that is reserved for leaving the group."""
        return min(self._pump.left_s(), STOP_TIMEOUT_S) / 2

    def _ask_for_the_rest(self) -> None:
        """Request the committed offsets: the group may have commits not acknowledged to us.

        Either the answer was lost, or the partition was, and its next owner has committed as much.
        """
        missing = self.uncommitted()
        if not missing:
            return
        try:
            timeout_ms = self._left_to_leave_s() * 1000
            committed = self._members.committed(missing, timeout_ms)
        except kafka_errors.KafkaError as error:
            log.info(
                "group %s: cannot look up the committed offsets: %r", self._options.group_id, error
            )
            return
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
