from __future__ import annotations

import re

import pytest

from pyspark_kafka_rebalance.consumer.membership.next_generation import (
    broker_pattern,
    matches_internal_topics,
)


@pytest.mark.parametrize(
    ("pattern", "matched", "not_matched"),
    [
        ("orders", "orders.eu", "my.orders"),
        ("orders|bills", "bills.eu", "x.bills"),
        (r"(?:orders|bills)\Z", "orders", "orders.eu"),
        (r"a\.b", "a.b.c", "axb"),
    ],
)
def test_broker_pattern(pattern: str, matched: str, not_matched: str) -> None:
    """Python's ``\\Z`` stands for RE2's ``\\z`` here; the rest is spelt alike in both."""
    whole = re.compile(broker_pattern(pattern).replace(r"\z", r"\Z"))
    assert r"\Z" not in broker_pattern(pattern)
    for name in (matched, not_matched):
        assert bool(whole.fullmatch(name)) == bool(re.match(pattern, name)) == (name == matched)


def test_an_escaped_backslash_before_a_z_stays() -> None:
    assert broker_pattern(r"a\\Z") == r"(?:a\\Z).*"


@pytest.mark.parametrize(
    ("pattern", "matched"),
    [
        (".*", True),
        (r"(?:.*)\Z", True),  # as the source anchors it
        ("orders|__cons", True),
        (r"(?:__consumer_offsets)\Z", True),
        ("[a-z].*", False),
        (r"(?:_[a-z]+)\Z", False),
        (r"(?:__new_[a-z]+)\Z", True),
    ],
)
def test_patterns_that_match_internal_topics(pattern: str, matched: bool) -> None:
    """Those that every Kafka has, and one that only the metadata name."""
    assert matches_internal_topics(pattern, {"__new_state"}) == matched
    assert matches_internal_topics(pattern, ()) == (matched and "new" not in pattern)
