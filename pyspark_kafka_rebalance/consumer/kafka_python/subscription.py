"""What a consumer is subscribed to, and the assignment that its polls read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from kafka.consumer.subscription_state import TopicPartitionState
from kafka.structs import OffsetAndMetadata, TopicPartition

from ...transport.kafka_python_version import require_names

if TYPE_CHECKING:
    from kafka.cluster import ClusterMetadata
    from kafka.consumer.subscription_state import SubscriptionState

# mark_pending_revocation is what sets _pending_revocation.
require_names({TopicPartitionState: ("mark_pending_revocation", "position")})


class Subscription:
    """kafka-python's ``SubscriptionState``, as far as the members of groups use it.

    Parameters
    ----------
    state : SubscriptionState
        The consumer's.
    cluster : ClusterMetadata
        Told which topics to follow.
    """

    def __init__(self, state: SubscriptionState, cluster: ClusterMetadata) -> None:
        self._state = state
        self._cluster = cluster

    # -- what is subscribed to --------------------------------------------------------------------

    @property
    def subscribed(self) -> bool:
        """Whether this consumer is subscribed, as against assigned by hand or nothing yet."""
        return bool(self._state.partitions_auto_assigned())

    @property
    def topics(self) -> frozenset[str]:
        """The topics subscribed to now (for a pattern: those that match)."""
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

    # -- what is assigned -------------------------------------------------------------------------

    def owned(self) -> frozenset[TopicPartition]:
        """The partitions of the applied assignment, those being revoked included."""
        return frozenset(self._state.assigned_partitions())

    def set_assignment(
        self, partitions: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """Own exactly ``partitions``; nothing of ``gated`` is fetched or returned any more.

        On the thread that polls.

        The library clears the gate with every new assignment, so both are set together; 3.0.5
        does not, and has no call that would. The public ``assign_from_subscribed`` refuses a
        partition of a topic that just left the subscription (a deleted topic under a pattern),
        which is still ours until it is released.
        """
        with self._state._lock:
            self._state._apply_assignment(sorted(partitions), randomize=True)
            for partition, state in self._state.assignment.items():
                state._pending_revocation = partition in gated

    def position(self, partition: TopicPartition) -> int | None:
        """The next offset that a poll will return, as far as it is known; asks nobody."""
        state = self._state.assignment.get(partition)
        position = None if state is None else state.position
        return None if position is None else int(position.offset)

    def consumed(self) -> dict[TopicPartition, OffsetAndMetadata]:
        """Where each partition stands that has a position: what ``commit()`` commits."""
        consumed: dict[TopicPartition, OffsetAndMetadata] = self._state.all_consumed_offsets()
        return consumed
