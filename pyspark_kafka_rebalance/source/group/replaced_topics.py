"""ReplacedTopics: whether the topic of a newly assigned partition was deleted, or created anew.

While another member had the partition, or nobody, nothing told of it; and Kafka has dropped the
group's offsets with the old topic. So this matters only where there is none. On the pump's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
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
    """

    def __init__(self, options: SourceOptions, state: QueryState, members: QueryMembers) -> None:
        self._options = options
        self._state = state
        self._members = members
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

    def look(self, cluster: ClusterQueries, partitions: Collection[TopicPartition]) -> None:
        """Forget what is known of partitions whose topic was deleted and is there again."""
        if not (asked := set(partitions) - self._looked_at):
            return
        cluster.existing_topics(LOOKUP_TIMEOUT_MS)  # the metadata may be those of before
        self._absent |= asked - cluster.known_partitions(asked)
        asked -= self._absent
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
            state.assignment.positioning.delete(anew)
            state.gone_elsewhere |= anew
            state.assignment.partitions.start_anew(anew)
        for topic in sorted(replaced):
            log.warning(
                "group %s: topic %s was created anew, and is read from its first record",
                *(self._options.group_id, topic),
            )
        for member in self._members if anew else ():
            member.forget_commits(anew)
        self._looked_at |= asked
