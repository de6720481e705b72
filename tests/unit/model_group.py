"""A consumer group of fake members whose coordinator is another party, which fences, for a model.

Written from KIP-429 and KIP-848, as far as they agree: the coordinator has a target; a partition
goes to its new owner when the old one has released it, or is out of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from fake_members import FakeMember, Group
from kafka.structs import TopicPartition
from model_log import Logs, PartitionLog

from pyspark_kafka_rebalance.consumer.consumer import PollResult
from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining

P, Q = (TopicPartition("t", n) for n in range(2))
BOTH = (P, Q)


class ModelGroup(Group):
    """The coordinator and the partitions' leader.

    Parameters
    ----------
    on_gone : callable
        Told of every partition that a member does not own any more, with whether it has completed
        a revoke.
    """

    def __init__(self, on_gone: Callable[[ModelMember, TopicPartition, bool], None]) -> None:
        super().__init__()
        self.on_gone = on_gone
        self.on_commit: Callable[[], None] = lambda: None
        self.logs: Logs = {p: PartitionLog() for p in BOTH}
        self.ends = dict.fromkeys(BOTH, 0)
        self.roster: list[ModelMember] = []
        self.owner: dict[TopicPartition, ModelMember | None] = dict.fromkeys(BOTH)
        self.target: dict[TopicPartition, ModelMember | None] = dict.fromkeys(BOTH)
        self.epoch = 0
        #: How commits fare: "accepted", "held" on their way, or "unanswered" although accepted.
        self.commits = "accepted"
        #: The furthest end at which a query with "latest" began, for want of the group's offset.
        self.latest_start: dict[TopicPartition, int] = {}
        #: Partitions whose log became shorter.
        self.may_go_back: set[TopicPartition] = set()

    def build(self, **config: Any) -> ModelMember:
        member = ModelMember(self, config)
        self.members.append(member)
        return member

    def produce(self, partition: TopicPartition, number: int) -> None:
        self.logs[partition].produce(number)
        self.ends[partition] = self.logs[partition].end

    def truncate(self, partition: TopicPartition, end: int) -> None:
        self.logs[partition].truncate(end)
        self.ends[partition] = self.logs[partition].end
        self.may_go_back.add(partition)

    def forget_offsets(self) -> None:
        """They expire when a group has been empty for long, or it is deleted."""
        assert not self.roster
        self.committed.clear()
        self.metadata.clear()

    # -- membership -------------------------------------------------------------------------------

    def join(self, member: ModelMember) -> None:
        self.roster.append(member)
        self.aim([n % len(self.roster) for n in range(len(BOTH))])

    def remove(self, member: ModelMember) -> None:
        """It left, or its session ended."""
        self.roster.remove(member)
        for partition in BOTH:
            if self.owner[partition] is member:
                self.give_up(member, partition, completed=False)
        self.aim([n % max(1, len(self.roster)) for n in range(len(BOTH))])

    def aim(self, owners: Collection[int]) -> None:
        """Want these members, by their place in the roster, to own the partitions."""
        self.epoch += 1
        for partition, owner in zip(BOTH, owners, strict=True):
            self.target[partition] = self.roster[owner % len(self.roster)] if self.roster else None

    def give_up(self, member: ModelMember, partition: TopicPartition, completed: bool) -> None:
        if self.owner[partition] is member:
            self.owner[partition] = None
            self.on_gone(member, partition, completed)

    def describe(self) -> GroupDescription:
        return GroupDescription(
            "Stable" if self.roster else "Empty",
            tuple(GroupMember(m.config["client_id"]) for m in self.roster),
        )

    # -- offsets ----------------------------------------------------------------------------------

    def owed(self, partition: TopicPartition) -> Remaining:
        """By the last commit, with what its metadata tell."""
        offset = self.committed.get(partition, 0)
        return Remaining.decode(offset, self.metadata.get(partition), str(partition)).remaining

    def commit(
        self, member: ModelMember, partition: TopicPartition, offset: int, metadata: str
    ) -> bool:
        """Whether the commit is accepted: it is fenced by membership, not by ownership."""
        if member not in self.roster:
            return False
        assert self.owner[partition] is member, f"{partition} committed by who does not own it"
        before = self.committed.get(partition)
        if before is not None and offset < before:
            assert partition in self.may_go_back, f"{partition}: {before} back to {offset}"
        self.committed[partition] = offset
        self.metadata[partition] = metadata
        self.on_commit()
        return True


class ModelMember(FakeMember):
    """A fake member that joins the model group with its first poll, and again when it is fenced."""

    group: ModelGroup

    def __init__(self, group: ModelGroup, config: dict[str, Any]) -> None:
        super().__init__(group, config)
        self.fenced = False
        self.lease_holds = False
        self.has_joined = False  # once

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {p.partition for p in BOTH}

    def poll_membership(self) -> PollResult:
        if self.fenced:
            self.fenced = False
            self._to_assign = []
            self.lose(*self.owned)
        elif self not in self.group.roster:
            self.group.join(self)
            self.lease_holds = self.has_joined = True
        else:
            self._hear()
        result = super().poll_membership()
        for partition in result.lost | result.revoked:
            self.group.give_up(self, partition, completed=partition in result.revoked)
        return result

    def _hear(self) -> None:
        """A heartbeat's answer."""
        group = self.group
        wanted = {p for p in BOTH if group.target[p] is self}
        free = {p for p in wanted if group.owner[p] is None and p not in self.owned}
        for partition in free:
            group.owner[partition] = self
        if free or self.generation < 0:
            self.assign(*free, generation=group.epoch)
        self.revoke(*self.owned - wanted)
        self.take_revoke_back(*wanted)

    def end_offsets(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        """Asked for the start of a partition that nobody knows."""
        ends = super().end_offsets(partitions, timeout_ms)
        starts = self.group.latest_start
        starts.update({p: max(end, starts.get(p, 0)) for p, end in ends.items()})
        return ends

    def end_offsets_now(
        self, partitions: Collection[TopicPartition], timeout_ms: float
    ) -> dict[TopicPartition, int]:
        return super().end_offsets(self.partitions_with_leader(partitions), timeout_ms)

    def fence(self) -> None:
        """Its session ended. It learns of it with its next poll; its lease ended before."""
        self.lease_holds = False
        self.fenced = True
        self.generation = -1
        self.group.remove(self)

    def exchange_commits(self) -> None:
        if self.group.commits == "held":
            return
        sent = self.commits.take()
        accepted = [
            p
            for p, (offset, *_) in sent.items()
            if self.group.commit(self, p, offset, self.metadata(p, offset))
        ]
        if self.group.commits == "accepted":
            self.commits.acknowledge(accepted)
        self.commits.retry()

    def drain(self, timeout_ms: float) -> bool:
        self.exchange_commits()
        return not self.commits.any_outstanding()

    def close(self, timeout_ms: float) -> None:
        super().close(timeout_ms)
        if self in self.group.roster:
            self.group.remove(self)
