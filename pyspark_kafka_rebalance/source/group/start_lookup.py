"""StartLookup: asks the brokers where newly assigned partitions start, by the rules of Starts.

On the pump's thread. A look-up that fails for a moment is repeated with the next tick.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from ...consumer.pump import Pump
from ...errors import PartitionsLostError
from ..starting_offsets import AtTimestamp
from .new_to_group import new_to_group
from .query_member import QueryMember
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How soon a failed look-up that members wait for before they join is repeated.
_ASK_AGAIN_S = 0.02


class StartLookup:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Has the rules, and gets the starts.
    members : QueryMembers
        Each is asked for what it owns.
    pump : Pump
        Ends a wait when it is to stop.
    """

    def __init__(
        self, options: SourceOptions, state: QueryState, members: QueryMembers, pump: Pump
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._pump = pump
        # How far the group is with what the checkpoint knows; what is assigned by hand is the
        # query's own from the beginning.
        self._has_asked = options.partitions is not None
        self._told_of: set[TopicPartition] = set()  # in the log, of those set back
        # Of what is assigned without a start, that whose topic was looked at.
        self._looked_at: set[TopicPartition] = set()

    def find_new_to_group(self) -> None:
        """Find out, before the members join, which partitions are new to the group."""
        # With ``assign`` a group's offsets say nothing of the partitions it does not name.
        if self._options.partitions is not None:
            return
        with self._state as state:
            asked = state.starts.maybe_new_to_group()
        while asked and not self._pump.is_stopping:
            try:
                committed = self._members[0].committed_offsets(asked, LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    return  # joining the group says better what is refused
                log.warning("group %s: offsets not known yet: %r", self._options.group_id, error)
                self._pump.wait(_ASK_AGAIN_S)
                continue
            with self._state as state:
                state.starts.found_new_to_group(new_to_group(asked, committed))
            return

    def find_committed(self) -> None:
        """Find out, once, how far the group is with what the checkpoint knows.

        If its offset is a lower one when a partition is assigned, another query has found the log
        shorter since (``QueryAssignment.start_at``).
        """
        if self._has_asked:
            return
        with self._state as state:
            asked = state.starts.may_go_back(state.assignment.marks.unheard_of())
        try:
            committed = (
                self._members[0].committed_offsets(asked, LOOKUP_TIMEOUT_MS) if asked else {}
            )
        except kafka_errors.KafkaError as error:
            self._has_asked = not error.retriable  # a start says better what is refused
            log.info("group %s: offsets not known yet: %r", self._options.group_id, error)
            return
        self._has_asked = True
        with self._state as state:
            state.assignment.acknowledge(committed)

    def find(self) -> None:
        """Find out where newly assigned partitions start.

        Raises
        ------
        KafkaRebalanceError
            There is no record at the timestamp or later, and the strategy is ``error``.
        kafka.errors.KafkaError
            A broker refuses to tell.
        """
        with self._state as state:
            wanted = state.assignment.partitions.unpositioned()
        self._looked_at &= {p for found in wanted.values() for p in found}
        for index, partitions in wanted.items():
            member, cluster = self._members[index], self._members.cluster_of(index)
            try:
                committed = member.committed_offsets(partitions, LOOKUP_TIMEOUT_MS)
                if ahead := self._set_back(member, committed):
                    # Their starts are asked for again when the group has them.
                    partitions = [p for p in partitions if p not in ahead]
                self._look_at_topics(index, [p for p in partitions if p not in committed])
                with self._state as state:
                    unknown = dict.fromkeys(
                        p
                        for p in partitions
                        if p not in committed and not state.assignment.marks.are_known(p)
                    )
                otherwise = self._configured(cluster, unknown)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    raise
                log.warning("start of %s not found yet: %r", partitions, error)
                continue
            with self._state as state:
                still = set(state.assignment.partitions.unpositioned().get(index, ()))
                for partition in partitions:
                    if partition in still and (partition not in unknown or partition in otherwise):
                        state.assignment.start_at(
                            partition, committed.get(partition), otherwise.get(partition, -1)
                        )
                        state.starts.started(partition)
                state.starts.saw(cluster.topic_ids({p.topic for p in partitions}))
                state.note_change()

    def _look_at_topics(self, index: int, partitions: Collection[TopicPartition]) -> None:
        """Forget what is known of partitions whose topic was deleted and is there again.

        While another member had them, or nobody, nothing told of it; and Kafka has dropped the
        group's offsets with the old topic. So this matters only where there is none.
        """
        if not (asked := set(partitions) - self._looked_at):
            return
        cluster = self._members.cluster_of(index)
        cluster.existing_topics(LOOKUP_TIMEOUT_MS)  # the metadata may be those of before
        topic_ids = cluster.topic_ids({p.topic for p in asked})
        with self._state as state:
            replaced = state.starts.replaced(asked, topic_ids)
            owned = state.assignment.partitions.all()
            known = asked | state.starts.initial | state.assignment.marks.positions().keys()
            anew = {
                p
                for p in (known if replaced else ())
                if p.topic in replaced and (p not in owned or owned[p].position is None)
            }
            state.starts.created_anew(anew)
            state.assignment.delete(anew)
            state.assignment.partitions.start_anew(anew)
        for topic in sorted(replaced):
            log.warning(
                "group %s: topic %s was created anew, and is read from its first record",
                *(self._options.group_id, topic),
            )
        for member in self._members if anew else ():
            member.forget_commits(anew)
        self._looked_at |= asked

    def _set_back(
        self, member: QueryMember, committed: Mapping[TopicPartition, int]
    ) -> set[TopicPartition]:
        """Have the group begin where Spark's own source has ended, if it is ahead of that."""
        with self._state as state:
            back = state.starts.set_back(committed, state.assignment.marks.positions())
        for partition in back.keys() - self._told_of:
            log.warning(
                "group %s: its offset %d of %s-%d is set back to %d, where the checkpoint of "
                "Spark's own source ends",
                *(self._options.group_id, committed[partition], *partition, back[partition]),
            )
        self._told_of |= back.keys()
        try:
            member.commit_processed(back)
        except PartitionsLostError as error:
            log.info("not committed: %s", error)  # the next poll_membership tells of the loss
        return set(back)

    def _configured(
        self, cluster: ClusterQueries, partitions: Collection[TopicPartition]
    ) -> dict[TopicPartition, int]:
        """Where partitions start that have no position; without those that have no leader now."""
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
                starts.update(look_up(asked, LOOKUP_TIMEOUT_MS))
        return starts
