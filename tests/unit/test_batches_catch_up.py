"""What is caught up of gaps: the options, a batch's share of them, its pace, and its tasks."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.batches.batch import Batch
from pyspark_kafka_rebalance.source.offsets.stream_offset import MemberState, StreamOffset
from pyspark_kafka_rebalance.source.options.catch_up_options import CatchUpOptions, Threshold
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.catch_up import CatchUpPace, Share, plan_catch_up
from pyspark_kafka_rebalance.source.plan.tasks import ReadTask, group_into_tasks

P, Q, R = (TopicPartition("t", n) for n in range(3))


def a_range(start: int, end: int, partition: TopicPartition = P) -> OffsetRange:
    return OffsetRange(*partition, start, end)


# -- options --------------------------------------------------------------------------------------


def parse(**options: str) -> SourceOptions:
    required = {"kafka.bootstrap.servers": "h:1", "kafka.group.id": "g", "subscribe": "t"}
    return SourceOptions.parse({**required, **options}, default_readers=1)


def test_nothing_is_caught_up_unless_it_is_asked_for() -> None:
    assert parse().catch_up is None
    assert parse(parallelRebalance="ordered").catch_up is None
    assert parse(parallelRebalance="live").catch_up == CatchUpOptions(
        Threshold(offsets=10_000), batch_ms=1_000, max_offsets_per_trigger=None
    )


@pytest.mark.parametrize(
    ("text", "threshold"),
    [
        ("0", Threshold(offsets=0)),
        ("500", Threshold(offsets=500)),
        ("5m", Threshold(age_ms=300_000)),
        ("500ms", Threshold(age_ms=500)),
    ],
)
def test_the_threshold_is_of_offsets_or_of_time(text: str, threshold: Threshold) -> None:
    options = parse(
        parallelRebalance="live",
        catchUpThreshold=text,
        catchUpBatchMs="300",
        maxCatchUpOffsetsPerTrigger="7",
    )
    assert options.catch_up == CatchUpOptions(threshold, 300, 7)


@pytest.mark.parametrize(
    ("threshold", "position", "old_at", "exceeded"),
    [
        (Threshold(offsets=10), 90, (), False),
        (Threshold(offsets=10), 89, (), True),
        (Threshold(offsets=0), 100, (), False),
        (Threshold(offsets=0), 120, (), False),
        (Threshold(age_ms=5), 90, {89}, False),
        (Threshold(age_ms=5), 89, {89}, True),
        (Threshold(age_ms=5), 100, {100}, False),
    ],
)
def test_what_is_further_behind_exceeds_the_threshold(
    threshold: Threshold, position: int, old_at: Container[int], exceeded: bool
) -> None:
    assert threshold.is_exceeded(position, 100, old_at) == exceeded


# -- a batch's share ------------------------------------------------------------------------------

GAPS = st.lists(st.integers(0, 200), unique=True, max_size=8).map(
    lambda bounds: [Gap(*pair) for pair in zip(*[iter(sorted(bounds))] * 2, strict=False)]
)


@given(st.dictionaries(st.sampled_from([P, Q, R]), GAPS), st.integers(1, 150) | st.none())
def test_a_batch_has_the_lowest_offsets_of_each_gap(
    gaps: dict[TopicPartition, list[Gap]], limit: int | None
) -> None:
    planned = plan_catch_up(gaps, limit)
    offsets = {p: [o for gap in found for o in range(*gap)] for p, found in gaps.items() if found}
    assert planned.keys() == offsets.keys()
    for p, pieces in planned.items():
        read = [o for piece in pieces for o in range(piece.start, piece.end)]
        assert read == offsets[p][: len(read)]
        assert read
        assert {(piece.topic, piece.partition) for piece in pieces} == {p}
    number = sum(len(piece) for pieces in planned.values() for piece in pieces)
    total = sum(map(len, offsets.values()))
    assert number <= total if limit is None else number <= max(limit, len(offsets))
    if limit is None or total <= limit:
        assert number == total


# -- the pace -------------------------------------------------------------------------------------


class Sink:
    """Batches in a row, of which each takes so long as its number of offsets says."""

    def __init__(self, pace: CatchUpPace, duration_s: Callable[[int], float]) -> None:
        self._pace = pace
        self._duration_s = duration_s
        self._now = 100.0

    def run(self, batches: int, left: int = 1 << 60) -> list[int]:
        shares = []
        for _ in range(batches):
            offsets = min(left, self._pace.allowance)
            share = Share(offsets, self._pace.allowance)
            batch = Batch(number=1, opened_at=self._now, share=share)
            self._now += self._duration_s(offsets)
            batch.done(self._pace, self._now)
            batch.done(self._pace, self._now + 50)
            shares.append(offsets)
        return shares


@pytest.mark.parametrize("per_second", [3_000, 50_000, 1_000_000])
def test_batches_come_to_take_as_long_as_they_may(per_second: int) -> None:
    sink = Sink(CatchUpPace(1.0), lambda offsets: 0.2 + offsets / per_second)
    sink.run(12)
    for offsets in sink.run(20):
        assert 0.7 <= 0.2 + offsets / per_second <= 1.3


def test_the_share_at_most_doubles() -> None:
    shares = Sink(CatchUpPace(1.0), lambda offsets: 0.001).run(10)
    assert shares == [10_000 * 2**n for n in range(10)]


def test_a_batch_that_stands_still_costs_three_quarters_of_the_share_and_no_more() -> None:
    pace = CatchUpPace(1.0)
    Sink(pace, lambda offsets: 0.5).run(4)
    before = pace.allowance
    Sink(pace, lambda offsets: 600.0).run(1)
    assert pace.allowance == before // 4


@pytest.mark.parametrize("else_s", [3.0, 10.0, 60.0])
def test_what_takes_long_for_other_reasons_does_not_starve_the_gaps(else_s: float) -> None:
    """Many live records; or a trigger's interval, and nothing tells that the batch is done."""
    shares = Sink(CatchUpPace(1.0), lambda offsets: else_s + offsets / 1_000_000).run(60)
    assert sum(shares) / 60 > 50_000
    assert max(shares) < 1_000_000 * else_s


