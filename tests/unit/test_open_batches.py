"""What of Spark's calls proves which batch, in the orders in which Spark makes them."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.batches.batch import Batch
from pyspark_kafka_rebalance.source.group.batches.open_batches import OpenBatches
from pyspark_kafka_rebalance.source.offsets.offset_json import offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import INITIAL_OFFSET

INITIAL = offset_to_json(INITIAL_OFFSET)
P = TopicPartition("t", 0)


def at(end: int) -> dict[str, Any]:
    return {"end": end}


def plan(batches: OpenBatches, end: dict[str, Any], number: int, reads: bool = True) -> None:
    """Plan the batch of this number, handed out if it is a new one, and give it to Spark."""
    if number > batches.number:
        batches.add({P: OffsetRange("t", 0, number, number + 1)} if reads else {})
    batches.give_to_spark(end, now=0.0)
    assert batches.number == number


def numbers(proven: list[Batch]) -> list[int]:
    return [batch.number for batch in proven]


@pytest.fixture
def batches() -> OpenBatches:
    return OpenBatches()


def test_spark_4_2_from_the_warm_up_on(batches: OpenBatches) -> None:
    plan(batches, at(0), 0)  # the warm-up, before there is a trigger
    assert batches.begin_trigger(at(0)) == []
    plan(batches, at(10), 1)
    assert numbers(batches.commit(at(0))) == [0]
    assert numbers(batches.begin_trigger(at(10))) == [1]
    assert batches.begin_trigger(at(10)) == [], "idle"
    assert batches.commit(at(10)) == []
    assert not batches.progress_is_asynchronous


def test_spark_4_0_whose_first_batch_is_none_to_warm_up(batches: OpenBatches) -> None:
    batches.begin_trigger(INITIAL)
    plan(batches, at(10), 1)  # Spark has nothing to commit when it builds its first batch
    assert batches.begin_trigger(at(10)) == []
    assert not batches.progress_is_asynchronous
    plan(batches, at(11), 2, reads=False)
    assert numbers(batches.commit(at(10))) == [1]
    assert numbers(batches.begin_trigger(at(11))) == [2]


def test_async_progress_tracking(batches: OpenBatches) -> None:
    batches.begin_trigger(at(0))
    for number in (1, 2, 3):
        plan(batches, at(10 * number), number)
        assert batches.begin_trigger(at(10 * number)) == []
    assert batches.progress_is_asynchronous
    assert numbers(batches.commit(at(20))) == [1, 2], "and with it the first"
    assert batches.last_end == at(30)
    assert batches.begin_trigger(at(30)) == []


def test_a_commit_of_the_batch_before_says_that_the_end_of_this_one_is_logged(
    batches: OpenBatches,
) -> None:
    """Batches that take longer than the interval are all logged, asynchronously as well."""
    batches.begin_trigger(at(0))
    plan(batches, at(10), 1)
    batches.commit(at(0))
    assert numbers(batches.begin_trigger(at(10))) == [1]
    plan(batches, at(20), 2)
    assert batches.begin_trigger(at(20)) == []


def test_a_start_that_is_not_the_end_planned_last_is_refused(batches: OpenBatches) -> None:
    batches.begin_trigger(at(0))
    plan(batches, at(10), 1)
    with pytest.raises(KafkaRebalanceError, match="restart the query"):
        batches.begin_trigger(at(7))


def test_an_empty_batch_does_not_read_again_what_the_one_before_it_reads(
    batches: OpenBatches,
) -> None:
    batches.add({}, {P: (OffsetRange("t", 0, 3, 7),)})
    reading, empty = (batches.give_to_spark(at(end), now=0.0) for end in (10, 11))
    assert reading.catch_up
    assert not empty.catch_up
    assert batches.prove(at(10)) == [reading]
    assert not batches.any()
    assert batches.last_end == at(11)
    assert batches.prove(at(11)) == [empty]
