"""StartLookup: asks the brokers where newly assigned partitions start, by the rules of Starts.

Runs on the pump's thread. After a retriable error the next tick repeats the look-up.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Container, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....errors import PartitionsLostError
from ...offsets.query_identity import QueryIdentity
from ...options.starting_offsets import AtTimestamp
from ..clients.query_member import QueryMember
from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart
from ..logs.deletion_watch import DeletionWatch, ReplacedTopics
from ..others.joining import Joining
from ..query_state import SharedState
from .ignored_starts import IgnoredStarts
from .restored_starts import RestoredStarts

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer

log = logging.getLogger(__name__)


class _Log(NamedTuple):
    """A log's end; and with a threshold by age positions, and those whose next record is old."""

    end: int
    asked: Container[int] = ()
    old_at: Container[int] = ()


class StartLookup(QueryPart):
    """Finds the start of every partition that has none yet, once in each round of the pump."""

    def __init__(
        self, core: QueryCore, deletions: DeletionWatch, identity: QueryIdentity, joining: Joining
    ) -> None:
        super().__init__(core)
        self._told_of: set[TopicPartition] = set()  # set back, and logged
        self._topics = ReplacedTopics(core, deletions)
        self._gone_back = RestoredStarts(core, identity)
        self._ignored = IgnoredStarts(core, joining)

    def find(self) -> None:
        """Find out where newly assigned partitions start.

        Raises KafkaRebalanceError if there is no record at a timestamp or later and the strategy is
        ``error``, and the KafkaError of a broker that refuses to answer.
        """
        with self._state as state:
            wanted = state.assignment.partitions.unpositioned()
            owned = state.assignment.partitions.all()
            is_new = {p for found in wanted.values() for p in found if owned[p].is_new}
        self._topics.keep({p for found in wanted.values() for p in found})
        at_group: dict[TopicPartition, int] = {}
        for index, partitions in wanted.items():
            member, cluster = self._members[index], self._members.cluster_of(index)
            self._topics.look_again(cluster)
            partitions = self._gone_back.without_waiting(partitions)
            if not (partitions := self._topics.without_absent(partitions)):
                continue
            try:
                told = self._members.group_commits(partitions, LOOKUP_TIMEOUT_MS, index)
                commits = {p: commit for p, commit in told.items() if p not in is_new}
                owed = {p: commit.remaining for p, commit in commits.items()}
                with self._state as state:
                    state.own_commits.hear(commits)
                committed = {p: left.committed() for p, left in owed.items()}
                ahead = self._set_back(member, owed) | self._gone_back.set_back(member, commits)
                if ahead:
                    # Their starts are looked up again once the group has the new offsets.
                    partitions = [p for p in partitions if p not in ahead]
                for partition in self._topics.look(member, cluster, partitions, committed):
                    committed.pop(partition, None)
                    owed.pop(partition, None)
                    commits.pop(partition, None)
                partitions = self._topics.without_absent(partitions)
                with self._state as state:
                    marks = state.assignment.marks
                    new_here = {p for p in partitions if not marks.are_known(p)}
                unknown = dict.fromkeys(
                    p for p in partitions if p in new_here and p not in committed
                )
                otherwise = self._configured(cluster, unknown)
                known = [p for p in partitions if p not in unknown]
                logs = (
                    None if self._options.catch_up is None else self._logs_of(cluster, known, owed)
                )
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("start offsets of %s not found yet: %r", partitions, error)
                continue
            with self._state as state:
                still = set(state.assignment.partitions.unpositioned().get(index, ()))
                for partition in partitions:
                    if partition not in still:
                        continue
                    commit = commits.get(partition)
                    if state.own_commits.is_set_back(partition, commit) or (
                        commit is not None and state.is_behind_by_sink(partition, commit)
                    ):
                        state.assignment.positioning.start_over(partition)
                    if partition in unknown:
                        if partition not in otherwise:
                            continue
                        state.assignment.positioning.start_at(partition, None, otherwise[partition])
                    elif logs is None:
                        state.assignment.positioning.start_at(
                            partition, committed.get(partition), -1
                        )
                    elif partition not in logs or not self._start_live(
                        state, partition, owed.get(partition), logs[partition]
                    ):
                        continue  # it has no leader, so it could not be read now anyway
                    self._begin_commits(state, partition, commits.get(partition), new_here)
                    state.starts.started(partition, member.assigned_topic_id(partition))
                state.starts.saw(cluster.topic_ids({p.topic for p in partitions}))
                state.last_change.note()
            at_group |= {p: committed[p] for p in new_here & committed.keys()}
        self._ignored.tell(at_group)

    def _begin_commits(
        self,
        state: SharedState,
        partition: TopicPartition,
        commit: GroupCommit | None,
        new_here: Collection[TopicPartition],
    ) -> None:
        """Note from where on this query's commits are its own; the partition has its start."""
        position = state.assignment.partitions.all()[partition].position
        assert position is not None
        state.own_commits.begin(partition, commit, position, partition not in new_here)
        state.own_commits.started(partition)

    def _start_live(
        self, state: SharedState, partition: TopicPartition, owed: Remaining | None, found: _Log
    ) -> bool:
        """Start the partition live, with its backlog set aside if that is too large.

        Returns False if the ages that were asked for are not those that count now.
        """
        assert self._options.catch_up is not None
        threshold = self._options.catch_up.threshold
        if threshold.age_ms is not None:
            positions = state.assignment.positioning.live_positions(partition, owed)
            if not all(at in found.asked for at in positions if at < found.end):
                return False

        def is_behind(position: int) -> bool:
            return threshold.is_exceeded(position, found.end, found.old_at)

        live = state.assignment.positioning.start_live(partition, owed, found.end, is_behind)
        if gaps := state.assignment.gaps.unread(partition):
            log.info(
                "group %s: %s-%d continues at offset %d, catching up on %d offsets from %d on",
                *(self._options.group_id, *partition, live),
                *(sum(gap.end - gap.start for gap in gaps), gaps[0].start),
            )
        return True

    def _logs_of(
        self,
        cluster: DeferredRevokeConsumer,
        partitions: Collection[TopicPartition],
        owed: Mapping[TopicPartition, Remaining],
    ) -> dict[TopicPartition, _Log]:
        """Where these logs end, and where their next records are old; only those that answer."""
        assert self._options.catch_up is not None
        led = cluster.partitions_with_leader(partitions)
        ends = cluster.end_offsets_now(led, LOOKUP_TIMEOUT_MS) if led else {}
        age_ms = self._options.catch_up.threshold.age_ms
        if age_ms is None or not ends:
            return {p: _Log(end) for p, end in ends.items()}
        since = int(time.time() * 1000) - age_ms
        with self._state as state:
            positions = {
                p: state.assignment.positioning.live_positions(p, owed.get(p)) for p in ends
            }
        old: dict[TopicPartition, set[int]] = {p: set() for p in ends}
        wanted = {p: [at for at in positions[p] if at < ends[p]] for p in ends}
        while asked := {p: offsets.pop() for p, offsets in wanted.items() if offsets}:
            told = cluster.next_timestamps_now(asked, ends, LOOKUP_TIMEOUT_MS)
            for p, at in asked.items():
                if p not in told:
                    del old[p], wanted[p]
                elif (timestamp := told[p]) is not None and timestamp < since:
                    old[p].add(at)
        return {p: _Log(ends[p], positions[p], old_at) for p, old_at in old.items()}

    def _set_back(
        self, member: QueryMember, owed: Mapping[TopicPartition, Remaining]
    ) -> set[TopicPartition]:
        """Set the group back to where Spark's own source ended, where the group is ahead of it."""
        with self._state as state:
            back = state.starts.set_back(owed, state.assignment.marks.positions())
        for partition in back.keys() - self._told_of:
            log.warning(
                "group %s: some records of %s-%d up to offset %d are processed; its offset is set "
                "back to %d, where the checkpoint of Spark's own source ends",
                *(self._options.group_id, *partition, owed[partition].live, back[partition]),
            )
        self._told_of |= back.keys()
        try:
            member.commit_processed(back)
        except PartitionsLostError as error:
            log.info("not committed: %s", error)  # the next poll_membership reports the loss
        return set(back)

    def _configured(
        self, cluster: DeferredRevokeConsumer, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where partitions without a position start; leaves out those that have no leader now."""
        with self._state as state:
            rules = {p: state.starts.rule_of(p) for p in partitions}
        starts = {p: rule for p, rule in rules.items() if isinstance(rule, int)}
        times = {p: rule for p, rule in rules.items() if isinstance(rule, AtTimestamp)}
        if asked := cluster.partitions_with_leader(times):
            found = cluster.offsets_for_times(
                {p: times[p].timestamp_ms for p in asked}, LOOKUP_TIMEOUT_MS
            )
            starts.update({p: at.offset for p in asked if (at := found.get(p)) is not None})
            for p in asked:
                if p not in starts and not times[p].or_latest:
                    raise times[p].no_record(p)
                rules[p] = "latest"
        for name, look_up in (
            ("earliest", cluster.beginning_offsets),
            ("latest", cluster.end_offsets),
        ):
            asked = cluster.partitions_with_leader(
                [p for p, rule in rules.items() if rule == name and p not in starts]
            )
            if asked:
                found_at = look_up(asked, LOOKUP_TIMEOUT_MS)
                starts.update(self._as_of_start(found_at) if name == "latest" else found_at)
        return starts

    def _as_of_start(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where these logs ended when the query started, given where they end now."""
        with self._state as state:
            return {p: state.starts.end_at_start(p, end) for p, end in ends.items()}
