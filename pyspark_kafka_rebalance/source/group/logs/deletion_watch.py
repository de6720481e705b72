"""DeletionWatch: finds partitions of a query that were deleted or recreated.

``deleted_partitions`` makes the decision; this module does the I/O and updates the state. The pump
calls :meth:`find_absent`, :meth:`find`, :meth:`forget` and :meth:`left`; the planner calls
:meth:`ask` and :meth:`take`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....errors import names_of
from ..clients.query_member import QueryMember
from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart
from ..owned.deleted_partitions import (
    TOPIC_IDS_TIMEOUT_MS,
    DeletedPartitions,
    Left,
    ask_for_missing,
)

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer

log = logging.getLogger(__name__)

#: How often to check for deleted topics whose positions the offsets still carry.
_FORGET_EVERY_S = 60.0

#: How soon a failed request for the topics' ids is repeated.
_IDENTIFY_AGAIN_S = 1.0


class DeletionWatch(QueryPart):
    """Makes ``DeletedPartitions``' requests, and removes deleted partitions from the state."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        self._decision = DeletedPartitions()
        # And not seen again. Replaced, never changed, because the planner reads it too.
        self._deleted: frozenset[TopicPartition] = frozenset()
        self._forgot_at = time.monotonic()
        self._identify_at = 0.0
        self._asked_after = 0  # the batch after which topic ids were last requested
        # With assign, missing partitions have already failed the query.
        self._has_looked = core.options.partitions is not None

    @property
    def deleted(self) -> frozenset[TopicPartition]:
        """Partitions that were deleted and do not exist again."""
        return self._deleted

    @property
    def in_doubt(self) -> Collection[TopicPartition]:
        """Partitions unknown to the coordinator: their commits wait for the next answer."""
        return self._decision.in_doubt

    def left(self, partitions: Mapping[TopicPartition, Left]) -> None:
        """These left in a rebalance, as they also do if their topic was deleted."""
        self._decision.left(partitions)
        self._members.cluster_of(0).request_metadata()

    def left_lately(self) -> Collection[TopicPartition]:
        """Partitions that left in a rebalance and are still checked."""
        return self._decision.left_lately()

    def left_of_others(self, topic_ids: Mapping[str, UUID]) -> dict[TopicPartition, Left]:
        """As ``DeletedPartitions.replaced``: partitions this query had before the deletion."""
        return self._decision.replaced(topic_ids)

    def find_absent(self) -> bool:
        """Find, once, partitions of the checkpoint that no longer exist; returns whether done.

        If one of that name appears during this run, it is another partition, without a known
        position. The metadata that the run started with lacked these partitions. It may have been
        stale, so it is fetched once more.
        """
        if self._has_looked:
            return True
        client = self._members.cluster_of(0)
        with self._state as state:
            unseen = state.starts.unseen(state.assignment.marks.known())
        absent: list[TopicPartition] = []
        if unseen:
            try:
                topics = {p.topic for p in unseen}
                gone = _gone(client, topics)
            except kafka_errors.KafkaError as error:
                self._has_looked = not error.retriable
                log.info("cannot check whether %s still exist: %r", names_of(unseen), error)
                return self._has_looked
            # The refreshed metadata may lack an existing topic that is not subscribed.
            firsts = [TopicPartition(topic, 0) for topic in topics]
            there = client.known_partitions([*firsts, *unseen])
            counted = {p.topic for p in there}
            absent = [
                p for p in unseen if p.topic in gone or (p.topic in counted and p not in there)
            ]
        self._has_looked = True
        with self._state as state:
            state.starts.created_anew(absent)
            state.assignment.positioning.delete(absent)
        return True

    def find(self) -> None:
        """Find partitions that were deleted or exist again; see DeletedPartitions."""
        client = self._members.cluster_of(0)
        self._identify(client)
        for member in self._members:
            self._decision.doubt(member.take_unknown())
        if not self._decision.is_due():
            return
        if self._options.partitions is not None:
            return  # the client of assign checks this itself
        with self._state as state:
            watched = self._decision.watched(state.assignment.partitions.all())
        known = client.known_partitions(watched)
        missing: frozenset[TopicPartition] = frozenset()
        # From metadata that may be stale.
        replaced = self._in_another_topic(watched, client.topic_ids({p.topic for p in watched}))
        replaced |= self._in_another_topic(watched, self._topic_ids_by_name(client))
        if suspects := self._decision.suspects(watched - self._deleted, known) | replaced:
            try:
                missing = ask_for_missing(client, suspects, "subscribe", LOOKUP_TIMEOUT_MS)
            except kafka_errors.KafkaError as error:
                log.warning("cannot check whether %s still exist: %r", names_of(suspects), error)
                return
            topic_ids = client.topic_ids({p.topic for p in suspects})
            replaced = self._in_another_topic(suspects, topic_ids) - missing
        replaced = self._decision.in_another_topic(replaced)
        replaced |= self._replaced(self._decision.in_doubt - missing)
        left = self._decision.replaced(client.topic_ids({p.topic for p in replaced}))
        lately = self._decision.left_lately()
        deleted = self._decision.answered(missing)
        back = self._deleted & known
        self._deleted = (self._deleted | deleted) - back
        deleted |= replaced
        with self._state as state:
            state.starts.created_anew(deleted)
            # One without a start was assigned after its deletion: its previous owner reports the
            # loss. That may be this query, through another of its members.
            owned = state.assignment.partitions.all()
            unread = {p for p in deleted - left.keys() if p in owned and owned[p].position is None}
            left |= {p: lately[p] for p in unread & lately.keys()}
            unread -= left.keys()
            read = state.assignment.positioning.delete(deleted)
            state.deleted |= {p: at for p, at in read.items() if p not in unread}
            state.deleted |= {p: one.position for p, one in left.items()}
            state.gone_elsewhere |= unread
            state.assignment.partitions.start_anew(back)
            by_name = {p for p in replaced & owned.keys() if self._is_by_name(owned[p].member, p)}
            state.assignment.partitions.created_while_owned(by_name)
            if deleted or back:
                state.last_change.note()
        if unread:
            log.warning("%s deleted, before this query had a start offset for it", names_of(unread))
        for index, member in enumerate(self._members if deleted else ()):
            member.forget_commits(deleted)
            self._members.cluster_of(
                index
            ).request_metadata()  # one of them may be the leader, and has to assign the rest

    def _is_by_name(self, member: int, partition: TopicPartition) -> bool:
        """Whether the group assigns it by name, so that the new topic's partition comes with it.

        A group that assigns by topic id takes the old one back.
        """
        return self._members[member].assigned_topic_id(partition) is None

    def _identify(self, client: DeferredRevokeConsumer) -> None:
        """Find out the topic ids of started partitions that are assigned by name.

        This is done at once: a topic recreated before that would be mistaken for the old one.
        """
        with self._state as state:
            if not state.starts.unidentified or time.monotonic() < self._identify_at:
                return
            topics = {p.topic for p in state.starts.unidentified}
        try:
            topic_ids = client.topic_ids_now(topics, TOPIC_IDS_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            self._identify_at = time.monotonic() + _IDENTIFY_AGAIN_S
            log.info("cannot look up the topic ids yet: %r", error)
            return
        with self._state as state:
            state.starts.identify(state.assignment.partitions.all().keys(), topic_ids)

    def _topic_ids_by_name(self, client: DeferredRevokeConsumer) -> Mapping[str, UUID]:
        """The ids of topics assigned by name, requested now and then; usually empty."""
        with self._state as state:
            batch = state.assignment.batches.number
            if not self._decision.wants_topic_ids(batch != self._asked_after):
                return {}
            owned = {p: own.member for p, own in state.assignment.partitions.all().items()}
        self._asked_after = batch
        topics = {p.topic for p, member in owned.items() if self._is_by_name(member, p)}
        try:
            return client.topic_ids_now(topics, TOPIC_IDS_TIMEOUT_MS)
        except kafka_errors.KafkaError as error:
            log.info("cannot check whether topics were recreated: %r", error)
            return {}

    def _in_another_topic(
        self, partitions: Collection[TopicPartition], topic_ids: Mapping[str, UUID]
    ) -> frozenset[TopicPartition]:
        """The given partitions whose topic is no longer the one in which they were started.

        Excludes partitions that the group has already assigned in the new topic: ``ReplacedTopics``
        checks them before they are started, and the group would not take them back.
        """
        with self._state as state:
            found = state.starts.started_in_another(partitions, topic_ids)
            owned = state.assignment.partitions.all()
            member_of = {p: owned[p].member for p in found if p in owned}
        return frozenset(
            p
            for p in found
            if p not in member_of
            or self._members[member_of[p]].assigned_topic_id(p) != topic_ids[p.topic]
        )

    def _replaced(self, refused: Collection[TopicPartition]) -> frozenset[TopicPartition]:
        """Partitions unknown to the coordinator that belong to the old one of two topics.

        The coordinator will never know them. It wants to revoke them, and their commits would hold
        that up.
        """
        if not refused:
            return frozenset()
        now = self._members.cluster_of(0).topic_ids({p.topic for p in refused})
        with self._state as state:
            owned = state.assignment.partitions.all()
            member_of = {p: owned[p].member for p in refused if p in owned}
        # A member that still has the old one may be refused while another already has the new one.
        return frozenset(
            p
            for p, member in member_of.items()
            if (assigned := self._members[member].assigned_topic_id(p)) is not None
            and now.get(p.topic, assigned) != assigned
        )

    def forget(self) -> None:
        """Drop the positions of topics that no longer exist, or the offsets would grow forever."""
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
            gone = _gone(client, suspects)
        except kafka_errors.KafkaError as error:
            log.info("cannot check whether topics still exist: %r", error)
            return
        with self._state as state:
            state.assignment.positioning.forget([p for p in elsewhere if p.topic in gone])

    def ask(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        """The given partitions that no longer exist, according to freshly fetched metadata.

        Raises AuthorizationError if DESCRIBE is not granted, or a KafkaTimeoutError.
        """
        with self._members.asking() as client:
            return sorted(ask_for_missing(client, partitions, "subscribe", LOOKUP_TIMEOUT_MS))

    def take(self) -> dict[TopicPartition, int | None]:
        """Partitions found deleted since the last call, and how far each was read, if at all."""
        with self._state as state:
            deleted, state.deleted = state.deleted, {}
        return deleted

    def take_gone_elsewhere(self) -> set[TopicPartition]:
        """Partitions found since the last call that were deleted while the query lacked them.

        Their topic may exist again.
        """
        with self._state as state:
            gone, state.gone_elsewhere = state.gone_elsewhere, set()
        return gone


def _gone(client: DeferredRevokeConsumer, topics: set[str]) -> set[str]:
    """The topics that no longer exist, requested now; a hidden topic may exist."""
    missing = topics - client.existing_topics(LOOKUP_TIMEOUT_MS)
    return missing - client.hidden_topics(missing, LOOKUP_TIMEOUT_MS)


class ReplacedTopics(QueryPart):
    """Whether the topic of a newly assigned partition was deleted, or recreated.

    Nothing shows that while another member, or none, has the partition. But Kafka drops the group's
    offsets together with the old topic, so the metadata is fetched only for partitions without an
    offset. A group that assigns by topic id revokes the partition from its owner. If that is this
    query, it sees the new id, and it has lost records. Runs on the pump's thread.
    """

    def __init__(self, core: QueryCore, deletions: DeletionWatch) -> None:
        super().__init__(core)
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
        """The given partitions without absent ones.

        The previous owner of an absent one reports its loss. If it were started here, it would
        become this query's.
        """
        return [p for p in partitions if p not in self._absent]

    def look_again(self, cluster: DeferredRevokeConsumer) -> None:
        """Drop absent partitions that exist now; ``DeletionWatch`` checks whether that lasts."""
        if self._absent:
            self._absent -= cluster.known_partitions(self._absent)

    def look(
        self,
        member: QueryMember,
        cluster: DeferredRevokeConsumer,
        partitions: Collection[TopicPartition],
        committed: Collection[TopicPartition],
    ) -> set[TopicPartition]:
        """Forget partitions whose topic was deleted and recreated.

        ``committed`` are the partitions with an offset in the group. Returns the partitions that
        this query had until just now: the group's offset of such a partition may be the query's
        own, committed by topic name.
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
            # The ids that the group has assigned may be newer than a broker's.
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
