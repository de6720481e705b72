"""What a fetch answer says of each partition, and from when on it counts."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from kafka.protocol.consumer import FetchResponse
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.fetch_metadata import (
    EndOffset,
    EndOffsets,
    FetchMetadata,
    end_offsets,
)

Answer = FetchResponse.FetchableTopicResponse.PartitionData

A, B, C = (TopicPartition("orders", number) for number in range(3))
NODE, OTHER_NODE = 1, 2


def response(*answers: Any, **fields: int) -> Any:
    topics = [FetchResponse.FetchableTopicResponse(topic="orders", partitions=list(answers))]
    return FetchResponse(version=12, responses=topics if answers else [], **fields)


def answer(partition: TopicPartition, end: int, stable: int = -1, **fields: Any) -> Any:
    return Answer(
        partition_index=partition.partition,
        high_watermark=end,
        last_stable_offset=stable,
        **fields,
    )


@pytest.fixture
def ends() -> EndOffsets:
    """Its clock says 1, 2, 3."""
    return EndOffsets(read_committed=False, now_ms=count(1).__next__)


def offsets(ends: EndOffsets) -> dict[TopicPartition, int]:
    return {p: end.offset for p in (A, B, C) if (end := ends.latest(p)) is not None}


def test_the_lag_counts_from_the_next_offset_to_be_returned() -> None:
    assert EndOffset(20, 7).seen_from(5) == FetchMetadata(5, 15, 20, 7)


def test_an_end_before_the_position_is_no_lag() -> None:
    assert EndOffset(20, 7).seen_from(25).lag == 0


def test_the_end_is_the_high_watermark_or_the_last_stable_offset() -> None:
    fetched = response(answer(A, 9, stable=4))
    assert end_offsets([A], fetched, {}, read_committed=False) == {A: 9}
    assert end_offsets([A], fetched, {}, read_committed=True) == {A: 4}


def test_what_an_answer_leaves_out_is_where_it_was() -> None:
    told = {A: 3, B: 4, C: 5}
    assert end_offsets([A, B], response(answer(A, 9)), told, False) == {A: 9, B: 4}


def test_what_was_never_told_is_unknown() -> None:
    assert end_offsets([A, B], response(answer(A, 9)), {}, False) == {A: 9}


@pytest.mark.parametrize(
    "refused",
    [
        answer(A, 9, error_code=6),  # NOT_LEADER_OR_FOLLOWER
        answer(A, 9, diverging_epoch=Answer.EpochEndOffset(epoch=1, end_offset=2)),
        answer(A, -1),
    ],
    ids=["an error", "a truncated log", "no high watermark"],
)
def test_a_refused_partition_is_not_answered(refused: Any) -> None:
    assert end_offsets([A, B], response(refused, answer(B, 2)), {A: 3}, False) == {B: 2}


def test_an_answer_counts_when_a_poll_collects_it(ends: EndOffsets) -> None:
    ends.answered(NODE, [A, B], response(answer(A, 9), answer(B, 2)))
    assert ends.take_fresh() == set()
    ends.collect([A, B])
    assert ends.take_fresh() == {A, B}
    assert ends.take_fresh() == set()
    assert ends.latest(A) == EndOffset(9, 1)


def test_answers_that_no_poll_collects_take_no_more_room(ends: EndOffsets) -> None:
    """A poll that waits for hours is answered every half second."""
    for end in range(10_000):
        ends.answered(NODE, [A, B], response(answer(A, end), answer(B, 2)))
    assert len(ends._arrived) == 2
    ends.collect([A, B])
    assert ends.latest(A) == EndOffset(9_999, 10_000)


def test_an_empty_answer_is_news_of_all_that_was_asked(ends: EndOffsets) -> None:
    ends.answered(NODE, [A, B], response(answer(A, 9), answer(B, 2)))
    ends.collect([A, B])
    ends.take_fresh()
    ends.answered(NODE, [A, B], response())
    ends.collect([A, B])
    assert ends.take_fresh() == {A, B}
    assert ends.latest(A) == EndOffset(9, 2)


def test_an_answer_of_one_node_says_nothing_of_another_nodes_session(ends: EndOffsets) -> None:
    ends.answered(NODE, [A], response(answer(A, 9)))
    ends.answered(OTHER_NODE, [A], response())  # the leader moved: this node has not told yet
    ends.collect([A])
    assert ends.latest(A) == EndOffset(9, 1)


def test_a_partition_that_left_the_session_must_be_told_again(ends: EndOffsets) -> None:
    ends.answered(NODE, [A, B], response(answer(A, 9), answer(B, 2)))
    ends.answered(NODE, [A], response())  # B is paused, or its records still wait
    ends.collect([A, B])
    ends.take_fresh()
    ends.answered(NODE, [A, B], response())
    ends.collect([A, B])
    assert ends.take_fresh() == {A}


def test_a_throttled_answer_says_nothing(ends: EndOffsets) -> None:
    ends.answered(NODE, [A], response(answer(A, 9)))
    ends.collect([A])
    ends.take_fresh()
    ends.answered(NODE, [A], response(throttle_time_ms=50))
    ends.collect([A])
    assert ends.take_fresh() == set()
    ends.answered(NODE, [A], response())  # but the session goes on
    ends.collect([A])
    assert ends.take_fresh() == {A}


def test_an_error_ends_the_session(ends: EndOffsets) -> None:
    ends.answered(NODE, [A], response(answer(A, 9)))
    ends.answered(NODE, [A], response(error_code=70))  # FETCH_SESSION_ID_NOT_FOUND
    ends.collect([A])
    ends.take_fresh()
    ends.answered(NODE, [A], response())
    ends.collect([A])
    assert ends.take_fresh() == set()


def test_nothing_is_kept_of_what_is_not_owned(ends: EndOffsets) -> None:
    ends.answered(NODE, [A, B], response(answer(A, 9), answer(B, 2)))
    ends.collect([A])
    assert offsets(ends) == {A: 9}
    assert ends.take_fresh() == {A}


def test_a_partition_that_comes_back_begins_without_its_old_end(ends: EndOffsets) -> None:
    ends.answered(NODE, [A, B], response(answer(A, 9), answer(B, 2)))
    ends.collect([A, B])
    ends.collect([A])
    ends.answered(NODE, [A, B], response())  # was on its way when B was released
    ends.collect([A])
    ends.collect([A, B])
    assert offsets(ends) == {A: 9}
    assert ends.take_fresh() == {A}
