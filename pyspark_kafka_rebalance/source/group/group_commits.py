"""GroupCommits: what is proven reaches the group, and the group's answers reach the state.

A member commits in the background (``commit_processed``); this says what, notes what the
coordinator has acknowledged, and at the end waits for the rest. All on the pump's thread, except
what says otherwise.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...consumer.pump import Pump
from ...errors import PartitionsLostError, names_of
from .batch_proofs import BatchProofs
from .deletion_watch import DeletionWatch
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: Spark does not wait for stop(); what it leaves undone is left to the session timeout. Who asks by
#: ``stop_gracefully`` waits, and may grant more.
STOP_TIMEOUT_S = 3.0

#: An acknowledgement takes 3 to 8 ms; who waits for one looks this often.
_LOOK_EVERY_S = 0.005


class GroupCommits:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Tells what is proven, and is told what is acknowledged.
    members : QueryMembers
        Each commits what it owns.
    pump : Pump
        Its deadline is that of :meth:`finish`; its failure ends a wait.
    proofs : BatchProofs
        May prove the last batch at the end.
    deletions : DeletionWatch
        What is in doubt is not committed.
    """

    def __init__(
        self,
        options: SourceOptions,
        state: QueryState,
        members: QueryMembers,
        pump: Pump,
        proofs: BatchProofs,
        deletions: DeletionWatch,
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._pump = pump
        self._proofs = proofs
        self._deletions = deletions

    # -- the planner's thread ---------------------------------------------------------------------

    def are_open(self) -> bool:
        """Whether the group lacks something that is proven; on any thread."""
        with self._state as state:
            return bool(state.assignment.commits.by_member())

    def uncommitted(self) -> list[TopicPartition]:
        """As ``OwedCommits``'s; after the pump's end the last word. On any thread."""
        with self._state as state:
            return sorted(state.assignment.commits.uncommitted())

    def wait_until_acknowledged(self) -> None:
        """Wait until the group has what is proven, or the time is up; for a run that ends now.

        Raises what ended the membership: a commit that is refused later would be in the log alone.
        """
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while time.monotonic() < deadline:
            self._pump.raise_failure()
            if not self.are_open():
                return
            time.sleep(_LOOK_EVERY_S)

    def move_to(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on elsewhere after records were lost in Kafka (``failOnDataLoss=false``).

        Done by the pump, so that it cannot cross a commit of the old position.
        """
        with self._state as state:
            state.moves.update(positions)
        self._pump.wake()

    # -- the pump's thread ------------------------------------------------------------------------

    def move(self) -> None:
        """Put positions elsewhere, and forget the commits that were based on the old ones."""
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
                    if positioning.move_to(partition, position, partition in another):
                        forgotten.append(partition)
        if forgotten:
            log.warning(
                "group %s: nothing is caught up of logs that were created anew: %s",
                *(self._options.group_id, names_of(forgotten)),
            )

    def _topic_ids_now(self, topics: Collection[str]) -> dict[str, UUID]:
        """By metadata that are fetched now; none if no broker answers, or none is needed."""
        if self._options.catch_up is None:
            return {}
        client = self._members.cluster_of(0)
        try:
            client.existing_topics(LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("not known whether topics were created anew: %r", error)
            return {}
        return client.topic_ids(topics)

    def commit(self) -> bool:
        """Note what is acknowledged, and commit what else is proven; whether anything was open."""
        doubtful = self._deletions.in_doubt
        with self._state as state:
            open_before = state.assignment.commits.by_member()
        # First, or all that was answered since the last look would be committed once more.
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
                log.info("not committed: %s", error)  # the next poll_membership tells of the loss
        return bool(open_before)

    def finish(self) -> None:
        """What stop() can still do: the last batch if the commit log has it, then drain."""
        self.commit()
        # Half of it, so that the commit and leaving the group still have their turn.
        if self._proofs.look(wait_s=self._left_to_leave_s()):
            self.commit()
        for index, member in enumerate(self._members):
            drained = member.drain((self._pump.left_s() - self._left_to_leave_s()) * 1000)
            with self._state as state:
                behind = state.assignment.commits.by_member().get(index, {})
            self._note_acknowledged(index, behind)
            if not drained:
                log.warning("group %s: stopped with commits open", self._options.group_id)
        self._ask_for_the_rest()

    def _note_acknowledged(self, index: int, partitions: Collection[TopicPartition]) -> None:
        """What the coordinator has acknowledged to this member so far."""
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
            committed = self._members.committed(missing, timeout_ms)
        except kafka_errors.KafkaError as error:
            log.info("group %s: offsets not known: %r", self._options.group_id, error)
            return
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
