"""What a Partition keeps during one assignment, and what its Former knows after it."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import PartitionsLostError
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.progress.completion import Completion

P = TopicPartition("orders", 0)


def assigned() -> Completion:
    completion = Completion()
    found = completion.partition(P)
    found.hand_out(range(10), leader_epoch=3)
    found.bound, found.unreadable, found.unreadable_gap = "here", Gap(10, 11), Gap(2, 3)
    return completion


def test_nothing_of_an_assignment_outlives_it_but_what_was_handed_out() -> None:
    completion = assigned()
    before = completion.partition(P)
    completion.forget([P])
    assert completion.get(P) is None
    found = completion.partition(P)
    assert found.former is before.former
    assert (found.bound, found.unreadable, found.unreadable_gap) == (None, None, None)
    assert not found.completion.begun
    assert completion.epoch_before(P, 10) == -1
    with pytest.raises(PartitionsLostError):
        completion.complete(P, [9])
    with pytest.raises(ValueError, match="was not handed out"):
        completion.complete(P, [10])


def test_the_topic_of_the_last_commits_is_known_until_they_are_answered() -> None:
    completion = assigned()
    completion.leave([P])
    assert completion.get(P) is None
    assert completion.bound(P) == "here"
    assert completion.still_committed(P) is not None
    completion.start_over([P])
    assert completion.bound(P) == "here"
    assert completion.still_committed(P) is None
    completion.forget([P])
    assert completion.bound(P) is None
    assert completion.still_committed(P) is None


def test_a_sought_partition_that_is_revoked_has_nothing_to_tell() -> None:
    completion = assigned()
    completion.partition(P).seek(4)
    completion.leave([P])
    assert completion.still_committed(P) is None
    assert completion.bound(P) == "here"


def test_an_assignment_that_starts_over_stays_where_polls_stopped() -> None:
    completion = assigned()
    completion.start_over([P])
    found = completion.partition(P)
    assert (found.bound, found.unreadable, found.unreadable_gap) == ("here", Gap(10, 11), None)
    assert not found.completion.begun
    assert completion.pending() == frozenset()
    with pytest.raises(PartitionsLostError):
        completion.complete(P, [9])


def test_a_partition_of_which_nothing_is_known_takes_no_memory() -> None:
    completion = Completion()
    with pytest.raises(ValueError, match="was not handed out"):
        completion.complete(P, [3])
    completion.refuse_truncated({P: 4})
    completion.refused(P, 4)
    completion.heard({P: 4})
    completion.forget([P])
    completion.leave([P])
    completion.start_over([P])
    assert completion.complete_below({P: 4}) == {P: 4}
    assert not completion._partitions
    assert not completion._formers
