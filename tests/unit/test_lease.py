from __future__ import annotations

import pytest
from settable_clock import Clock

from pyspark_kafka_rebalance.consumer.membership.liveness import Lease, suspend_aware_clock


def test_nothing_is_certain_before_the_first_renewal(clock: Clock) -> None:
    lease = Lease(10_000, clock)
    assert not lease.holds()
    assert not lease.expired()  # there was no membership that could have been lost


def test_holds_until_the_margin_and_expires_with_the_session(clock: Clock) -> None:
    lease = Lease(10_000, clock)
    lease.renew(100.0)
    clock.now = 108.99
    assert lease.holds()
    clock.now = 109.01  # within the margin: nothing new is handed out, nothing is lost yet
    assert not lease.holds()
    assert not lease.expired()
    clock.now = 110.0
    assert lease.expired()


def test_is_dated_by_the_send_time_not_by_the_answer(clock: Clock) -> None:
    lease = Lease(10_000, clock)
    sent_at = clock.now
    clock.now += 8  # the answer took 8 s, of which the broker's timer may have run all
    lease.renew(sent_at)
    clock.now += 2
    assert lease.expired()


def test_an_older_answer_does_not_shorten_it(clock: Clock) -> None:
    lease = Lease(10_000, clock)
    lease.renew(105.0)
    lease.renew(101.0)
    clock.now = 113.0
    assert lease.holds()


def test_given_up_is_as_before_the_first_renewal(clock: Clock) -> None:
    lease = Lease(10_000, clock)
    lease.renew(100.0)
    lease.give_up()
    assert not lease.holds()
    assert not lease.expired()


def test_the_clock_runs_during_suspension() -> None:
    import time

    if not hasattr(time, "CLOCK_BOOTTIME"):
        pytest.skip("only Linux has a clock that counts suspended time")
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= suspend_aware_clock() <= time.clock_gettime(time.CLOCK_BOOTTIME)
