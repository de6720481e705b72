"""What goes into the next batch, and which task reads it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.offsets.stream_offset import (
    MemberState,
    RebalanceEvent,
    StreamOffset,
)
from pyspark_kafka_rebalance.source.plan.available_now import BeyondEnd
from pyspark_kafka_rebalance.source.plan.batch_planner import backlog
from pyspark_kafka_rebalance.source.plan.data_loss import find_beyond_end, find_data_loss
from pyspark_kafka_rebalance.source.plan.partition_shares import plan_batch
from pyspark_kafka_rebalance.source.plan.tasks import (
    ReadTask,
    TaskRange,
    group_into_tasks,
    split_tasks,
)

PARTITIONS = st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 9))
OFFSETS = st.integers(0, 20) | st.integers(0, 2**62)
OFFSET_MAPS = st.dictionaries(PARTITIONS, OFFSETS, max_size=12)
LIMITS = st.integers(1, 40) | st.integers(1, 2**62)


def tp(partition: int, topic: str = "t") -> TopicPartition:
    return TopicPartition(topic, partition)


def backlogs(
    positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    return {p: ends[p] - at for p, at in positions.items() if p in ends and ends[p] > at}


def shares(positions: dict[TopicPartition, int], **kwargs: int) -> list[int]:
    """Rows of each partition of a plan that starts at 0."""
    plan = plan_batch(dict.fromkeys(positions, 0), positions, kwargs["max_rows"])
    return [len(plan[p]) for p in positions]


@given(OFFSET_MAPS, OFFSET_MAPS, LIMITS)
def test_the_sum_keeps_to_the_limit_and_nobody_starves(
    positions: dict[TopicPartition, int], ends: dict[TopicPartition, int], limit: int
) -> None:
    plan = plan_batch(positions, ends, limit)
    wanted = backlogs(positions, ends)
    assert plan.keys() == wanted.keys()
    rows = {p: r.end - r.start for p, r in plan.items()}
    assert sum(rows.values()) <= max(limit, len(wanted))
    for p, r in plan.items():
        assert (r.topic, r.partition, r.start) == (p.topic, p.partition, positions[p])
        assert 1 <= rows[p] <= wanted[p]
    # Rounding leaves less than one row a partition.
    assert sum(rows.values()) > min(limit, sum(wanted.values())) - max(1, len(wanted))


@given(OFFSET_MAPS, OFFSET_MAPS, LIMITS, LIMITS)
def test_a_greater_limit_and_a_greater_backlog_never_get_less(
    positions: dict[TopicPartition, int], ends: dict[TopicPartition, int], one: int, two: int
) -> None:
    less, more = (plan_batch(positions, ends, limit) for limit in sorted((one, two)))
    assert all(less[p].end <= more[p].end for p in less)
    by_backlog = sorted((size, len_of(less[p])) for p, size in backlogs(positions, ends).items())
    assert [rows for _, rows in by_backlog] == sorted(rows for _, rows in by_backlog)


@given(
    OFFSET_MAPS,
    OFFSET_MAPS,
    LIMITS | st.none(),
    LIMITS,
    st.dictionaries(PARTITIONS, st.floats(0, 2**40), max_size=12),
)
def test_bytes_keep_to_the_limit_and_nobody_starves(
    positions: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    rows: int | None,
    limit: int,
    sizes: dict[TopicPartition, float],
) -> None:
    unbounded = plan_batch(positions, ends, rows)
    plan = plan_batch(positions, ends, rows, limit, sizes)
    assert plan.keys() == unbounded.keys()
    assert all(1 <= len_of(plan[p]) <= len_of(unbounded[p]) for p in plan)

    def expected(of: Mapping[TopicPartition, OffsetRange]) -> float:
        return sum(len_of(r) * sizes.get(p, 0.0) for p, r in of.items())

    if expected(unbounded) <= limit:
        assert plan == unbounded
    else:
        # Rounding takes less than one row off a partition; one row each may be more than it.
        one_each = sum(sizes.get(p, 0.0) for p in plan)
        assert expected(plan) <= (limit + one_each) * (1 + 1e-9)
        assert expected(plan) >= (limit - one_each) * (1 - 1e-9)


def len_of(offset_range: OffsetRange) -> int:
    return offset_range.end - offset_range.start


@given(OFFSET_MAPS, OFFSET_MAPS, LIMITS | st.none(), st.randoms(use_true_random=False))
def test_the_plan_does_not_depend_on_the_order_of_the_dicts(
    positions: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    limit: int | None,
    chance: random.Random,
) -> None:
    items = list(positions.items())
    chance.shuffle(items)
    plan = plan_batch(positions, ends, limit)
    assert list(plan_batch(dict(items), dict(reversed(ends.items())), limit).items()) == list(
        plan.items()
    )


def test_no_limit_takes_everything() -> None:
    positions = {tp(0): 5, tp(1): 7, tp(2): 9, tp(3): 1}
    plan = plan_batch(positions, {tp(0): 10, tp(1): 7, tp(2): 3}, None)
    assert plan == {tp(0): OffsetRange("t", 0, 5, 10)}


def test_rows_are_shared_pro_rata() -> None:
    sizes = {tp(0): 1_000_000, tp(1): 3_000_000, tp(2): 1}
    assert shares(sizes, max_rows=4_000) == pytest.approx([1_000, 3_000, 1], abs=2)


def test_more_partitions_than_rows_get_one_each() -> None:
    assert shares({tp(i): 10**i for i in range(9)}, max_rows=4) == [1] * 9


def test_one_partition_gets_the_whole_limit() -> None:
    assert shares({tp(0): 10**9}, max_rows=7) == [7]


@pytest.mark.parametrize("limit", [0, -5])
def test_a_limit_is_positive(limit: int) -> None:
    with pytest.raises(ValueError, match="max_rows"):
        plan_batch({}, {}, limit)


def test_a_position_beyond_the_end_is_reported_and_not_planned() -> None:
    positions = {tp(1): 11, tp(0): 5, tp(2): 10, tp(3): 4}
    ends = {tp(0): 3, tp(1): 10, tp(2): 10}
    assert plan_batch(positions, ends, None) == {}
    assert find_beyond_end(positions, ends) == [BeyondEnd(tp(0), 5, 3), BeyondEnd(tp(1), 11, 10)]


def test_data_loss_is_a_position_beyond_the_high_watermark() -> None:
    """Not one beyond the last stable offset, which an open transaction holds back."""
    beyond = [BeyondEnd(tp(n), 100, 90) for n in range(4)]
    high_watermarks = {tp(0): 100, tp(1): 99, tp(2): 150}  # of the last it is not known now
    assert find_data_loss(beyond, high_watermarks) == [beyond[1]]


# -- tasks ----------------------------------------------------------------------------------------


def batch(sizes: dict[int, int], *members: tuple[int, ...], **kwargs: object) -> StreamOffset:
    """A batch of topic t: rows by partition, and the partitions of each member."""
    return StreamOffset(
        ranges={tp(p): OffsetRange("t", p, 0, rows) for p, rows in sizes.items()},
        members=tuple(MemberState(40 + i, tuple(map(tp, m))) for i, m in enumerate(members)),
        **kwargs,  # type: ignore[arg-type]
    )


def partitions(tasks: list[ReadTask]) -> list[list[int]]:
    return [[r.range.partition for r in task.ranges] for task in tasks]


def test_a_task_has_one_members_ranges_with_their_flags() -> None:
    offset = batch(
        {0: 5, 1: 5, 2: 5, 3: 5},
        (2, 0),
        (),
        (1, 3),
        revoking=frozenset({tp(0), tp(9)}),
    )
    assert group_into_tasks(offset, 3, lost_below={tp(3): 4}) == [
        ReadTask(
            (
                TaskRange(OffsetRange("t", 0, 0, 5), 40, True),
                TaskRange(OffsetRange("t", 2, 0, 5), 40, False),
            )
        ),
        ReadTask(
            (
                TaskRange(OffsetRange("t", 1, 0, 5), 42, False),
                TaskRange(OffsetRange("t", 3, 0, 5), 42, False, 4),
            )
        ),
    ]


def test_what_is_assigned_by_hand_is_spread_over_the_tasks() -> None:
    """It is no member's, whose ranges would make one task."""
    offset = replace(
        batch({0: 10, 1: 10, 2: 30}), members=(MemberState(-1, (tp(0), tp(1), tp(2))),)
    )
    tasks = group_into_tasks(offset, 2)
    assert [[one.range.partition for one in task.ranges] for task in tasks] == [[2], [0, 1]]
    assert {one.generation for task in tasks for one in task.ranges} == {-1}


