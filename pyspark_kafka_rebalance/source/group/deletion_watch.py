"""DeletionWatch: looks for partitions of a query that were deleted, or are there again.

``deleted_partitions`` decides what counts as deleted; this asks, and tells the state. The pump
calls :meth:`find`, :meth:`forget` and :meth:`left`, the planner :meth:`ask` and :meth:`take`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ...errors import names_of
from .deleted_partitions import DeletedPartitions, ask_for_missing
from .query_members import LOOKUP_TIMEOUT_MS, QueryMembers
from .query_state import QueryState

if TYPE_CHECKING:
    from ..options import SourceOptions

log = logging.getLogger(__name__)

#: How often it is looked whether topics are gone whose positions the offsets still carry.
_FORGET_EVERY_S = 60.0


class DeletionWatch:
    """For one query.

    Parameters
    ----------
    options : SourceOptions
        Those of a stream.
    state : QueryState
        Told of what is deleted.
    members : QueryMembers
        Whose client is asked.
    """

    def __init__(self, options: SourceOptions, state: QueryState, members: QueryMembers) -> None:
        self._options = options
        self._state = state
        self._members = members
        self._decision = DeletedPartitions()
        # And not seen again since; replaced, because the planner reads it.
        self._deleted: frozenset[TopicPartition] = frozenset()
        self._forgot_at = time.monotonic()

    @property
    def deleted(self) -> frozenset[TopicPartition]:
        """Deleted, and not there again."""
        return self._deleted

    @property
    def in_doubt(self) -> Collection[TopicPartition]:
        """What the coordinator does not know: to commit it waits for the next answer."""
        return self._decision.in_doubt

    def left(self, partitions: Collection[TopicPartition]) -> None:
        """These went away in a rebalance, as those do whose topic was deleted."""
        self._decision.left(partitions)
        self._members.cluster_of(0).request_metadata()

    def find(self) -> None:
        """Look for partitions that were deleted, or are there again; see DeletedPartitions."""
        if self._options.partitions is not None:
            return  # the client of assign looks for itself
        for member in self._members:
            self._decision.doubt(member.take_unknown())
        if not self._decision.is_due():
            return
        client = self._members.cluster_of(0)
        with self._state as state:
            watched = self._decision.watched(state.assignment.partitions.all())
        known = client.known_partitions(watched)
        missing: frozenset[TopicPartition] = frozenset()
        if suspects := self._decision.suspects(watched - self._deleted, known):
            try:
                missing = ask_for_missing(client, suspects, "subscribe", LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                log.warning("not known whether %s still exist: %r", names_of(suspects), error)
                return
        deleted = self._decision.answered(missing)
        back = self._deleted & known
        self._deleted = (self._deleted | deleted) - back
        with self._state as state:
            state.starts.created_anew(deleted)
            state.deleted |= state.assignment.delete(deleted)
            state.assignment.partitions.start_anew(back)
            if deleted or back:
                state.note_change()
        for index, member in enumerate(self._members if deleted else ()):
            member.forget_commits(deleted)
            self._members.cluster_of(
                index
            ).request_metadata()  # one of them may have to assign what is left

    def forget(self) -> None:
        """Drop the positions of topics that exist no more, or the offsets would grow for ever."""
        now = time.monotonic()
        if now - self._forgot_at < _FORGET_EVERY_S:
            return
        self._forgot_at = now
        client = self._members.cluster_of(0)
        with self._state as state:
            elsewhere = (
                state.assignment.marks.positions().keys() - state.assignment.partitions.all().keys()
            )
        suspects = {p.topic for p in elsewhere}
        suspects = {topic for topic in suspects if not client.partitions_for_topic(topic)}
        if not suspects:
            return
        try:
            suspects -= client.existing_topics(LOOKUP_TIMEOUT_MS)
            suspects -= client.hidden_topics(suspects, LOOKUP_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("not known whether topics still exist: %r", error)
            return
        with self._state as state:
            state.assignment.forget([p for p in elsewhere if p.topic in suspects])

    def ask(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """Those that do not exist any more, by metadata that is fetched now.

        Raises
        ------
        AuthorizationError
            Some of the topics may not be described.
        kafka.errors.KafkaTimeoutError
            No broker answers.
        """
        with self._members.asking() as client:
            return sorted(ask_for_missing(client, partitions, "subscribe", LOOKUP_TIMEOUT_MS))

    def take(self) -> dict[TopicPartition, int | None]:
        """Partitions found deleted since the last call, and how far each was read, if it was."""
        with self._state as state:
            deleted, state.deleted = state.deleted, {}
        return deleted
