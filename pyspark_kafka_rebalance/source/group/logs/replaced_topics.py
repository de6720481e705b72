"""ReplacedTopics: whether the topic of a newly assigned partition was deleted, or created anew.

Nothing shows that while another member, or nobody, has the partition. But Kafka drops the group's
offsets together with the old topic, so the metadata is fetched only for partitions without an
offset. A group that assigns by topic id revokes the partition from its owner. If that is this
query, it sees the new id, and it has lost records. Runs on the pump's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ....consumer.cluster_queries import ClusterQueries
from ..clients.query_member import QueryMember
from ..clients.query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from ..query_state import QueryState
from .deletion_watch import DeletionWatch

if TYPE_CHECKING:
    from ...options import SourceOptions

log = logging.getLogger(__name__)


class ReplacedTopics:
    """Checks the topics of one query.

    Parameters
    ----------
    options : SourceOptions
        The stream's options.
    state : QueryState
        Knows the topics' ids, and forgets the old partitions.
    members : QueryMembers
        They forget their commits.
    deletions : DeletionWatch
        Knows which partitions left this query lately.
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
        # Assigned partitions without a start whose topic was checked.
        self._looked_at: set[TopicPartition] = set()
        # Assigned from stale metadata after they had been deleted.
        self._absent: set[TopicPartition] = set()

    def keep(self, starting: Collection[TopicPartition]) -> None:
        """These are assigned without a start; forget the others."""
        self._looked_at &= set(starting)
        self._absent &= set(starting)

    def without_absent(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """The given partitions without those that were found absent.

        The loss of an absent one is its previous owner's to report. If it were started here, it
        would become this query's.
        """
        return [p for p in partitions if p not in self._absent]

    def look_again(self, cluster: ClusterQueries) -> None:
        """Drop absent partitions that exist now; ``DeletionWatch`` checks whether that lasts."""
        if self._absent:
            self._absent -= cluster.known_partitions(self._absent)

    def look(
        self,
        member: QueryMember,
        cluster: ClusterQueries,
        partitions: Collection[TopicPartition],
        committed: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Forget what is known of partitions whose topic was deleted and created anew.

        Parameters
        ----------
        member : QueryMember
            The member that was assigned these.
        cluster : ClusterQueries
            Its client for look-ups.
        partitions : collection of TopicPartition
            The partitions without a start.
        committed : collection of TopicPartition
            Those of which the group has an offset.

        Returns
        -------
        set
            Partitions that this query had until just now. The group's offset of such a partition
            may be the query's own, committed by topic name.
        """
        assigned = {p: member.assigned_topic_id(p) for p in partitions}
        topic_ids = {p.topic: found for p, found in assigned.items() if found is not None}
        by_name = {p for p, found in assigned.items() if found is None}
        if back := by_name & set(self._deletions.left_lately()):
            ids_now = cluster.topic_ids_now({p.topic for p in back}, LOOKUP_TIMEOUT_MS)
            topic_ids = {**ids_now, **topic_ids}
        if asked := set(partitions) - set(committed) - self._looked_at:
            cluster.existing_topics(LOOKUP_TIMEOUT_MS)  # the metadata may be stale
            self._absent |= asked - cluster.known_partitions(asked)
            asked -= self._absent
            # The ids that the group has assigned may be newer than those of a broker.
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
                "group %s: topic %s was recreated, reading it from its first record",
                *(self._options.group_id, topic),
            )
        for one in self._members if anew else ():
            one.forget_commits(anew)
        self._looked_at |= asked
        return set(had)