def test_more_members_than_readers_are_merged_evenly() -> None:
    tasks = group_into_tasks(batch({0: 1, 1: 4, 2: 5, 3: 10}, (0,), (1,), (2,), (3,)), 2)
    assert sorted(map(sorted, partitions(tasks))) == [[0, 1, 2], [3]]
    assert {r.range.partition: r.generation for t in tasks for r in t.ranges} == {
        0: 40,
        1: 41,
        2: 42,
        3: 43,
    }


def test_ranges_without_an_owner_are_spread_evenly() -> None:
    tasks = group_into_tasks(batch(dict.fromkeys(range(12), 7)), 4)
    assert [len(task.ranges) for task in tasks] == [3, 3, 3, 3]
    assert {r.generation for task in tasks for r in task.ranges} == {None}


def test_ranges_without_an_owner_go_where_there_is_least_to_do() -> None:
    tasks = group_into_tasks(batch({0: 9, 1: 1, 2: 5}, (0,), (1,)), 2)
    assert partitions(tasks) == [[0], [1, 2]]


def test_events_are_in_one_task_only() -> None:
    events = (
        RebalanceEvent("lost", TopicPartition("t", 1), 7),
        RebalanceEvent("assigned", TopicPartition("t", 2), 8),
    )
    with_ranges = group_into_tasks(batch({0: 1, 1: 1}, (0,), (1,), events=events), 2)
    assert [task.events for task in with_ranges] == [events, ()]
    assert partitions(with_ranges) == [[0], [1]]
    assert group_into_tasks(batch({}, events=events), 2) == [ReadTask((), events)]


