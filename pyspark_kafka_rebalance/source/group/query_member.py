"""QueryMember: what a query needs of whoever owns partitions for it.

``DeferredRevokeConsumer`` is one, a member of the group; ``AssignClient`` is the other, which
names its partitions itself. Questions to the brokers that have nothing to do with owning go to the
``ClusterQueries`` beside it (:class:`QueryClient`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, Protocol
from uuid import UUID

from kafka.structs import TopicPartition

from ...consumer.cluster_queries import ClusterQueries
from ...consumer.poll_result import PollResult
from ...consumer.remaining import Remaining


class QueryMember(Protocol):
    """Owns partitions and commits for them.

    Polled, told and closed by the pump's thread alone. The properties and :meth:`may_hand_out` are
    for any thread, and for those that hold the lock of the query's state: they end at once.
    """

    # -- how it stands ----------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Of the assignment in force; -1 of one that is in no group."""
        ...

    @property
    def is_stable(self) -> bool:
        """Whether it has joined and its assignment is in force."""
        ...

    @property
    def member_id(self) -> str:
        """By which the coordinator knows it; empty before it has joined."""
        ...

    @property
    def session_timeout_ms(self) -> float:
        """After which the group gives it up when it is dead."""
        ...

    def may_hand_out(self) -> bool:
        """Whether it is certain right now that it owns what it was assigned."""
        ...

    # -- partitions -------------------------------------------------------------------------------

    def poll_membership(self) -> PollResult:
        """Take part in the rebalance and say what has changed; neither waits nor fetches.

        Raises what ends the membership.
        """
        ...

    def delay_revoke(self, partitions: Iterable[TopicPartition]) -> bool:
        """Keep these, whose revoke is requested, for one more poll; False if one is lost."""
        ...

    def leave_until_polled(self, reason: str) -> None:
        """Leave the group, and join again with the next poll, which tells what is lost."""
        ...

    def close(self, *, timeout_ms: float | None) -> None:
        """Leave for good, and close the connections."""
        ...

    # -- commits ----------------------------------------------------------------------------------

    def commit_processed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Commit these next offsets in the background; PartitionsLostError if one is not owned."""
        ...

    def commit_remaining(self, remaining: Mapping[TopicPartition, Remaining]) -> None:
        """As :meth:`commit_processed`, with what is left of partitions as a whole."""
        ...

    def acknowledged_remaining(self, partition: TopicPartition) -> Remaining | None:
        """What :meth:`commit_remaining` was given last, once the broker has accepted it."""
        ...

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset of an owned partition that the broker has acknowledged last."""
        ...

    def committed_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """The group's committed offsets, asked now; without those that have none.

        Raises KafkaTimeoutError, and what the broker refuses.
        """
        ...

    def committed_remaining(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, Remaining]:
        """As :meth:`committed_offsets`, with what the group is owed beyond them."""
        ...

    def forget_commits(self, partitions: Collection[TopicPartition]) -> None:
        """Send nothing more of what waits, and let a lower offset be committed next."""
        ...

    def take_unknown(self) -> frozenset[TopicPartition]:
        """Those whose commit was given up since the last call, since the broker has no such."""
        ...

    def assigned_topic_id(self, partition: TopicPartition) -> UUID | None:
        """Of the topic that the group has assigned; None where that is done by name."""
        ...

    def drain(self, timeout_ms: float) -> bool:
        """Wait until all commits are acknowledged; False when they are not by ``timeout_ms``."""
        ...


class QueryClient(NamedTuple):
    """One client of a query: who owns, and who is asked; of a member of the group they are one."""

    member: QueryMember
    cluster: ClusterQueries
