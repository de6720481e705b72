"""A consumer's subscription and assignment."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kafka.consumer.fetcher import Fetcher
from kafka.consumer.subscription_state import SubscriptionState, TopicPartitionState
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...transport.kafka_python_version import require_names
from ..offsets.read_ahead import ReadAhead
from ..taken import Taken

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata

# mark_pending_revocation sets _pending_revocation.
require_names(
    {
        TopicPartitionState: ("mark_pending_revocation", "position"),
        SubscriptionState: ("is_paused", "paused_partitions", "fetchable_partitions"),
        # It checks for pauses when it hands out fetched records, not when it fetches.
        Fetcher: ("fetched_records", "_fetchable_partitions"),
    }
)


class Subscription:
    """kafka-python's ``SubscriptionState``, as far as group members use it.

    Parameters
    ----------
    state : SubscriptionState
        The consumer's.
    cluster : ClusterMetadata
        Is notified of the topics to follow.

    Attributes
    ----------
    ahead : ReadAhead
        The application's position in partitions where polls are ahead of it.
    taken : Taken
        The records that the current or last poll has taken.
    """

    def __init__(self, state: SubscriptionState, cluster: ClusterMetadata) -> None:
        self._state = state
        self._cluster = cluster
        self._topic_ids: dict[str, UUID] = {}
        self.ahead = ReadAhead()
        self.taken = Taken(returned=True)
        self._holds_buffered = False

    # -- subscription -----------------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """Whether this consumer has a subscription, rather than a manual assignment or neither."""
        return bool(self._state.partitions_auto_assigned())

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to now (for a pattern: the matching ones)."""
        return frozenset(self._state.subscription or ())

    @property
    def pattern(self) -> str | None:
        """The regular expression subscribed to, in Python's syntax, if there is one."""
        compiled = self._state.subscribed_pattern
        return None if compiled is None else str(compiled.pattern)

    @property
    def rebalance_listener(self) -> Any:
        """The listener given to ``subscribe``, or None."""
        return self._state.rebalance_listener

    def watch_topics(self, topics: Collection[str]) -> None:
        """As the group's leader, also follow the metadata of the other members' topics."""
        self._state.group_subscribe(topics)
        self._cluster.set_topics(self._state.group_subscription())

    # -- assignment -------------------------------------------------------------------------------

    def owned(self) -> frozenset[TopicPartition]:
        """The partitions of the applied assignment, including those being revoked."""
        return frozenset(self._state.assigned_partitions())

    def set_assignment(
        self, partitions: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """Own exactly ``partitions``; stop fetching and returning records of ``gated``.

        Call it on the polling thread.

        The library clears the gate with every new assignment, so both are set together; 3.0.5 does
        not, and has no call that would. The public ``assign_from_subscribed`` refuses a partition
        of a topic that just left the subscription (a deleted topic under a pattern), which is still
        owned until it is released.
        """
        self.give_back(gated)
        self.ahead.forget(self.owned() - set(partitions))
        with self._state._lock:
            self._state._apply_assignment(sorted(partitions), randomize=True)
            for partition, state in self._state.assignment.items():
                state._pending_revocation = partition in gated
        self.forget_replaced_topics()  # to learn the first ids

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that the application receives, if it is known; asks no broker."""
        read = self.read_position(partition)
        if read is not None and (before := self.taken.position(partition)) is not None:
            return int(before.offset)
        mark = self.ahead.marks.get(partition)
        return read if read is None or mark is None else min(read, mark.offset)

    def taking(self, partition: TopicPartition) -> None:
        """The current poll is about to move this partition's position or its mark."""
        taken, state = self.taken, self._state.assignment.get(partition)
        position = None if state is None else state.position
        if taken.returned or partition in taken.positions or position is None:
            return
        mark = self.ahead.marks.get(partition)
        if mark is not None and mark.offset < position.offset:
            position = mark.as_position()
        taken.positions[partition] = position

    def take_back(self) -> None:
        """The current poll returns nothing: the records that it has taken are polled again.

        So are all records that a merge has buffered, because it may have been interrupted, too.
        """
        if self.taken.returned:
            return
        self.ahead.reading = False
        self.end_reading_ahead()
        self.ahead.merge = None
        for partition, position in self.taken.positions.items():
            self.put_back(partition, position)
        self.taken = Taken(returned=True)

    def read_position(self, partition: TopicPartition) -> int | None:
        """The offset after all records that polls have read, buffered ones included."""
        state = self._state.assignment.get(partition)
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def put_back(self, partition: TopicPartition, position: OffsetAndMetadata) -> None:
        """Rewind the live reader to this position; the records it returned belong to the gaps."""
        state = self._state.assignment.get(partition)
        if state is not None and state.position is not None:
            state.position = position

    def give_back(self, partitions: Collection[TopicPartition]) -> None:
        """Drop a merge's buffered records of these partitions; polls return them again."""
        for partition in self.ahead.marks.keys() & set(partitions):
            mark, position = self.ahead.marks[partition], self.read_position(partition)
            if position is not None and position > mark.offset:
                self.put_back(partition, mark.as_position())
        self.ahead.forget(self.ahead.buffered() & set(partitions))

    def end_reading_ahead(self) -> None:
        """Take back all that is buffered, because the application polls in another way.

        Those polls return the buffered records, too.
        """
        if self.ahead.held or self.ahead.buffered():
            self.give_back(self.ahead.buffered())
            self.ahead.held.clear()

    def go_back(self, partition: TopicPartition, end: OffsetAndMetadata) -> None:
        """The log was truncated: rewind the live reader to this position, if it was beyond.

        Buffered records still in the log are polled again.
        """
        read, mark = self.read_position(partition), self.ahead.marks.get(partition)
        if read is not None and read > end.offset:
            below = mark is not None and mark.offset < end.offset
            self._state.seek(partition, mark.as_position() if mark and below else end)
            self.ahead.forget([partition])

    def forget_replaced_topics(self) -> None:
        """Forget the leader epochs of positions in recreated topics.

        The epochs of a recreated topic start over. With an old one, its log would seem truncated
        where it ends, and the records that it has by then would be left out. Called with an
        assignment, for the first ids, and on the I/O loop with new metadata.
        """
        assignment = list(self._state.assignment.items())
        for topic in {partition.topic for partition, _ in assignment}:
            topic_id = self._cluster.topic_id(topic)
            if topic_id is None or not topic_id.int:  # deleted, or not known
                continue
            before, self._topic_ids[topic] = self._topic_ids.get(topic), topic_id
            if before in (None, topic_id):
                continue
            for partition, state in assignment:
                with self._state._lock:
                    if partition.topic == topic and state.position is not None:
                        # This also ends a validation by epoch; else nothing would be fetched.
                        self._state.seek(
                            partition, OffsetAndMetadata(state.position.offset, "", -1)
                        )

    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that the application has paused."""
        assignment = list(self._state.assignment.items())
        return frozenset(partition for partition, state in assignment if state.paused)

    def hold_while_buffered(self) -> None:
        """Fetch and hand out nothing of partitions of which a merge has enough buffered."""
        if not self._holds_buffered:
            self._holds_buffered = True
            self.hold(self.ahead.held.__contains__, 0)

    def hold(self, held: Callable[[TopicPartition], bool], kept: int) -> None:
        """Hand out nothing of a partition while ``held`` returns True.

        For up to ``kept`` held partitions, the records of one fetch are kept, and handed out once
        the partition is no longer held; nothing more is fetched until then. This is independent of
        the application's own pause.
        """
        state = self._state
        all_fetchable, was_paused = state.fetchable_partitions, state.is_paused

        def fetchable_partitions() -> list[TopicPartition]:
            fetchable: list[TopicPartition] = all_fetchable()
            held_back = sorted(p for p in fetchable if held(p))
            not_yet = frozenset(held_back[kept:])
            return [p for p in fetchable if p not in not_yet]

        def is_paused(partition: TopicPartition) -> bool:
            found = state.assignment.get(partition)
            return found is not None and (was_paused(partition) or held(partition))

        state.fetchable_partitions = fetchable_partitions
        state.is_paused = is_paused
        state.paused_partitions = lambda: set(self.paused())

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """The position of each partition that has one, which ``commit()`` commits."""
        consumed: dict[TopicPartition, OffsetAndMetadata] = self._state.all_consumed_offsets()
        for partition, mark in list(self.ahead.marks.items()):
            if partition in consumed and consumed[partition].offset > mark.offset:
                consumed[partition] = mark.as_position()
        taken = self.taken
        if not taken.returned:
            consumed |= {p: at for p, at in list(taken.positions.items()) if p in consumed}
        return consumed
