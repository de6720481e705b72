"""What is committed where somebody keeps count of a partition's unprocessed offsets himself."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.consumer.offsets.told_remaining import ToldRemaining, bound_to

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
HERE = "here"

OWED = st.builds(
    Remaining.of,
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).map(tuple), max_size=4),
    st.integers(0, 40),
)


def told(remaining: Remaining) -> ToldRemaining:
    told = ToldRemaining()
    assert told.news({P: remaining}) == ({P: remaining.committed()}, {})
    told.tell({P: (remaining, HERE)})
    return told


def test_the_lowest_offset_is_committed_and_again_when_the_gaps_alone_change() -> None:
    first = Remaining(100, (Gap(10, 50),))
    count = told(first)
    assert count.news({P: first, Q: Remaining(7)}) == ({Q: 7}, {})
    assert count.news({P: Remaining(120, (Gap(10, 50),))}) == ({}, {P: 10})
    assert count.news({P: Remaining(120, (Gap(20, 50),))}) == ({P: 20}, {})
    assert count.news({P: Remaining(120, (Gap(5, 50),))}) == ({}, {}), "never back"
    count.forget([P])
    assert count.news({P: Remaining(5)}) == ({P: 5}, {})


def test_metadata_are_those_of_the_topic_that_they_were_told_of() -> None:
    count = told(Remaining(100, (Gap(10, 50),)))
    assert count.metadata(P, 10, 4_096, HERE)
    assert count.metadata(P, 10, 4_096, "created anew") == ""
    assert count.metadata(Q, 10, 4_096, HERE) is None
    assert bound_to(None, P) != bound_to(UUID(int=1), P) != bound_to(UUID(int=1), Q)


@given(OWED, OWED)
def test_whatever_is_sent_tells_of_nothing_owed_that_it_is_processed(
    first: Remaining, then: Remaining
) -> None:
    """The commit under way is of an offset that was told before."""
    sent = first.committed()
    left = first.merge(then)
    count = told(first)
    count.tell({P: (left, HERE)})
    for offset in (sent, left.committed()):
        found = Remaining.decode(offset, count.metadata(P, offset, 4_096, HERE), HERE).remaining
        missing = [o for o in range(offset, 50) if o in left and o not in found]
        assert not missing
    exact = Remaining.decode(
        left.committed(), count.metadata(P, left.committed(), 4_096, HERE), HERE
    )
    assert [o for o in range(50) if o in exact.remaining] == [o for o in range(50) if o in left]