@pytest.mark.parametrize("seed", range(3))
def test_batches_of_uneven_duration_do_not_keep_the_share_at_its_least(seed: int) -> None:
    noise = Random(seed)
    shares = Sink(
        CatchUpPace(1.0), lambda offsets: 3.0 * noise.uniform(0.7, 1.3) + offsets / 10_000
    ).run(200)
    assert sum(shares) / 200 > 2_500


def test_a_trigger_is_not_missed_for_long() -> None:
    """What does not fit the interval takes two of them."""

    def duration_s(offsets: int) -> float:
        return 10.0 * (1 + int(offsets / 1_000_000 / 10))

    shares = Sink(CatchUpPace(1.0), duration_s).run(60)
    assert sum(duration_s(offsets) > 10.0 for offsets in shares) <= 10
    assert sum(shares) / 60 > 500_000


def test_the_last_offsets_say_nothing_of_the_pace() -> None:
    pace = CatchUpPace(1.0)
    Sink(pace, lambda offsets: 0.5).run(3)
    before = pace.allowance
    Sink(pace, lambda offsets: 0.4).run(3, left=17)
    assert pace.allowance == before


# -- tasks ----------------------------------------------------------------------------------------


def pieces_of(task: ReadTask) -> Sequence[tuple[int, int, bool]]:
    return [(one.range.start, one.range.end, one.catch_up) for one in task.ranges]


def test_what_is_caught_up_is_cut_over_all_readers_behind_the_live_tasks() -> None:
    offset = StreamOffset(
        ranges={P: a_range(90_000, 90_010)},
        catch_up={P: (a_range(0, 10_000), a_range(20_000, 30_000))},
        members=(MemberState(4, (P,)),),
    )
    tasks = group_into_tasks(offset, 4)
    assert [pieces_of(task) for task in tasks] == [
        [(90_000, 90_010, False)],
        [(0, 5_000, True)],
        [(5_000, 10_000, True)],
        [(20_000, 25_000, True)],
        [(25_000, 30_000, True)],
    ]
    assert {one.generation for task in tasks for one in task.ranges} == {4}
    assert len(group_into_tasks(offset, 2)) == 3
    assert len(group_into_tasks(offset, 1, max_records=6_000)) == 1 + 4


def test_a_few_offsets_are_one_task_though_nobody_reads_live() -> None:
    offset = StreamOffset(catch_up={P: (a_range(3, 4),), Q: (a_range(0, 99, Q),)}, others={Q: 99})
    (task,) = group_into_tasks(offset, 8)
    assert [(one.range.partition, one.generation) for one in task.ranges] == [(0, None), (1, None)]


def test_rows_are_marked_where_the_group_is_owed_nothing() -> None:
    offset = StreamOffset(ranges={P: a_range(50, 60)}, catch_up={P: (a_range(0, 10),)})
    owed = Remaining(55, (Gap(4, 6), Gap(8, 40)))
    marks = [
        (one.range.start, one.range.end, one.lost_below)
        for task in group_into_tasks(offset, 1, owed={P: owed, Q: Remaining(0)})
        for one in task.ranges
    ]
    assert marks == [(50, 55, 55), (55, 60, 0), (0, 4, 4), (4, 6, 0), (6, 8, 8), (8, 10, 0)]
