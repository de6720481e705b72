"""When heartbeats are due, and what counts as an application being alive."""

from __future__ import annotations

import pytest
from settable_clock import Clock

from pyspark_kafka_rebalance.consumer.membership.liveness import (
    HURRIED_HEARTBEAT_S,
    HURRY_FOR_S,
    HeartbeatSchedule,
    Liveness,
)


def test_the_first_heartbeat_is_due_at_once_and_the_next_after_the_interval(clock: Clock) -> None:
    schedule = HeartbeatSchedule(3.0, clock)
    assert schedule.until_due() < 0
    schedule.sent()
    assert schedule.until_due() == 3.0
    clock.now += 4.0
    assert schedule.until_due() == -1.0


def test_after_a_change_heartbeats_hurry_for_a_while(clock: Clock) -> None:
    schedule = HeartbeatSchedule(3.0, clock)
    schedule.sent()
    schedule.hurry()
    assert schedule.until_due() == pytest.approx(HURRIED_HEARTBEAT_S)
    clock.now += HURRY_FOR_S
    schedule.sent()
    assert schedule.until_due() == 3.0


def test_an_interval_shorter_than_a_hurried_one_stays(clock: Clock) -> None:
    schedule = HeartbeatSchedule(0.05, clock)
    schedule.sent()
    schedule.hurry()
    assert schedule.until_due() == pytest.approx(0.05)


def test_the_coordinator_may_ask_for_more_heartbeats_not_for_fewer(clock: Clock) -> None:
    schedule = HeartbeatSchedule(1.0, clock)
    schedule.sent()
    schedule.agree(0.5)
    assert schedule.until_due() == 0.5
    schedule.agree(5.0)
    assert schedule.until_due() == 1.0


def test_what_was_heard_is_dated_by_the_heartbeat_not_by_its_answer(clock: Clock) -> None:
    schedule = HeartbeatSchedule(1.0, clock)
    assert schedule.heard_at < 0
    schedule.sent()
    clock.now += 3.0
    schedule.accepted()
    assert schedule.heard_at == 100.0


def test_a_held_heartbeat_waits_whatever_is_due(clock: Clock) -> None:
    schedule = HeartbeatSchedule(1.0, clock)
    assert schedule.held_for() == 0.0
    schedule.hold(0.25)
    assert schedule.held_for() == 0.25
    clock.now += 0.25
    assert schedule.held_for() == 0.0


def test_an_application_is_silent_too_long_after_its_last_sign_of_life(clock: Clock) -> None:
    liveness = Liveness(10_000, clock)
    clock.now += 10.0
    assert not liveness.silent_too_long()
    clock.now += 0.1
    assert liveness.silent_too_long()
    liveness.alive()
    assert not liveness.silent_too_long()


@pytest.mark.parametrize("sign", [Liveness.alive, Liveness.pumped])
def test_who_left_stays_out_until_the_next_sign_of_life(clock: Clock, sign) -> None:
    liveness = Liveness(10_000, clock)
    assert not liveness.out
    assert not sign(liveness), "it had not left"
    liveness.stay_out()
    assert liveness.out
    assert sign(liveness)
    assert not liveness.out
    assert not sign(liveness)


def test_a_pump_that_outlives_the_application_keeps_no_membership(clock: Clock) -> None:
    """KIP-509: the thread goes on, and the producer hangs."""
    liveness = Liveness(10_000, clock, pumping_counts=False)
    clock.now += 10.1
    assert not liveness.pumped()
    assert liveness.silent_too_long()
    liveness.stay_out()
    assert not liveness.pumped()
    assert liveness.out
    assert liveness.alive()
    assert not liveness.silent_too_long()


def test_who_is_silent_is_told_of_the_option_that_says_how_long(clock: Clock) -> None:
    liveness = Liveness(2_000_000, clock)
    assert liveness.verdict == "no poll for max_poll_interval_ms=2000000"
    liveness.silence = "no send for session_timeout_ms"
    assert liveness.verdict == "no send for session_timeout_ms=2000000"
