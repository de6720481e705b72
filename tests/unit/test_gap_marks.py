"""What is to be caught up below a live position: against sets of integers, and in an assignment."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.gaps import Gap
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.assignment import QueryAssignment
from pyspark_kafka_rebalance.source.group.gap_marks import GapMarks

P, Q = TopicPartition("t", 0), TopicPartition("t", 1)
LIVE = 40

PIECE = st.tuples(st.integers(0, LIVE), st.integers(0, LIVE)).map(sorted).map(tuple)
STEPS = st.lists(st.tuples(st.sampled_from(["set aside", "hand out", "prove"]), PIECE), max_size=20)


def a_range(start: int, end: int, partition: TopicPartition = P) -> OffsetRange:
    return OffsetRange(partition.topic, partition.partition, start, end)


def offsets(gaps: object) -> list[int]:
    return [offset for gap in gaps for offset in range(gap.start, gap.end)]  # type: ignore[attr-defined]


@given(STEPS)
def test_as_sets_of_offsets(steps: list[tuple[str, tuple[int, int]]]) -> None:
    marks, unread, unproven = GapMarks(), set[int](), set[int]()
    for step, (start, end) in steps:
        piece = set(range(start, end))
        if step == "set aside":
            if start == end or piece & unproven:
                continue  # what is owed already is not set aside again
            marks.set_aside(P, [Gap(start, end)])
            unread |= piece
            unproven |= piece
        elif step == "hand out":
            marks.hand_out({P: [a_range(start, end)]})
            unread -= piece
        else:
            piece -= unread  # nothing is proven that no batch has read
            for offset in piece:
                marks.prove({P: [a_range(offset, offset + 1)]})
            unproven -= piece
        assert offsets(marks.unread(P)) == sorted(unread)
        assert offsets(marks.unproven(P)) == sorted(unproven)
        assert marks.committed(P, LIVE) == min(unproven, default=LIVE)
        if start < end:
            held = set(range(start, end)) <= unread
            assert marks.are_unread(P, [a_range(start, end)]) == held
    assert not marks.unread(Q)
    marks.forget(P)
    assert marks.committed(P, 7) == 7


def test_the_group_is_told_the_lowest_offset_that_is_owed() -> None:
    query = QueryAssignment()
    query.assign(0, 1, [P, Q])
    query.gaps.set_aside(P, [Gap(10, 30)])
    for partition in (P, Q):
        query.start_at(partition, 10 if partition == P else 0, otherwise=0)
    query.partitions.start_at(P, 100)  # the live position begins at the end
    caught = {P: [a_range(10, 20)], Q: [a_range(0, 5, Q)]}
    live = query.hand_out({P: a_range(100, 110)}, lambda member: True, caught)
    assert live == {P: a_range(100, 110)}
    assert query.batches.have(P)
    assert not query.batches.have(Q), "nothing of it was set aside"
    assert query.undrained([P]) == {P}
    assert not query.commits()
    query.prove()
    assert query.commits() == {0: {P: 20}}
    query.acknowledge({P: 20})
    assert not query.commits(), "what is proven above the gap is not the group's offset"
    query.hand_out({}, lambda member: True, {P: [a_range(20, 30)]})
    query.prove()
    assert query.commits() == {0: {P: 110}}


def test_a_gap_is_not_read_on_once_its_partition_is_to_be_revoked_or_in_doubt() -> None:
    query = QueryAssignment()
    query.assign(0, 1, [P])
    query.start_at(P, 10, otherwise=0)
    query.gaps.set_aside(P, [Gap(10, 30)])
    piece = {P: [a_range(10, 20)]}
    query.hand_out({}, lambda member: False, piece)
    assert not query.batches.have(P)
    query.request_revoke([P])
    query.hand_out({}, lambda member: True, piece)
    assert not query.batches.have(P)
    assert list(query.gaps.unread(P)) == [Gap(10, 30)], "it moves with the partition"