def test_a_batch_of_nothing_has_no_task() -> None:
    assert group_into_tasks(batch({}, (), ()), 4) == []


def test_a_warm_up_has_a_task_for_every_reader() -> None:
    assert group_into_tasks(StreamOffset(warm_up=1), 3) == [ReadTask(warm_up=True)] * 3
    events = (RebalanceEvent("assigned", TopicPartition("t", 2), 8),)
    with_events = group_into_tasks(StreamOffset(warm_up=1, events=events), 2)
    assert with_events == [ReadTask(events=events, warm_up=True), ReadTask(warm_up=True)]


@given(
    st.dictionaries(st.integers(0, 30), st.integers(1, 1000), max_size=20),
    st.lists(st.sets(st.integers(0, 30)), max_size=5),
    st.integers(1, 6),
    st.randoms(use_true_random=False),
)
def test_every_range_is_in_exactly_one_task_and_the_order_of_dicts_does_not_count(
    sizes: dict[int, int], owned: list[set[int]], readers: int, chance: random.Random
) -> None:
    taken: set[int] = set()
    members = []
    for wanted in owned:
        members.append(tuple(wanted - taken))
        taken |= wanted
    tasks = group_into_tasks(batch(sizes, *members), readers)
    assert sorted(p for task in partitions(tasks) for p in task) == sorted(sizes)
    assert len(tasks) <= readers
    assert all(task.ranges for task in tasks)
    items = list(sizes.items())
    chance.shuffle(items)
    assert group_into_tasks(batch(dict(items), *members), readers) == tasks


@given(OFFSET_MAPS, OFFSET_MAPS)
def test_the_backlog_is_what_a_plan_without_a_limit_reads(
    positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]
) -> None:
    assert backlog(positions, ends) == sum(map(len, plan_batch(positions, ends, None).values()))


def tasks_of(sizes: list[list[int]]) -> list[ReadTask]:
    """A task for each list, a range for each number; the flags tell the ranges apart."""
    numbers = iter(range(100))
    return [
        ReadTask(
            tuple(
                TaskRange(OffsetRange("t", n := next(numbers), 7, 7 + size), n, n % 2 == 0)
                for size in task
            )
        )
        for task in sizes
    ]


def offsets_in(tasks: list[ReadTask]) -> list[tuple[int, int, int | None, bool]]:
    return [
        (one.range.partition, offset, one.generation, one.revoking)
        for task in tasks
        for one in task.ranges
        for offset in range(one.range.start, one.range.end)
    ]


def sizes_of(tasks: list[ReadTask]) -> list[int]:
    return [sum(len(one.range) for one in task.ranges) for task in tasks]


@given(
    st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=5), max_size=5),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 50),
)
def test_split_tasks_read_the_same_in_the_same_order(
    sizes: list[list[int]], min_partitions: int | None, max_records: int | None
) -> None:
    tasks = tasks_of(sizes)
    split = split_tasks(tasks, min_partitions, max_records)
    assert offsets_in(split) == offsets_in(tasks)
    assert all(len(one.range) for task in split for one in task.ranges)
    assert len(split) >= len(tasks)
    if max_records is not None:
        assert all(size <= max_records for size in sizes_of(split))


def test_more_tasks_are_made_of_the_larger_ones() -> None:
    assert sizes_of(split_tasks(tasks_of([[60, 20], [10], [10]]), 10, None)) == [10] * 10
    assert sizes_of(split_tasks(tasks_of([[1], [99]]), 4, None)) == [1, 24, 25, 25, 25]


def test_no_task_is_split_without_need() -> None:
    tasks = tasks_of([[3, 4], [5]])
    assert split_tasks(tasks, None, None) == tasks
    assert split_tasks(tasks, 2, 7) == tasks
    assert split_tasks([], 5, 5) == []


def test_a_task_that_is_too_long_is_split_evenly() -> None:
    assert sizes_of(split_tasks(tasks_of([[10], [4]]), None, 4)) == [3, 3, 4, 4]
