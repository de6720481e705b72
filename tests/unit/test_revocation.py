"""Revocations against a model that is written from KIP-983's text, list by list."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.revocation import Revocations

PARTITIONS = [TopicPartition("t", n) for n in range(5)]
some_partitions = st.sets(st.sampled_from(PARTITIONS))


class KipLists:
    """The KIP's proposed changes, sentence by sentence, on plain lists."""

    def __init__(self) -> None:
        self.revoke_next: list[TopicPartition] = []
        self.revoke_thereafter: list[TopicPartition] = []
        self.lost: list[TopicPartition] = []

    def start_of_poll(self) -> list[TopicPartition]:
        completed = list(self.revoke_next)  # 1. complete ... then empty the list
        self.revoke_next.clear()
        self.lost.clear()  # 2. empty the list of lost partitions
        self.revoke_next.extend(self.revoke_thereafter)  # 3. move thereafter to next
        self.revoke_thereafter.clear()
        return completed

    def revoke_requested(self, partition: TopicPartition) -> None:
        self.revoke_next.append(partition)

    def partition_lost(self, partition: TopicPartition) -> None:
        for pending in (self.revoke_next, self.revoke_thereafter):
            if partition in pending:
                pending.remove(partition)
        self.lost.append(partition)

    def delay_revoke(self, partition: TopicPartition) -> None:
        if partition in self.revoke_next:
            self.revoke_next.remove(partition)
            self.revoke_thereafter.append(partition)


class AgainstTheKip(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = KipLists()
        self.revocations = Revocations()

    def pending(self) -> set[TopicPartition]:
        return {*self.model.revoke_next, *self.model.revoke_thereafter}

    @rule(gone=some_partitions)
    def poll(self, gone: set[TopicPartition]) -> None:
        # What was lost since the last poll is lost before the KIP's step 1, and listed after 2.
        for partition in gone:
            self.model.partition_lost(partition)
        completed = self.model.start_of_poll()
        self.model.lost = list(gone)
        assert self.revocations.begin_poll(gone) == set(completed)
        assert not gone & set(completed)

    @rule(partitions=some_partitions)
    def request(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions - self.pending() - set(self.model.lost):
            self.model.revoke_requested(partition)
        self.revocations.request(partitions)

    @rule(partitions=some_partitions)
    def lose(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self.model.partition_lost(partition)
        self.revocations.lose(partitions)

    @rule(partitions=some_partitions)
    def delay(self, partitions: set[TopicPartition]) -> None:
        for partition in partitions:
            self.model.delay_revoke(partition)
        self.revocations.delay(partitions)

    @rule(partitions=some_partitions)
    def take_back(self, partitions: set[TopicPartition]) -> None:
        for pending in (self.model.revoke_next, self.model.revoke_thereafter):
            pending[:] = [p for p in pending if p not in partitions]
        self.revocations.take_back(partitions)

    @invariant()
    def same_lists(self) -> None:
        assert self.revocations.to_be_revoked == set(self.model.revoke_next)
        assert self.revocations.revoking == self.pending()
        assert self.revocations.lost == set(self.model.lost)

    @invariant()
    def never_in_two_lists(self) -> None:
        thereafter = self.revocations.revoking - self.revocations.to_be_revoked
        assert not self.revocations.lost & self.revocations.revoking
        assert len(self.model.revoke_thereafter) == len(thereafter)


TestAgainstTheKip = AgainstTheKip.TestCase


def test_a_delayed_revoke_completes_in_the_poll_after_the_next() -> None:
    revocations = Revocations()
    revocations.begin_poll()
    revocations.request(PARTITIONS[:2])
    revocations.delay(PARTITIONS[:1])
    assert revocations.begin_poll() == {PARTITIONS[1]}
    assert revocations.to_be_revoked == {PARTITIONS[0]}
    assert revocations.begin_poll() == {PARTITIONS[0]}
    assert revocations.begin_poll() == frozenset()


def test_what_is_lost_between_two_polls_is_not_completed() -> None:
    revocations = Revocations()
    revocations.request(PARTITIONS[:2])
    assert revocations.begin_poll(already_lost=PARTITIONS[:1]) == {PARTITIONS[1]}
    assert revocations.lost == {PARTITIONS[0]}
