"""Part: the parts of ``HandOuts`` share one lock and all the state that it guards."""

from __future__ import annotations

import threading
from collections.abc import Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias
from weakref import WeakSet

from kafka.structs import TopicPartition

from ...transport.forks import RefusedLock
from ..commits.commit_by_hand import EnteredCommit
from ..membership.group_membership import GroupMembership
from ..membership.ownership import Ownership
from ..offsets.offset_set import Gap
from ..offsets.told_remaining import bound_to
from .completion import Completion

if TYPE_CHECKING:
    from ..kafka_python.coordinator import GroupCoordinator

Lock: TypeAlias = "threading.Lock | RefusedLock"


class UnderWay:
    """The explicit commits that are not answered yet; under the lock of ``HandOuts``."""

    def __init__(self) -> None:
        # Weak: the sender of a commit, or its waiter, keeps it alive.
        self._commits: WeakSet[EnteredCommit] = WeakSet()

    def add(self, by_hand: EnteredCommit) -> None:
        """Add a commit that was entered after the others."""
        self._commits.add(by_hand)

    def claims_of(self, partition: TopicPartition) -> list[Gap]:
        """The records of a partition that unanswered commits claim as processed."""
        return [
            claim
            for by_hand in self._commits
            if not by_hand.future.is_done
            for claim in by_hand.claims_of(partition)
        ]

    def handed_out_again(self, partition: TopicPartition, offset: int) -> None:
        """Later answers do not mark records from this offset on as processed."""
        for by_hand in self._commits:
            by_hand.handed_out_again(partition, offset)

    def forget(self, partitions: Set[TopicPartition]) -> None:
        """These partitions are no longer owned: drop their claims.

        When the answer to such a commit is late, they may already be assigned again, and the
        records that it names handed out once more.
        """
        for by_hand in self._commits:
            for partition in by_hand.claims.keys() & partitions:
                by_hand.claims[partition] = ()

    def forget_all(self) -> None:
        """No partition is owned any longer."""
        self.forget({p for by_hand in self._commits for p in by_hand.claims})


@dataclass
class Shared:
    """The state of one consumer's hand-outs; ``membership`` commits the processed ones."""

    io: GroupCoordinator
    membership: GroupMembership
    ownership: Ownership
    lock: Lock = field(default_factory=threading.Lock)
    completion: Completion = field(default_factory=Completion)
    under_way: UnderWay = field(default_factory=UnderWay)


class Part:
    """Base of ``HandOuts`` and its parts, which share ``Shared``."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._group_id = shared.io.group_id
        self._subscription = shared.io.subscription
        self._metadata = shared.io.metadata
        self._starts = shared.io.starts
        self._membership = shared.membership
        self._commits = shared.membership.commits
        self._ownership = shared.ownership
        self._completion = shared.completion
        self._under_way = shared.under_way

    @property
    def lock(self) -> Lock:
        """Held while a commit is added, and while Ownership changes.

        Never held over I/O or a listener. Taking it in a forked child raises.
        """
        return self._shared.lock

    def carry_out(self) -> None:
        """Hand out the records that the last poll has returned; the caller holds the lock.

        Called before any other change of the hand-outs.
        """
        self._subscription.taken.carry_out()

    def bound(self, partition: TopicPartition) -> str:
        """The binding of a commit's metadata: in another topic, the same offsets are other records.

        Topic metadata with an error have no id, but do not mean that the topic is another one.
        """
        topic_id = self._metadata.topic_id(partition.topic)
        if topic_id is None and (before := self._completion.bound(partition)) is not None:
            return before
        return bound_to(topic_id, partition)
