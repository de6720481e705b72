"""When a member has its coordinator write something."""

from __future__ import annotations

from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.consumer.membership.liveness import UnheardWrites

AWAY = kafka_errors.CoordinatorNotAvailableError


def test_a_coordinator_that_goes_down_says_so_once() -> None:
    unheard = UnheardWrites()
    for _ in range(5):
        assert not unheard.answered(AWAY)
        assert not unheard.answered(kafka_errors.NoError)
        assert not unheard.answered(AWAY)
        assert not unheard.answered(kafka_errors.NotCoordinatorError)


def test_one_that_goes_on_saying_so_is_made_to_write_now_and_then() -> None:
    unheard = UnheardWrites()
    assert [unheard.answered(AWAY) for _ in range(6)] == [False, True, False, True, False, True]
