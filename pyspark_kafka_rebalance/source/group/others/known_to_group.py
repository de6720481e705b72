"""KnownToGroup: finds out, before this query owns any partitions, which ones the group knows.

It requests the group's committed offsets of the checkpoint's partitions, and finds the partitions
that are new to the group: created after it started to read their topic (:func:`new_to_group`). Each
is requested once, and again after a retriable error. Runs on the pump's thread.

Members of the source commit the starts of all their partitions as soon as they have found them. So
if a partition has no committed offset although the group has committed others of its topic, no
member has had it yet: it was added to the topic later. None of its records was delivered, so it
starts with the first one, like a partition that is found while a query runs.

This is true only of offsets fetched *before* the query's own members join. After that, two members
of a new group may look up their starts at the same time, and the slower one would take its
partitions for new because the other has already committed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart

log = logging.getLogger(__name__)


def new_to_group(
    partitions: Collection[TopicPartition], committed: Collection[TopicPartition]
) -> frozenset[TopicPartition]:
    """Find the partitions of the topics that are new to the group.

    They have no committed offset, in topics that the group reads.
    """
    topics = {p.topic for p in committed}
    return frozenset(p for p in partitions if p.topic in topics and p not in committed)


#: How soon to repeat a failed look-up that the members need before they join.
_ASK_AGAIN_S = 0.02


class KnownToGroup(QueryPart):
    """Asks for new partitions before the members join, and for offsets once they may be behind."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        # Whether find_committed is done. With assign, the query owns the partitions from the
        # start, so there is nothing to ask.
        self._has_asked = core.options.partitions is not None

    def find_new(self) -> None:
        """Find out, before the members join, which partitions are new to the group."""
        # With ``assign`` the group's offsets say nothing about partitions that are not named.
        if self._options.partitions is not None:
            return
        with self._state as state:
            asked = state.starts.maybe_new_to_group()
        while asked and not self._pump.is_stopping:
            try:
                committed = self._members[0].committed_offsets(asked, LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                if not error.retriable:
                    return  # joining the group raises a better error
                log.warning(
                    "group %s: cannot look up the committed offsets yet: %r",
                    self._options.group_id,
                    error,
                )
                self._pump.wait(_ASK_AGAIN_S)
                continue
            with self._state as state:
                state.starts.found_new_to_group(new_to_group(asked, committed))
            return

    def find_committed(self) -> None:
        """Find out, once, the group's committed offsets of the checkpoint's partitions.

        If an offset is lower by the time the partition is assigned, another query has found the log
        shorter in between (``Positioning.start_at``).
        """
        if self._has_asked:
            return
        with self._state as state:
            asked = state.starts.may_go_back(state.assignment.marks.unheard_of())
        try:
            committed = self._members.committed(asked, LOOKUP_TIMEOUT_MS) if asked else {}
        except kafka_errors.KafkaError as error:
            self._has_asked = not error.retriable  # the start look-up raises a better error
            log.info(
                "group %s: cannot look up the committed offsets yet: %r",
                self._options.group_id,
                error,
            )
            return
        self._has_asked = True
        with self._state as state:
            state.assignment.commits.acknowledge_remaining(committed)
