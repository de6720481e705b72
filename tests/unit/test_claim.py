"""Who may claim what it owns when the coordinator refuses its generation."""

from __future__ import annotations

from settable_clock import Clock

from pyspark_kafka_rebalance.consumer.membership.classic import Claim


def test_a_dynamic_member_that_is_known_may_always_claim(clock: Clock) -> None:
    """Had the group gone on without it, it would be unknown."""
    claim = Claim(static=False, rebalance_timeout_ms=10_000, clock=clock)
    assert claim.stands()
    claim.stood(100.0)
    clock.now = 1_000.0
    assert claim.stands()


def test_a_static_member_that_stayed_away_may_not_claim_what_the_leader_gave_away(
    clock: Clock,
) -> None:
    """It stays in the group with the claim of its last JoinGroup, which lacks what it got then."""
    claim = Claim(static=True, rebalance_timeout_ms=10_000, clock=clock)
    claim.stood(100.0)
    clock.now = 109.9
    assert claim.stands()
    clock.now = 110.0
    assert not claim.stands()
    claim.stood(110.0)
    assert claim.stands()


def test_an_older_answer_does_not_shorten_it(clock: Clock) -> None:
    claim = Claim(static=True, rebalance_timeout_ms=10_000, clock=clock)
    claim.stood(105.0)
    claim.stood(101.0)
    clock.now = 114.0
    assert claim.stands()
