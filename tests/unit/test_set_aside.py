"""What is set aside of a backlog, and who reads it: the rules alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.consumer.catch_up import (
    DEFAULT_THRESHOLD,
    CatchUpOptions,
    Places,
    shares,
    where_to_seek,
)
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap

P, Q, R = [TopicPartition("t", n) for n in range(3)]
LIVE = CatchUpOptions(in_order=False, threshold=100)


def test_it_is_off_unless_asked_for() -> None:
    assert CatchUpOptions.checked(None, False, None, None) is None
    assert CatchUpOptions.checked(None, False, 5, None) is None


def test_the_kips_own_switch_keeps_the_order() -> None:
    ordered = CatchUpOptions(in_order=True, threshold=DEFAULT_THRESHOLD)
    assert CatchUpOptions.checked(None, True, None, None) == ordered
    assert CatchUpOptions.checked("ordered", False, None, None) == ordered
    assert CatchUpOptions.checked("live", True, 7, None) == CatchUpOptions(False, 7)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("both", False, None, None), "parallel_rebalance"),
        ((None, "yes", None, None), "enable_parallel_rebalance"),
        (("live", False, -1, None), "catch_up_threshold"),
        (("live", False, 1.5, None), "catch_up_threshold"),
        (("live", False, True, None), "catch_up_threshold"),
        (("live", False, None, "5m"), "catch_up_threshold_ms"),
        (("live", False, 1, 1), "catch_up_threshold_ms"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(options: tuple, named: str) -> None:
    with pytest.raises(OptionError, match=f"'{named}'"):
        CatchUpOptions.checked(*options)


def test_a_backlog_is_set_aside_when_it_exceeds_the_threshold() -> None:
    assert LIVE.set_aside(Remaining(70), 170) is None
    assert LIVE.set_aside(Remaining(70), 171) == Remaining(171, (Gap(70, 171),))
    assert LIVE.set_aside(Remaining(70), 69) is None


def test_a_second_failure_leaves_two_gaps_and_those_that_touch_are_one() -> None:
    left = Remaining(4_000, (Gap(70, 120),))
    assert LIVE.set_aside(left, 9_000) == Remaining(9_000, (Gap(70, 120), Gap(4_000, 9_000)))
    touching = Remaining(4_000, (Gap(70, 4_000),))
    assert LIVE.set_aside(touching, 9_000) == Remaining(9_000, (Gap(70, 9_000),))


def test_what_is_processed_in_between_is_not_waited_for_either() -> None:
    left = Remaining(1_000_000, (Gap(70, 71),))
    assert LIVE.set_aside(left, 1_000_000) == Remaining(1_000_000, (Gap(70, 71),))


def test_what_was_read_live_is_read_on_live_beside_a_gap_that_is_left() -> None:
    left = Remaining(9_000, (Gap(70, 120),))
    assert LIVE.set_aside(left, 9_100) == left
    assert LIVE.set_aside(left, 9_101) == Remaining(9_101, (Gap(70, 120), Gap(9_000, 9_101)))
    assert LIVE.set_aside(left, 8_999) is None, "a transaction is open below, or it was truncated"


def test_by_age_it_is_the_next_record_that_counts() -> None:
    by_age = CatchUpOptions(in_order=False, threshold_ms=5_000)
    assert by_age.set_aside(Remaining(70), 71, old_at={71}) is None
    assert by_age.set_aside(Remaining(70), 71, old_at={70}) == Remaining(71, (Gap(70, 71),))
    assert by_age.set_aside(Remaining(71), 71, old_at={71}) is None, "there is none"
    left = Remaining(90, (Gap(5, 9),))
    assert by_age.set_aside(left, 99, old_at={5}) == left
    assert by_age.set_aside(left, 99, old_at={5, 90}) == Remaining(99, (Gap(5, 9), Gap(90, 99)))
    assert by_age.set_aside(left, 99, old_at={90}) is None, "its first record is young"


def test_by_age_two_positions_may_count() -> None:
    ask = CatchUpOptions(in_order=False, threshold_ms=5_000).may_be_behind
    assert ask(Remaining(90, (Gap(5, 9),)), 99) == [5, 90]
    assert ask(Remaining(90), 99) == [90]
    assert ask(Remaining(90, (Gap(5, 9),)), 90) == [5], "there is no record at the end"
    assert ask(Remaining(90, (Gap(5, 9),)), 80) == [], "the log was truncated"


@given(
    gaps=st.lists(st.tuples(st.integers(0, 300), st.integers(0, 300))),
    live=st.integers(0, 300),
    end=st.integers(0, 400),
)
def test_everything_below_the_live_position_is_set_aside_or_nothing(
    gaps: list[tuple[int, int]], live: int, end: int
) -> None:
    left = Remaining.of(gaps, live)
    aside = LIVE.set_aside(left, end)
    if aside is not None:
        assert aside.live == (live if end <= live + 100 else end) >= live
        assert {o for gap in aside.gaps for o in range(*gap)} == {
            o for o in range(aside.live) if o in left
        }
    else:
        assert end - left.committed() <= 100 or end < live


def test_who_is_read_keeps_the_place_until_it_is_done() -> None:
    places = Places(2)
    assert places.take([P, Q, R]) == [P, Q]
    assert places.take([R, Q, P]) == [P, Q]
    assert places.take([R, Q]) == [Q, R]
    assert places.take([]) == []


def test_who_cannot_be_read_on_stands_back_while_others_wait() -> None:
    places = Places(1)
    assert places.take([P, Q, R]) == [P]
    places.stand_back([P])
    assert places.take([P, Q, R]) == [Q]
    places.stand_back([Q, R])
    assert places.take([P, Q, R]) == [R], "that had no place to give up"
    assert places.take([P, Q]) == [P], "who has waited longer"
    places.stand_back([P])
    assert places.take([P]) == [P], "nobody waits"


def test_a_reader_seeks_only_where_it_is_worth_it() -> None:
    gaps = [Gap(100_000, 100_010)]
    assert where_to_seek(None, gaps) == 100_000
    assert where_to_seek(100_000, gaps) is None
    assert where_to_seek(99_000, gaps) is None, "it reads through"
    assert where_to_seek(70, gaps) == 100_000
    assert where_to_seek(100_001, gaps) == 100_000, "what it had there was not handed out"


@pytest.mark.parametrize("max_records", [1, 2, 3, 4, 5, 500])
def test_live_records_come_first_and_the_gaps_never_starve(max_records: int) -> None:
    live, gaps = zip(*(shares(max_records, polls) for polls in range(4)), strict=True)
    assert all(one + other == max_records for one, other in zip(live, gaps, strict=True))
    assert sum(live) >= sum(gaps) >= sum(live + gaps) / 4
