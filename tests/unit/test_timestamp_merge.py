"""The merge by timestamps: the cases of Kafka Streams' PartitionGroupTest and RecordQueueTest.

What Streams has and this does not (its sensors, its deserialization, its timestamp extractors) is
left out. Both forms of the merge are held to an order that is written down once more, naively.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.ordered.arrow_merge import ArrowGroup, merged, ordered_schema
from pyspark_kafka_rebalance.consumer.ordered.idling import Idling
from pyspark_kafka_rebalance.consumer.ordered.ordered_records import by_number
from pyspark_kafka_rebalance.consumer.ordered.timestamp_merge import RecordGroup, TimestampMerge
from pyspark_kafka_rebalance.fetch.columns import record_schema

ONE, TWO = TopicPartition("topic", 1), TopicPartition("topic", 2)


#: In nanoseconds: null in a column of microseconds.
TOO_LARGE = 1_700_000_000_123_456_789


class Record(NamedTuple):
    offset: int
    timestamp: int


def records(*timestamps: int, first: int = 0) -> list[Any]:
    return [Record(first + n, at) for n, at in enumerate(timestamps)]


def batch(found: Sequence[Record]) -> pa.RecordBatch:
    columns = [
        pa.array([b"k%d" % each.offset for each in found]),
        pa.array([b"v%d" % each.timestamp for each in found]),
        pa.array([each.offset for each in found], pa.int64()),
        pa.array(
            [each.timestamp * 1_000 if each.timestamp < TOO_LARGE else None for each in found],
            pa.int64(),
        ).cast(record_schema(False).field("timestamp").type),
        pa.array([0] * len(found), pa.int32()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=record_schema(False))


def group(*partitions: TopicPartition, idle_ms: int = -1) -> RecordGroup:
    made = RecordGroup(Idling(idle_ms))
    for partition in partitions or (ONE, TWO):
        made.add(partition, now=0)
    return made


def taken(merge: RecordGroup, number: int = 1_000, now: float = 0) -> list[tuple[int, int]]:
    """By partition's number and timestamp."""
    found = []
    while len(found) < number and (each := merge.take(now)) is not None:
        found.append((each[0].partition, each[1].timestamp))
    return found


def test_the_next_record_is_the_one_with_the_lowest_head() -> None:
    """testTimeTracking of PartitionGroupTest, testFirstBatch and testSecondBatch"""
    merge = group()
    merge.extend(ONE, records(1, 3, 5))
    merge.extend(TWO, records(2, 4, 6))
    assert taken(merge, 2) == [(1, 1), (2, 2)]
    assert (merge.buffered(ONE), merge.buffered(TWO)) == (2, 2)
    merge.extend(ONE, records(2, 4, first=3))
    assert taken(merge) == [(1, 3), (2, 4), (1, 5), (1, 2), (1, 4), (2, 6)]
    assert not merge.any_buffered


def test_a_partition_is_not_judged_by_the_highest_timestamp_it_had() -> None:
    """shouldChooseNextRecordBasedOnHeadTimestamp"""
    merge = group()
    merge.extend(ONE, records(1, 5, 3))
    assert taken(merge, 2) == [(1, 1), (1, 5)]
    merge.extend(TWO, records(2, 4, 6))
    assert taken(merge) == [(2, 2), (1, 3), (2, 4), (2, 6)]


def test_records_keep_the_order_of_their_partition() -> None:
    """testTimeTracking of RecordQueueTest"""
    merge = group(ONE)
    merge.extend(ONE, records(2, 1, 3))
    assert taken(merge, 2) == [(1, 2), (1, 1)]
    merge.extend(ONE, records(4, 1, 2, first=3))
    assert taken(merge) == [(1, 3), (1, 4), (1, 1), (1, 2)]
    assert merge.take(0) is None
    merge.extend(ONE, records(4, 5, 6, first=6))
    assert taken(merge, 1) == [(1, 4)]
    merge.clear(ONE, now=0)
    assert not merge.buffered(ONE)
    merge.extend(ONE, records(4, 5, 6))
    assert taken(merge) == [(1, 4), (1, 5), (1, 6)]


def test_a_record_without_a_timestamp_counts_as_its_partition_so_far() -> None:
    """shouldTrackPartitionTimeAsMaxProcessedTimestamp, shouldPassPartitionTimeToTimestampExtractor

    With Streams' UsePartitionTimeOnInvalidTimestamp; where nothing was returned before, it fails
    (shouldThrowOnNegativeTimestamp) or drops the record (shouldDropOnNegativeTimestamp), and here
    the record comes first.
    """
    merge = group()
    merge.extend(ONE, records(-1, 5, 2, -1, 7, -1))
    merge.extend(TWO, records(1, 5, 6, 8))
    assert taken(merge) == [
        *[(1, -1), (2, 1), (1, 5), (1, 2), (1, -1)],  # as 5, not as 2
        *[(2, 5), (2, 6), (1, 7), (1, -1), (2, 8)],
    ]


