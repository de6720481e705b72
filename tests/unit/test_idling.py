"""KIP-695's rule: the cases of Kafka Streams' PartitionGroupTest that are about waiting."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.consumer.ordered.idling import Idling, checked_idle_ms

ONE, TWO = TopicPartition("topic", 1), TopicPartition("topic", 2)


def group(max_task_idle_ms: int, *partitions: TopicPartition, now: float = 0.0) -> Idling:
    idling = Idling(checked_idle_ms(max_task_idle_ms))
    for partition in partitions or (ONE, TWO):
        idling.add(partition, now)
    return idling


@pytest.mark.parametrize("value", [-2, -1_000, 0.5, "0", None, True])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OptionError, match="max_task_idle_ms"):
        checked_idle_ms(value)


def test_never_waits_if_idling_is_disabled() -> None:
    """shouldNeverWaitIfIdlingIsDisabled"""
    idling = group(-1)
    idling.filled(ONE)
    assert idling.is_ready(0)
    idling.answered(TWO, 7, now=0)
    assert idling.is_ready(0)
    assert not idling.held_back_by()
    assert not idling.stops_without(ONE)


@pytest.mark.parametrize("max_task_idle_ms", [0, 1_000])
def test_is_ready_if_all_partitions_are_buffered(max_task_idle_ms: int) -> None:
    """shouldBeReadyIfAllPartitionsAreBuffered"""
    idling = group(max_task_idle_ms)
    idling.filled(ONE)
    assert not idling.is_ready(0)
    idling.filled(TWO)
    assert idling.is_ready(0)


def test_waits_for_fetches_when_metadata_are_incomplete() -> None:
    """shouldWaitForFetchesWhenMetadataIsIncomplete"""
    idling = group(0)
    idling.filled(ONE)
    assert not idling.is_ready(1_000_000)
    assert idling.held_back_by() == {TWO}
    assert idling.next_deadline() is None
    idling.answered(TWO, 0, now=1_000_000)
    assert idling.is_ready(1_000_000)


@pytest.mark.parametrize("max_task_idle_ms", [0, 1_000])
def test_waits_for_a_poll_when_the_lag_is_not_zero(max_task_idle_ms: int) -> None:
    """shouldWaitForPollWhenLagIsNonzero; an answer that a quota emptied looks like this, too."""
    idling = group(max_task_idle_ms)
    idling.filled(ONE)
    for now in range(5):
        idling.answered(TWO, 1, now=now)
        assert not idling.is_ready(now)
    assert not idling.is_ready(1_000_000)
    idling.filled(TWO)
    assert idling.is_ready(1_000_000)


def test_idles_as_specified_when_the_lag_is_zero() -> None:
    """shouldIdleAsSpecifiedWhenLagIsZero"""
    idling = group(1)
    for partition in (ONE, TWO):
        idling.answered(partition, 0, now=0)
    idling.filled(ONE)
    assert not idling.is_ready(0)
    assert idling.next_deadline() == 0.001
    assert idling.is_ready(0.001)
    assert idling.is_ready(0.002)


def test_goes_on_at_once_when_the_lag_is_zero_and_nothing_is_to_be_waited_for() -> None:
    """shouldIdleAsSpecifiedWhenLagIsZero, for 0"""
    idling = group(0)
    idling.filled(ONE)
    idling.answered(TWO, 0, now=5)
    assert idling.is_ready(5)


def test_is_not_ready_without_a_single_record() -> None:
    """readyToProcess, "No partitions were buffered locally"""
    idling = group(10)
    for partition in (ONE, TWO):
        idling.answered(partition, 0, now=0)
    assert not idling.is_ready(1_000)


def test_follows_the_lags_that_it_is_told() -> None:
    """shouldUpdateLags"""
    idling = group(10, ONE, TWO)
    idling.filled(TWO)
    assert idling.lag(ONE) is None
    assert not idling.is_ready(0)
    idling.answered(ONE, 5, now=0)
    assert idling.lag(ONE) == 5
    assert idling.next_deadline() is None
    idling.answered(ONE, 0, now=0)
    assert idling.lag(ONE) == 0
    assert idling.next_deadline() == 0.01
    idling.unknown(ONE)
    assert idling.lag(ONE) is None
    assert idling.next_deadline() is None
    assert not idling.is_ready(1_000)


def test_a_partition_that_leaves_holds_nobody_up() -> None:
    """shouldUpdatePartitionQueuesShrink"""
    idling = group(0)
    idling.filled(TWO)
    assert not idling.is_ready(0)
    idling.remove([ONE])
    assert idling.is_ready(0)


def test_a_partition_that_joins_is_waited_for() -> None:
    """shouldUpdatePartitionQueuesExpand"""
    idling = group(0, ONE)
    idling.filled(ONE)
    assert idling.is_ready(0)
    idling.add(TWO, now=1)
    assert not idling.is_ready(1)
    assert idling.held_back_by() == {TWO}
    idling.answered(TWO, 0, now=2)
    assert idling.is_ready(2)


def test_one_joins_and_another_leaves() -> None:
    """shouldUpdatePartitionQueuesShrinkAndExpand"""
    idling = group(0, ONE)
    idling.filled(ONE)
    idling.answered(ONE, 0, now=0)
    idling.remove([ONE])
    idling.add(TWO, now=0)
    assert not idling.is_ready(0)
    idling.add(ONE, now=0)  # what was known of it is of another time
    assert idling.lag(ONE) is None


def test_forgets_everything_of_what_was_cleared() -> None:
    """shouldEmptyPartitionsOnClear"""
    idling = group(10, ONE)
    idling.answered(ONE, 0, now=0)
    idling.add(ONE, now=3)
    assert not idling.is_ready(3)
    assert idling.lag(ONE) is None


def test_a_wait_begins_anew_when_there_was_more() -> None:
    """readyToProcess, idlePartitionDeadlines.remove"""
    idling = group(1_000)
    idling.filled(ONE)
    idling.answered(TWO, 0, now=0)
    assert idling.next_deadline() == 1
    idling.answered(TWO, 3, now=0.5)
    assert not idling.is_ready(2)
    idling.filled(TWO)
    idling.answered(TWO, 0, now=2.5)
    idling.emptied(TWO, now=3)
    assert not idling.is_ready(3.9)
    assert idling.is_ready(4)


def test_an_answer_that_says_the_same_again_prolongs_nothing() -> None:
    idling = group(1_000)
    idling.filled(ONE)
    for now in (0.0, 0.4, 0.8):
        idling.answered(TWO, 0, now=now)
        assert not idling.is_ready(now)
    assert idling.is_ready(1)


def test_the_last_of_several_deadlines_counts() -> None:
    three = TopicPartition("topic", 3)
    idling = group(1_000, ONE, TWO, three)
    idling.filled(ONE)
    idling.answered(TWO, 0, now=0)
    assert idling.next_deadline() is None  # of the third nothing is known
    idling.answered(three, 0, now=0.5)
    assert idling.next_deadline() == 1.5
    assert not idling.is_ready(1.4)
    assert idling.is_ready(1.5)


@pytest.mark.parametrize(
    ("max_task_idle_ms", "lag", "stops"),
    [(0, None, True), (0, 1, True), (0, 0, False), (1, 0, True), (-1, 1, False)],
)
def test_whether_it_stops_without_a_partition(
    max_task_idle_ms: int, lag: int | None, stops: bool
) -> None:
    idling = group(max_task_idle_ms)
    if lag is not None:
        idling.answered(ONE, lag, now=0)
    assert idling.stops_without(ONE) is stops
