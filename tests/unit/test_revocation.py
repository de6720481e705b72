"""Revocations against a model that is written from KIP-983's text.

The model has no lists that are moved about: of every requested revoke it knows in which poll it is
to be completed, which is what the KIP promises its users. Quoted is the sentence that a rule or a
check comes from.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.revocation import Revocations

PARTITIONS = [TopicPartition("t", n) for n in range(5)]
some_partitions = st.sets(st.sampled_from(PARTITIONS))


class AgainstTheKip(RuleBasedStateMachine):
    """A consumer whose group takes and gives partitions, and a user who delays."""

    def __init__(self) -> None:
        super().__init__()
        self.revocations = Revocations()
        self.poll_number = 0
        self.assigned: set[TopicPartition] = set()
        self.completed_in: dict[TopicPartition, int] = {}  # the poll that is to complete it
        self.lost_in: dict[TopicPartition, int] = {}  # the last poll in which it was lost

    def due(self, polls_from_now: int) -> set[TopicPartition]:
        return {
            p
            for p, number in self.completed_in.items()
            if number == self.poll_number + polls_from_now
        }

    def forget(self, partitions: set[TopicPartition]) -> None:
        self.assigned -= partitions
        for partition in partitions:
            self.completed_in.pop(partition, None)

    @rule(gone=some_partitions)
    def poll(self, gone: set[TopicPartition]) -> None:
        """ "complete the revoke of all partitions on the revoke-next list, then empty the list";
        "Once the partition is lost, the delay request is denied": what was lost since the last
        poll is not completed by this one."""
        gone &= self.assigned
        self.poll_number += 1
        self.forget(gone)
        self.lost_in |= dict.fromkeys(gone, self.poll_number)
        completed = self.due(0)
        assert self.revocations.begin_poll(gone) == completed
        self.forget(completed)

    @rule(partitions=some_partitions)
    def assign(self, partitions: set[TopicPartition]) -> None:
        """Not what the same poll has lost: it would be lost and assigned."""
        self.assigned |= {p for p in partitions if self.lost_in.get(p) != self.poll_number}

    @rule(partitions=some_partitions)
    def request(self, partitions: set[TopicPartition]) -> None:
        """ "in the new approach, when a revoke is requested in one poll, the revoke will be
        completed in the next poll"; once more of the same changes nothing, nor does one of what is
        just lost, of which the group need not know yet."""
        just_lost = {p for p, number in self.lost_in.items() if number == self.poll_number}
        partitions &= self.assigned | just_lost
        for partition in partitions - self.completed_in.keys() - just_lost:
            self.completed_in[partition] = self.poll_number + 1
        self.revocations.request(partitions)

    @rule(partitions=some_partitions)
    def delay(self, partitions: set[TopicPartition]) -> None:
        """ "request revoke for given partitions to be delayed to the poll following the next
        poll": once for each poll, however often it is asked."""
        for partition in partitions & self.due(1):
            self.completed_in[partition] = self.poll_number + 2
        self.revocations.delay(partitions)

    @rule(partitions=some_partitions)
    def lose(self, partitions: set[TopicPartition]) -> None:
        """ "When a partitions is lost, it is removed from the revoke-next and revoke-thereafter
        lists, and added to the list of lost partitions"."""
        partitions &= self.assigned
        self.forget(partitions)
        self.lost_in |= dict.fromkeys(partitions, self.poll_number)
        self.revocations.lose(partitions)

    @rule(partitions=some_partitions)
    def take_back(self, partitions: set[TopicPartition]) -> None:
        """Not in the KIP: the group wants them to stay after all."""
        for partition in partitions:
            self.completed_in.pop(partition, None)
        self.revocations.take_back(partitions)

    @invariant()
    def to_be_revoked(self) -> None:
        """ "gives partitions that will be revoked in the next poll"."""
        assert self.revocations.to_be_revoked == self.due(1)

    @invariant()
    def lost(self) -> None:
        """ "gives partitions that were lost during the last call to poll"."""
        lost = {p for p, number in self.lost_in.items() if number == self.poll_number}
        assert self.revocations.lost == lost
        assert not lost & self.revocations.revoking
        assert not lost & self.assigned

    @invariant()
    def pending(self) -> None:
        """A revoke is completed, lost or taken back, and until then it is pending."""
        assert self.revocations.revoking == self.completed_in.keys()
        assert self.revocations.revoking <= self.assigned
        assert set(self.completed_in.values()) <= {self.poll_number + 1, self.poll_number + 2}


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
