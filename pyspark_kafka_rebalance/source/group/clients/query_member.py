"""QueryMember: the interface of a client that owns partitions for a query.

There are two: ``DeferredRevokeConsumer``, a member of the group, and ``AssignClient``, which names
its partitions itself. Broker look-ups unrelated to ownership go to the consumer next to it
(:class:`QueryClient`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol
from uuid import UUID

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit, Remaining
from ....consumer.poll_result import PollResult

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer


class QueryMember(Protocol):
    """Owns partitions and commits for them.

    Only the pump's thread polls, updates and closes it. The properties and :meth:`may_hand_out` can
    be used on any thread, also with the lock of the query's state held: they never block.
    """

    # -- state ------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of the assignment in force; -1 for a client in no group."""

    @property
    def is_stable(self) -> bool:
        """Whether it has joined and its assignment is in force."""

    @property
    def heard_at(self) -> float:
        """When the last heartbeat that was accepted was sent, monotonic seconds; -inf before."""

    @property
    def member_id(self) -> str:
        """The id by which the coordinator knows it; empty before it has joined."""

    @property
    def session_timeout_ms(self) -> float:
        """How long after its last heartbeat the group removes it."""

    def may_hand_out(self) -> bool:
        """Whether it is certain right now that it owns its assigned partitions."""

    # -- partitions -------------------------------------------------------------------------------

    def poll_membership(self) -> PollResult:
        """Take part in the rebalance and report changes; neither waits nor fetches.

        Raises the error that ends the membership.
        """

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Keep these for one more poll although their revoke is requested; False if one is lost."""

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group, and rejoin with the next poll, which reports the lost partitions."""

    def close(self, *, timeout_ms: float | None) -> None:
        """Leave for good, and close the connections."""

    # -- commits ----------------------------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets in the background; PartitionsLostError if one is not owned."""

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`commit_processed`, with everything that is left of each partition."""

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """The last value of :meth:`commit_remaining` that the broker has accepted."""

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The owned partition's next offset, as last acknowledged by the broker."""

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """Request the group's committed offsets now; leaves out partitions without one.

        Raises KafkaTimeoutError, or the broker's error if it refuses.
        """

    def group_commits(
        self, partitions: Collection[TopicPartition], timeout_ms: float, in_order: bool = False
    ) -> dict[TopicPartition, GroupCommit]:
        """As :meth:`committed_offsets`, with who has committed; see ``DeferredRevokeConsumer``."""

    def describe_commits(self, describe: Callable[[TopicPartition, int, int, str], str]) -> None:
        """Let each commit say who made it; see ``DeferredRevokeConsumer``."""

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the waiting commits of these, and allow a lower offset to be committed next."""

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Take the partitions unknown to the broker whose commits were given up since last call."""

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of the topic that the group has assigned; None if it assigns by name."""

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False if they are not within ``timeout_ms``."""


class QueryClient(NamedTuple):
    """One client of a query: its owner and look-up roles; a group member fills both."""

    member: QueryMember
    cluster: DeferredRevokeConsumer
