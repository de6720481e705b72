"""MemberStatus: the state of a group member as of its last poll. Asks no broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from .cluster_queries import ClusterQueries
from .fetch_metadata import EndOffsets, FetchMetadata
from .membership.group_membership import GroupMembership
from .membership.ownership import Ownership
from .offsets.checked_arguments import checked_partition

if TYPE_CHECKING:
    from kafka.structs import ConsumerGroupMetadata


class MemberStatus(ClusterQueries):
    """A KafkaConsumer that reports what it owns; on any thread, also while a poll runs."""

    _membership: GroupMembership
    _ownership: Ownership
    _ends: EndOffsets

    def assignment(self) -> set[TopicPartition]:
        """The partitions assigned now, including those to be revoked.

        A partition leaves the assignment when its revoke is completed or it is lost, even while an
        unanswered last commit still delays its release to the group.

        Returns
        -------
        set of TopicPartition
            A snapshot that belongs to the caller, as in ``KafkaConsumer``.
        """
        return set(self.assigned)

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """As ``assignment``, but not to be changed."""
        return (
            self._ownership.assignment
            if self._io.subscription.subscribed
            else self._io.subscription.owned()
        )

    def get_to_be_revoked_partitions(self) -> frozenset[TopicPartition]:
        """The partitions whose revoke the next poll completes, unless it is delayed."""
        return self._ownership.to_be_revoked

    def get_lost_partitions(self) -> frozenset[TopicPartition]:
        """Partitions that were lost during the last poll."""
        return self._ownership.lost

    def current_lag(self, partition: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end, as of the last poll.

        Never asks a broker. The end is the high watermark, or the last stable offset under
        ``read_committed``. Java's ``Consumer#currentLag`` (KIP-695).

        Returns
        -------
        int or None
            None while the position or the end is unknown: no fetch has been answered yet.

        Raises
        ------
        IllegalStateError
            The partition is not assigned; ``position`` and ``highwater`` raise it, too.
        """
        partition = checked_partition("current_lag", partition)
        if partition not in self.assigned:
            raise IllegalStateError(f"{partition} is not assigned")
        standing = self._standing_of(partition)
        return None if standing is None else standing.lag

    @property
    def is_subscribed(self) -> bool:
        """Whether partitions are assigned by the group, and not by ``assign``."""
        return self._io.subscription.subscribed

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 before the first."""
        return self._ownership.generation

    def group_metadata(self) -> ConsumerGroupMetadata:
        """The membership that owns what polls returned, for ``send_offsets_to_transaction``.

        Call it for each transaction, right before the offsets are sent: partitions that stay are
        owned in the newest generation, and the coordinator refuses older ones.

        After a loss it is the membership that was lost, and the coordinator refuses the
        transaction: until the next assignment is in force, or, if the membership goes on without
        some of its partitions, until a poll has reported them as lost. Outside a group (partitions
        assigned by hand) the generation is -1, and the coordinator refuses nothing.
        """
        found: ConsumerGroupMetadata = super().group_metadata()
        return found

    @property
    def is_stable(self) -> bool:
        """Whether this member has joined and its assignment is in force."""
        return self._membership.is_stable()

    @property
    def heard_at(self) -> float:
        """When the last heartbeat that was accepted was sent, monotonic seconds; -inf before."""
        return self._membership.parts.schedule.heard_at

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows this member; empty before the first join."""
        return self._membership.member_id

    @property
    def session_timeout_ms(self) -> int:
        """The member is out after this long without a sign of life; the broker's, once known."""
        return self._membership.lease.session_timeout_ms

    def may_hand_out(self) -> bool:
        """Whether the membership is certain now: the lease holds, and no loss is unapplied."""
        return self._membership.lease.holds() and not self._membership.loss_waits()

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition whose commit the broker has acknowledged."""
        return self._membership.commits.acknowledged(checked_partition("acknowledged", partition))

    def highwater(self, partition: TopicPartition) -> int | None:
        """``KafkaConsumer.highwater``: the end of the log, as of the last fetch."""
        highwater: int | None = super().highwater(checked_partition("highwater", partition))
        return highwater

    def _standing_of(self, partition: TopicPartition) -> FetchMetadata | None:
        """Return the metadata behind ``current_lag``; None, too, if it is not assigned."""
        position = self._io.subscription.position(partition)
        end = self._ends.latest(partition)
        return None if end is None or position is None else end.seen_from(position)

    def _metadata_of(self, partition: TopicPartition) -> FetchMetadata | None:
        end = self._ends.latest(partition)
        position = self._io.subscription.read_position(partition)
        return None if end is None or position is None else end.seen_from(position)
