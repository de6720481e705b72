"""ReplacedTopics: whether the topic of a newly assigned partition was deleted, or created anew.

While another member had the partition, or nobody, nothing told of it; and Kafka has dropped the
group's offsets with the old topic. So the metadata are asked only where there is none. A group that
assigns by the topics' ids takes the partition back from whoever has it, which may be this query: it
is told so by the id, and then has lost records. On the pump's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from .deletion_watch import DeletionWatch
from .query_member import QueryMember
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)


class ReplacedTopics:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Knows the topics by their ids, and forgets what was before.
    members : QueryMembers
        They forget their commits.
    deletions : DeletionWatch
        Knows what this query had until lately.
    """

    def __init__(
        self,
        options: SourceOptions,
        state: QueryState,
        members: QueryMembers,
        deletions: DeletionWatch,
    ) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._deletions = deletions
        # Of what is assigned without a start, that whose topic was looked at.
        self._looked_at: set[TopicPartition] = set()
        # Assigned, by metadata of before, when they had been deleted.
        self._absent: set[TopicPartition] = set()

    def keep(self, starting: Collection[TopicPartition]) -> None:
        """These are assigned without a start; what is known of others is forgotten."""
        self._looked_at &= set(starting)
        self._absent &= set(starting)

    def without_absent(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those of these that were there when it was looked.

        What was not, its owner until then is to miss; to start it would make it this query's.
        """
        return [p for p in partitions if p not in self._absent]

    def look_again(self, cluster: ClusterQueries) -> None:
        """What was absent may be there by now; ``DeletionWatch`` looks whether it stays so."""
        if self._absent:
            self._absent -= cluster.known_partitions(self._absent)

    def look(
        self,
        member: QueryMember,
        cluster: ClusterQueries,
        partitions: Collection[TopicPartition],
        committed: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Forget what is known of partitions whose topic was deleted and is there again.

        Parameters
        ----------
        member : QueryMember
            Was assigned these.
        cluster : ClusterQueries
            Its client.
        partitions : collection of TopicPartition
            Without a start.
        committed : collection of TopicPartition
            Those of which the group has an offset.

        Returns
        -------
        set
            What this query had until just now. An offset that the group has of it may be its own,
            committed by the topic's name.
        """
        assigned = {p: member.assigned_topic_id(p) for p in partitions}
        topic_ids = {p.topic: found for p, found in assigned.items() if found is not None}
        by_name = {p for p, found in assigned.items() if found is None}
        if back := by_name & set(self._deletions.left_lately()):
            ids_now = cluster.topic_ids_now({p.topic for p in back}, LOOKUP_TIMEOUT_MS)
            topic_ids = {**ids_now, **topic_ids}
        if asked := set(partitions) - set(committed) - self._looked_at:
            cluster.existing_topics(LOOKUP_TIMEOUT_MS)  # the metadata may be those of before
            self._absent |= asked - cluster.known_partitions(asked)
            asked -= self._absent
            # What the group has assigned may be newer than what a broker tells.
            topic_ids = {**cluster.topic_ids({p.topic for p in asked}), **topic_ids}
        with self._state as state:
            replaced = state.starts.replaced(asked, topic_ids)
            had = self._deletions.left_of_others(topic_ids)
            owned = state.assignment.partitions.all()
            known = asked | state.starts.initial | state.assignment.marks.positions().keys()
            anew = {p for p in (known if replaced else ()) if p.topic in replaced} | had.keys()
            anew |= state.starts.started_in_another(partitions, topic_ids)
            anew = {p for p in anew if p not in owned or owned[p].position is None}
            state.starts.created_anew(anew)
            state.assignment.positioning.delete(anew)
            state.deleted |= {p: left.position for p, left in had.items()}
            state.gone_elsewhere |= anew - had.keys()
            state.assignment.partitions.start_anew(anew - had.keys())
            state.assignment.partitions.created_while_owned(had)
        for topic in sorted(replaced):
            log.warning(
                "group %s: topic %s was created anew, and is read from its first record",
                *(self._options.group_id, topic),
            )
        for one in self._members if anew else ():
            one.forget_commits(anew)
        self._looked_at |= asked
        return set(had)
