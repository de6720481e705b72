"""What of Spark's calls proves which batch, in the orders in which Spark makes them."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source.group.batches.open_batches import OpenBatches
from pyspark_kafka_rebalance.source.offsets.offset_json import offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import INITIAL_OFFSET

INITIAL = offset_to_json(INITIAL_OFFSET)


def at(end: int) -> dict[str, Any]:
    return {"end": end}


@pytest.fixture
def batches() -> OpenBatches:
    return OpenBatches()


def test_spark_4_2_from_the_warm_up_on(batches: OpenBatches) -> None:
    batches.add(at(0), 0)  # the warm-up, before there is a trigger
    assert batches.begin_trigger(at(0)) is None
    batches.add(at(10), 1)
    assert batches.commit(at(0)) == 0
    assert batches.begin_trigger(at(10)) == 1
    assert batches.begin_trigger(at(10)) is None, "idle"
    assert batches.commit(at(10)) is None
    assert not batches.progress_is_asynchronous


def test_spark_4_0_whose_first_batch_is_none_to_warm_up(batches: OpenBatches) -> None:
    batches.begin_trigger(INITIAL)
    batches.add(at(10), 1)  # Spark has nothing to commit when it builds its first batch
    assert batches.begin_trigger(at(10)) is None
    assert not batches.progress_is_asynchronous
    batches.add(at(11), 2)  # an empty one
    assert batches.commit(at(10)) == 1
    assert batches.begin_trigger(at(11)) == 2


def test_async_progress_tracking(batches: OpenBatches) -> None:
    batches.begin_trigger(at(0))
    for number in (1, 2, 3):
        batches.add(at(10 * number), number)
        assert batches.begin_trigger(at(10 * number)) is None
    assert batches.progress_is_asynchronous
    assert batches.commit(at(20)) == 2, "and with it the first"
    assert batches.last_end == at(30)
    assert batches.begin_trigger(at(30)) is None


def test_a_commit_of_the_batch_before_says_that_the_end_of_this_one_is_logged(
    batches: OpenBatches,
) -> None:
    """Batches that take longer than the interval are all logged, asynchronously as well."""
    batches.begin_trigger(at(0))
    batches.add(at(10), 1)
    batches.commit(at(0))
    assert batches.begin_trigger(at(10)) == 1
    batches.add(at(20), 2)
    assert batches.begin_trigger(at(20)) is None


def test_a_start_that_is_not_the_end_planned_last_is_refused(batches: OpenBatches) -> None:
    batches.begin_trigger(at(0))
    batches.add(at(10), 1)
    with pytest.raises(KafkaRebalanceError, match="restart the query"):
        batches.begin_trigger(at(7))
