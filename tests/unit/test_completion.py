"""Out-of-order completion and commits, against a model of plain sets.

The model knows no ranges: it keeps every offset that was handed out and every one that is
complete, and says of a partition what KIP-983 (problem 4) asks for: records processed
asynchronously may be committed only up to the first that is not.
"""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.completion import Completion, PartitionCompletion
from pyspark_kafka_rebalance.consumer.progress import OffsetCommits

P = TopicPartition("orders", 0)


def handed(*offsets: int) -> PartitionCompletion:
    completion = PartitionCompletion()
    completion.hand_out(offsets)
    return completion


def test_the_position_stops_at_the_first_record_that_is_not_complete() -> None:
    completion = handed(5, 6, 7)
    assert completion.position == 5
    completion.complete(6)
    completion.complete(7)
    assert completion.position == 5
    completion.complete(5)
    assert completion.position == 8
    assert not completion.any_pending


def test_a_gap_in_the_log_holds_nothing_up() -> None:
    completion = handed(5, 9)  # compaction took 6 to 8
    completion.complete(5)
    assert completion.position == 9
    completion.complete(9)
    assert completion.position == 10


def test_records_handed_out_again_after_a_seek_back_are_pending_again() -> None:
    completion = handed(5, 6, 7)
    for offset in (5, 6, 7):
        completion.complete(offset)
    completion.hand_out([6, 7])
    assert completion.position == 6
    completion.complete(7)
    completion.complete(6)
    assert completion.position == 8


@pytest.mark.parametrize("offset", [8, 100])
def test_a_record_that_nobody_handed_out_cannot_be_complete(offset: int) -> None:
    completion = Completion()
    with pytest.raises(ValueError, match=f"orders-0: offset {offset} was not handed out"):
        completion.complete(P, [offset])
    completion.hand_out(P, [5, 6, 7])
    with pytest.raises(ValueError, match="the next will be 8"):
        completion.complete(P, [offset])


def test_memory_grows_with_the_gaps_not_with_the_records() -> None:
    completion = PartitionCompletion()
    for start in range(0, 1_000_000, 500):
        completion.hand_out(range(start, start + 500))
    completion.complete(400_000)
    assert len(completion._starts) == 2
    completion.complete_below(999_000)
    assert completion.position == 999_000


def test_assigned_again_a_partition_begins_anew() -> None:
    completion = Completion()
    completion.hand_out(P, [5, 6])
    completion.forget([P])
    assert completion.pending() == frozenset()
    completion.hand_out(P, [6])
    assert completion.complete(P, [6]) == 7


OFFSETS = st.integers(min_value=0, max_value=40)


class Worker(RuleBasedStateMachine):
    """One partition, one consumer; the broker answers, refuses, or is not heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.completion = Completion()
        self.commits = OffsetCommits()
        # The model.
        self.handed_out: set[int] = set()
        self.complete: set[int] = set()
        self.fetched_to = 0
        self.told = -1  # the highest position that was given to the commits
        self.at_the_broker = -1
        self.in_flight: int | None = None

    def model_position(self) -> int:
        pending = self.handed_out - self.complete
        return min(pending) if pending else max(self.handed_out) + 1

    @rule(gap=st.integers(0, 3), lengths=st.lists(st.integers(1, 4), min_size=1, max_size=3))
    def poll(self, gap: int, lengths: list[int]) -> None:
        offsets: list[int] = []
        at = self.fetched_to + gap
        for length in lengths:  # runs with a hole of one offset between them
            offsets += range(at, at + length)
            at += length + 1
        self.fetched_to = at - 1
        self.completion.hand_out(P, offsets)
        self.handed_out |= set(offsets)
        self.complete -= set(offsets)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def seek_back_and_poll(self, data: st.DataObject) -> None:
        offsets = sorted(self.handed_out)
        start = data.draw(st.integers(0, len(offsets) - 1))
        count = data.draw(st.integers(1, 5))
        again = offsets[start : start + count]
        self.completion.hand_out(P, again)
        self.complete -= set(again)

    @precondition(lambda self: self.handed_out)
    @rule(data=st.data())
    def processed(self, data: st.DataObject) -> None:
        offsets = data.draw(st.lists(st.sampled_from(sorted(self.handed_out)), max_size=4))
        position = self.completion.complete(P, offsets)
        before = self.model_position()
        self.complete |= set(offsets)
        assert position == (self.model_position() if self.model_position() > before else None)
        if position is not None:
            self.told = max(self.told, position)
            self.commits.add({P: position})

    @precondition(lambda self: self.handed_out)
    @rule(offset=OFFSETS)
    def processed_below(self, offset: int) -> None:
        offset = min(offset, max(self.handed_out) + 1)
        self.completion.complete_below({P: offset})
        self.complete |= {o for o in self.handed_out if o < offset}
        self.told = max(self.told, offset)
        self.commits.add({P: offset})

    @precondition(lambda self: self.in_flight is None)
    @rule()
    def send(self) -> None:
        sent = self.commits.take()
        self.in_flight = sent.get(P)
        if self.in_flight is not None:
            assert self.in_flight == self.told
            assert self.in_flight > self.at_the_broker, "a committed position moved back"

    @precondition(lambda self: self.in_flight is not None)
    @rule()
    def while_one_is_in_flight_no_other_is_sent(self) -> None:
        assert self.commits.take() == {}

    @precondition(lambda self: self.in_flight is not None)
    @rule(answer=st.sampled_from(["accepted", "not known"]))
    def answer(self, answer: str) -> None:
        assert self.in_flight is not None
        if answer == "accepted":
            self.at_the_broker = self.in_flight
            self.commits.acknowledge([P])
        self.commits.retry()
        self.in_flight = None

    @rule()
    def lost(self) -> None:
        """Nothing of it is sent any more; assigned again it begins where the group is."""
        self.completion.forget([P])
        self.commits.drop([P])
        self.handed_out, self.complete = set(), set()
        self.fetched_to = max(self.at_the_broker, 0)
        self.told = -1
        if self.in_flight is not None:  # cannot be recalled; whatever comes of it
            self.commits.retry()
            self.in_flight = None
        self.at_the_broker = -1
        assert self.commits.take() == {}

    @invariant()
    def pending_is_what_was_handed_out_and_is_not_complete(self) -> None:
        pending = bool(self.handed_out - self.complete)
        assert self.completion.pending() == (frozenset([P]) if pending else frozenset())

    @invariant()
    def nothing_complete_is_forgotten(self) -> None:
        outstanding = self.commits.outstanding(P)
        if self.told > self.at_the_broker:
            assert outstanding
        assert self.commits.acknowledged(P) == (
            None if self.at_the_broker < 0 else self.at_the_broker
        )


TestWorker = Worker.TestCase