def test_of_equal_timestamps_the_lower_partition_comes_first() -> None:
    merge = group()
    merge.extend(TWO, records(1, 1))
    merge.extend(ONE, records(1, 1, 2))
    assert taken(merge) == [(1, 1), (1, 1), (2, 1), (2, 1), (1, 2)]


def test_a_record_in_nanoseconds_counts_as_its_partition_so_far() -> None:
    """In poll_arrow its timestamp is null, so both faces take it for none."""
    merge = group()
    merge.extend(ONE, records(1, TOO_LARGE, 2, 3))
    merge.extend(TWO, records(1, 2, 3))
    assert taken(merge) == [(1, 1), (1, TOO_LARGE), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]


def test_a_record_years_ahead_holds_nobody_up() -> None:
    years = 10**12
    merge = group(idle_ms=10)
    merge.extend(ONE, records(1, years, 2, 3))
    merge.extend(TWO, records(1, 2, 3))
    merge.idling.answered(TWO, 5, now=0)
    assert taken(merge) == [(1, 1), (2, 1), (2, 2), (2, 3)]
    merge.extend(TWO, records(4, 5, first=3))
    merge.idling.answered(TWO, 0, now=1)
    assert taken(merge, now=1) == [(2, 4), (2, 5)]
    assert not taken(merge, now=1)
    assert taken(merge, now=1.01) == [(1, years), (1, 2), (1, 3)]


def test_a_partition_that_never_has_a_record_is_given_up_once() -> None:
    merge = group(idle_ms=1_000)
    merge.idling.answered(TWO, 0, now=0)
    merge.extend(ONE, records(1))
    assert not taken(merge, now=0.9)
    assert taken(merge, now=1) == [(1, 1)]
    for now in (2, 3):
        merge.extend(ONE, records(now, first=now))
        merge.idling.answered(TWO, 0, now=now)
        assert taken(merge, now=now) == [(1, now)]


def test_what_is_cleared_is_gone_with_all_that_was_known() -> None:
    """shouldEmptyPartitionsOnClear"""
    merge = group(ONE, idle_ms=10)
    merge.idling.answered(ONE, 0, now=0)
    merge.extend(ONE, records(1, 3, 5))
    assert taken(merge, 2) == [(1, 1), (1, 3)]
    merge.clear(ONE, now=0)
    assert merge.take(0) is None
    assert merge.idling.lag(ONE) is None


def test_partitions_leave_and_join_in_mid_merge() -> None:
    """shouldUpdatePartitionQueuesShrink, …Expand, …ShrinkAndExpand"""
    merge = TimestampMerge(RecordGroup, 0, lambda _: None)
    merge.set_partitions([ONE, TWO], [], now=0)
    merge.extend(ONE, records(1, 5))
    merge.extend(TWO, records(2, 4, 6))
    (only,) = merge.in_turn()
    assert taken(only, 1) == [(1, 1)]
    merge.set_partitions([TWO], [], now=0)
    assert (merge.buffered(ONE), merge.buffered(TWO)) == (0, 3)
    assert taken(only, 1) == [(2, 2)]
    merge.set_partitions([ONE, TWO], [], now=0)
    assert not merge.is_ready(0)  # nothing is known of the one that joined
    merge.answered(ONE, 0, now=0)
    assert taken(only) == [(2, 4), (2, 6)]
    merge.set_partitions([], [], now=0)
    assert not merge.in_turn()


def test_a_partition_that_is_paused_is_as_if_it_were_not_there() -> None:
    merge = TimestampMerge(RecordGroup, 0, lambda _: None)
    merge.set_partitions([ONE, TWO], [], now=0)
    merge.extend(ONE, records(1, 5))
    assert not merge.is_ready(0)
    merge.set_partitions([ONE, TWO], [TWO], now=0)
    (only,) = merge.in_turn()
    assert taken(only, 1) == [(1, 1)]
    merge.set_partitions([ONE, TWO], [ONE, TWO], now=0)
    assert not merge.is_ready(0)
    assert merge.buffered(ONE) == 1
    merge.set_partitions([ONE, TWO], [TWO], now=0)
    assert taken(only) == [(1, 5)]


