"""OffsetCommits against a model that remembers every call."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.commits.offset_commits import OffsetCommits

PARTITIONS = [TopicPartition("t", n) for n in range(3)]
some_partitions = st.sets(st.sampled_from(PARTITIONS))
some_offsets = st.dictionaries(st.sampled_from(PARTITIONS), st.integers(0, 20))


class AgainstABroker(RuleBasedStateMachine):
    """A broker that keeps what it is sent, and an application that remembers what it asked."""

    def __init__(self) -> None:
        super().__init__()
        self.commits = OffsetCommits()
        self.asked: dict[TopicPartition, int] = {}  # since the partition was last dropped
        self.broker: dict[TopicPartition, int] = {}  # likewise
        self.sent: dict[TopicPartition, int] = {}
        self.dropped_in_flight: set[TopicPartition] = set()

    @rule(offsets=some_offsets)
    def add(self, offsets: dict[TopicPartition, int]) -> None:
        self.commits.add(offsets)
        for partition, offset in offsets.items():
            self.asked[partition] = max(offset, self.asked.get(partition, -1))

    @rule()
    def take(self) -> None:
        taken = {p: entry.offset for p, entry in self.commits.take().items()}
        assert not (taken and self.sent), "two commits in flight"
        if taken:
            self.sent = taken
            for partition, offset in taken.items():
                assert offset == self.asked[partition], "not the newest"
                assert offset > self.broker.get(partition, -1), "moved backwards or repeated"

    @precondition(lambda self: self.sent)
    @rule(accepted=some_partitions, gone=some_partitions)
    def answered(self, accepted: set[TopicPartition], gone: set[TopicPartition]) -> None:
        gone -= accepted
        for partition in accepted & set(self.sent) - self.dropped_in_flight:
            self.broker[partition] = self.sent[partition]
        for partition in gone & set(self.sent) - self.dropped_in_flight:
            # Refused for good: the application learns of it elsewhere.
            if self.asked.get(partition) == self.sent[partition]:
                del self.asked[partition]
                if partition in self.broker:
                    self.asked[partition] = self.broker[partition]
        self.commits.acknowledge(accepted)
        self.commits.settle(gone)
        self.commits.retry()
        self.sent = {}
        self.dropped_in_flight = set()

    @rule(partitions=some_partitions)
    def drop(self, partitions: set[TopicPartition]) -> None:
        self.commits.drop(partitions)
        for partition in partitions:
            self.asked.pop(partition, None)
            self.broker.pop(partition, None)
            if partition in self.sent:
                self.dropped_in_flight.add(partition)

    @invariant()
    def acknowledged_is_what_the_broker_answered(self) -> None:
        for partition in PARTITIONS:
            assert self.commits.acknowledged(partition) == self.broker.get(partition)

    @invariant()
    def outstanding_until_the_broker_has_it(self) -> None:
        for partition in PARTITIONS:
            wanted = self.asked.get(partition, -1) > self.broker.get(partition, -1)
            assert self.commits.outstanding(partition) == (wanted or partition in self.sent)
        assert self.commits.any_outstanding() == any(map(self.commits.outstanding, PARTITIONS))


TestAgainstABroker = AgainstABroker.TestCase
