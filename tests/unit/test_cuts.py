"""What each cut takes from a batch, and what a plan says of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.source.plan import cuts as cuts_module
from pyspark_kafka_rebalance.source.plan.available_now import AvailableNowRun, BeyondEnd
from pyspark_kafka_rebalance.source.plan.batch_planner import (
    NO_LIMIT,
    BatchPlanner,
    Cut,
    Gone,
    Planned,
    Postponed,
)
from pyspark_kafka_rebalance.source.plan.cuts import (
    AllAtOnce,
    EnoughToRead,
    KnownSizes,
    WithinLogs,
    WithinRun,
)
from pyspark_kafka_rebalance.source.spark.read_limits import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
)

P, Q, R = (TopicPartition("t", n) for n in range(3))
ALL = ReadMaxRows(NO_LIMIT)
Positions = Mapping[TopicPartition, int]
Numbers = st.dictionaries(st.sampled_from([P, Q, R]), st.integers(0, 30))


def no_questions(positions: Positions) -> Positions:
    raise AssertionError("asks without need")


def logs_end_at(**ends: int) -> Callable[[Positions], Positions]:
    """By their names in this module; asked for no others."""
    known = {globals()[name]: end for name, end in ends.items()}
    return lambda positions: {p: known[p] for p in positions if p in known}


def plan(
    cuts: list[Cut], positions: Positions, ends: Positions, limit: ReadLimit = ALL
) -> Planned | Postponed | Gone:
    return BatchPlanner(cuts).plan(positions, ends, limit)


def ends_of(planned: Planned | Postponed | Gone) -> dict[TopicPartition, int]:
    assert isinstance(planned, Planned)
    return {p: handed.end for p, handed in planned.ranges.items()}


def test_without_a_cut_a_batch_has_all_there_is() -> None:
    planned = plan([], {P: 3, Q: 5}, {P: 10, Q: 5})
    assert ends_of(planned) == {P: 10}
    assert ends_of(plan([], {P: 3, Q: 3}, {P: 10, Q: 10}, ReadMaxRows(4))) == {P: 5, Q: 5}


def test_what_has_no_known_end_is_postponed() -> None:
    planned = plan([WithinLogs(no_questions)], {P: 3, Q: 3}, {P: 10})
    assert isinstance(planned, Planned)
    assert (ends_of(planned), planned.postponed) == ({P: 10}, {Q})


def test_a_position_past_the_end_of_its_log_is_gone() -> None:
    cut = WithinLogs(logs_end_at(P=9, Q=30))
    gone = plan([cut], {P: 10, Q: 20, R: 0}, {P: 5, Q: 15, R: 5})
    assert gone == Gone(lost=[BeyondEnd(P, 10, 5)])


def test_an_open_transaction_is_no_loss_and_no_answer_is_a_doubt() -> None:
    cut = WithinLogs(logs_end_at(P=30))
    planned = plan([cut], {P: 10, Q: 20, R: 0}, {P: 5, Q: 15, R: 5})
    assert isinstance(planned, Planned)
    assert (ends_of(planned), planned.postponed) == ({R: 5}, {Q})


def test_once_plans_nothing_before_all_is_known() -> None:
    waiting: list[TopicPartition] = []
    cuts: list[Cut] = [WithinLogs(no_questions), AllAtOnce(lambda: waiting)]
    once = ReadAllAvailable()
    assert plan(cuts, {P: 3, Q: 3}, {P: 10}, once) == Postponed(frozenset({Q}))
    waiting.append(R)
    assert plan(cuts, {P: 3}, {P: 10}, once) == Postponed(frozenset({R}))
    assert ends_of(plan(cuts, {P: 3}, {P: 10}, ALL)) == {P: 10}, "there are other triggers"
    waiting.clear()
    assert ends_of(plan(cuts, {P: 3}, {P: 10}, once)) == {P: 10}


def test_available_now_ends_where_it_began() -> None:
    run = AvailableNowRun({P: 10, Q: 10})
    cuts: list[Cut] = [WithinLogs(no_questions), WithinRun(run)]
    planned = plan(cuts, {P: 3, Q: 10, R: 0}, {P: 15, Q: 15, R: 15})
    assert ends_of(planned) == {P: 10}


def test_available_now_postpones_only_what_it_was_to_read() -> None:
    run = AvailableNowRun({P: 10, Q: 10})
    cuts: list[Cut] = [WithinLogs(no_questions), WithinRun(run)]
    planned = plan(cuts, {P: 3, Q: 10, R: 0}, {})
    assert isinstance(planned, Planned)
    assert planned.postponed == {P}


def test_available_now_waits_in_doubt_for_what_it_has_read_too() -> None:
    run = AvailableNowRun({P: 10})
    cuts: list[Cut] = [WithinLogs(logs_end_at(), run), WithinRun(run)]
    planned = plan(cuts, {P: 12}, {P: 11})
    assert isinstance(planned, Planned)
    assert planned.postponed == {P}, "it may have been truncated"


def test_available_now_does_not_miss_what_it_has_read_when_its_log_is_shorter() -> None:
    run = AvailableNowRun({P: 10, Q: 10})
    cuts: list[Cut] = [WithinLogs(logs_end_at(P=1, Q=1, R=1), run), WithinRun(run)]
    planned = plan(cuts, {P: 10, R: 5}, {P: 1, R: 1})
    assert isinstance(planned, Planned)
    assert (ends_of(planned), planned.postponed) == ({}, set())
    gone = plan(cuts, {P: 10, Q: 12}, {P: 1, Q: 1})
    assert gone == Gone(lost=[BeyondEnd(Q, 12, 1)]), "it was past the end when the run began"


def test_available_now_notices_a_log_that_ends_before_the_run_does() -> None:
    run = AvailableNowRun({P: 10, Q: 10})
    planner = BatchPlanner([WithinLogs(no_questions), WithinRun(run)])
    gone = planner.plan({P: 3, Q: 3}, {P: 7, Q: 10}, ALL)
    assert gone == Gone(shortened=[BeyondEnd(P, 3, 7)])
    run.give_up({P: 7})
    assert ends_of(planner.plan({P: 3, Q: 3}, {P: 7, Q: 10}, ALL)) == {P: 7, Q: 10}


def test_available_now_knows_how_far_it_has_come() -> None:
    run = AvailableNowRun({P: 10})
    planner = BatchPlanner([WithinRun(run)])
    planned = planner.plan({P: 3}, {P: 10}, ReadMaxRows(2))
    assert run.reached(P) == 3
    assert isinstance(planned, Planned)
    planner.handed_out(planned.ranges)
    assert run.reached(P) == 5


def test_bytes_leave_out_what_has_no_size() -> None:
    cut = KnownSizes(100, lambda ends: {p: 10.0 for p in ends if p != Q})
    planned = plan([cut], {P: 0, Q: 0, R: 5}, {P: 50, Q: 50, R: 5})
    assert isinstance(planned, Planned)
    assert (ends_of(planned), planned.postponed) == ({P: 10}, {Q})
    silent = KnownSizes(100, lambda ends: {})
    planned = plan([silent], {P: 5}, {P: 5})
    assert isinstance(planned, Planned)
    assert planned.postponed == set(), "there is nothing to read"


def test_once_knows_no_bytes() -> None:
    cut = KnownSizes(100, no_questions)  # type: ignore[arg-type]
    assert ends_of(plan([cut], {P: 0}, {P: 50}, ReadAllAvailable())) == {P: 50}


def test_the_size_of_an_offset_is_that_of_the_whole_log() -> None:
    asked: list[Positions] = []

    def sizes(ends: Positions) -> dict[TopicPartition, float]:
        asked.append(dict(ends))
        return dict.fromkeys(ends, 1.0)

    run = AvailableNowRun({P: 10})
    plan([WithinRun(run), KnownSizes(100, sizes)], {P: 0}, {P: 500})
    assert asked == [{P: 500}]


def test_a_batch_waits_until_there_is_enough_or_it_has_waited_for_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    monkeypatch.setattr(cuts_module.time, "monotonic", lambda: now[0])
    planner = BatchPlanner([EnoughToRead(10, 5.0)])
    first = planner.plan({P: 0}, {P: 1}, ALL)
    assert ends_of(first) == {P: 1}, "the first waits for nothing"
    assert isinstance(first, Planned)
    planner.handed_out(first.ranges)
    assert ends_of(planner.plan({P: 1}, {P: 10}, ALL)) == {}
    assert ends_of(planner.plan({P: 1}, {P: 10}, ReadAllAvailable())) == {P: 10}
    assert ends_of(planner.plan({P: 1}, {P: 11}, ALL)) == {P: 11}
    planner.handed_out({})
    now[0] += 5.0
    assert ends_of(planner.plan({P: 1}, {P: 10}, ALL)) == {P: 10}


@given(positions=Numbers, ends=Numbers, run_ends=Numbers, rows=st.integers(1, 20))
def test_no_batch_of_a_run_passes_its_end_and_what_it_leaves_out_is_named(
    positions: Positions, ends: Positions, run_ends: Positions, rows: int
) -> None:
    run = AvailableNowRun(run_ends)
    cuts: list[Cut] = [WithinLogs(lambda beyond: dict(ends), run), WithinRun(run)]
    planned = plan(cuts, positions, ends, ReadMaxRows(rows))
    unread = set(run.unread(positions))
    if isinstance(planned, Gone):
        assert planned.lost or planned.shortened
        assert all(lost.position != run_ends.get(lost.partition) for lost in planned.lost)
        return
    assert isinstance(planned, Planned)
    for partition, end in ends_of(planned).items():
        assert positions[partition] < end <= min(ends[partition], run_ends[partition])
    assert planned.ranges.keys() | planned.postponed == unread