def test_groups_do_not_wait_for_each_other() -> None:
    here, there = TopicPartition("a", 0), TopicPartition("a", 1)
    beside_here, beside_there = TopicPartition("b", 0), TopicPartition("b", 1)
    merge = TimestampMerge(RecordGroup, 0, by_number)
    merge.set_partitions([here, there, beside_here, beside_there], [], now=0)
    merge.extend(here, records(10, 11))
    merge.extend(there, records(1))
    assert not merge.is_ready(0)
    merge.extend(beside_here, records(12))
    assert merge.is_ready(0)
    assert [taken(each) for each in merge.in_turn()] in (
        [[(0, 10), (0, 11)], []],
        [[], [(0, 10), (0, 11)]],
    )
    assert merge.buffered(there) == 1


def test_records_that_a_truncated_log_has_no_more_are_replaced() -> None:
    for make in (RecordGroup, ArrowGroup):
        merge = make(Idling(-1))
        merge.add(ONE, now=0)
        form: Any = (lambda found: [batch(found)]) if make is ArrowGroup else list
        merge.extend(ONE, form(records(1, 2, 3, 4)))
        merge.extend(ONE, form(records(9, 10, first=2)))
        assert merge.buffered(ONE) == 4
        merge.extend(ONE, form(records(0, first=0)))
        assert merge.buffered(ONE) == 1


def naively(
    buffered: dict[TopicPartition, list[Record]], times: dict[TopicPartition, int]
) -> list[tuple[TopicPartition, Record]]:
    """The order, as it is described; consumes what it is given."""
    found = []
    while heads := {
        p: each[0].timestamp if 0 <= each[0].timestamp < TOO_LARGE else times[p]
        for p, each in buffered.items()
        if each
    }:
        partition = min(heads, key=lambda p: (heads[p], p))
        times[partition] = max(times[partition], heads[partition])
        found.append((partition, buffered[partition].pop(0)))
    return found


stamps = st.lists(st.integers(-1, 6) | st.just(TOO_LARGE), max_size=12)


@given(st.lists(stamps, min_size=1, max_size=4), st.lists(st.integers(1, 9), max_size=6))
def test_rows_come_in_the_order_of_records(
    by_partition: list[list[int]], limits: list[int]
) -> None:
    partitions = [TopicPartition(f"t{n % 2}", n) for n in range(len(by_partition))]
    rows, plain = ArrowGroup(Idling(-1)), RecordGroup(Idling(-1))
    buffered = {}
    for partition, timestamps in zip(partitions, by_partition, strict=True):
        rows.add(partition, now=0)
        plain.add(partition, now=0)
        buffered[partition] = records(*timestamps)
        if timestamps:
            half = len(timestamps) // 2
            halves = (buffered[partition][:half], buffered[partition][half:])
            rows.extend(partition, [batch(each) for each in halves if each])
            plain.extend(partition, buffered[partition])
    by_row, one_by_one = [], []
    for limit in [*limits, 1_000]:
        table = merged(rows.take(limit, now=0), include_headers=False)
        assert table.schema == ordered_schema(False)
        assert table.num_rows <= limit
        by_row += [
            (TopicPartition(row["topic"], row["partition"]), row["offset"], row["value"])
            for row in table.to_pylist()
        ]
        for _ in range(table.num_rows):
            each = plain.take(now=0)
            assert each is not None
            one_by_one.append((each[0], each[1].offset, b"v%d" % each[1].timestamp))
    expected = naively(buffered, dict.fromkeys(partitions, -1))
    assert one_by_one == [(p, each.offset, b"v%d" % each.timestamp) for p, each in expected]
    assert by_row == one_by_one


@given(
    st.lists(st.tuples(stamps, st.sampled_from([None, 0, 3])), min_size=1, max_size=4),
    st.sampled_from([-1, 0, 500]),
)
def test_rows_end_where_records_do(
    by_partition: list[tuple[list[int], int | None]], idle_ms: int
) -> None:
    """With what is known of each partition's lag."""
    rows, plain = ArrowGroup(Idling(idle_ms)), RecordGroup(Idling(idle_ms))
    for n, (timestamps, lag) in enumerate(by_partition):
        partition = TopicPartition("t", n)
        for each in (rows, plain):
            each.add(partition, now=0)
            if timestamps:
                found = records(*timestamps)
                each.extend(partition, [batch(found)] if each is rows else found)
            if lag is not None:
                each.idling.answered(partition, lag, now=0)
    for now in (0.0, 0.4, 0.6, 1.2):
        table = merged(rows.take(1_000, now), include_headers=False)
        by_row = [(row["partition"], row["offset"]) for row in table.to_pylist()]
        one_by_one = []
        while (taken_now := plain.take(now)) is not None:
            one_by_one.append((taken_now[0].partition, taken_now[1].offset))
        assert by_row == one_by_one
