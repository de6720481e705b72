"""What a member of the consumer protocol tells of its subscription."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyspark_kafka_rebalance.consumer.membership.next_generation import Wanted, WantedTopics


@pytest.fixture
def subscription() -> SimpleNamespace:
    return SimpleNamespace(pattern=None, topics=frozenset(["b", "a"]))


def wanted_by(subscription: SimpleNamespace, version: int = 1) -> WantedTopics:
    loop = SimpleNamespace(api_version=lambda request: version)
    metadata = SimpleNamespace(internal_topics=frozenset(["__consumer_offsets"]))
    return WantedTopics(loop, metadata, subscription, True)  # type: ignore[arg-type]


def test_names_are_told_by_name(subscription: SimpleNamespace) -> None:
    wanted = wanted_by(subscription)
    assert wanted.now() == Wanted(subscription.topics, None)
    assert wanted.fields(wanted.now()) == {
        "subscribed_topic_names": ["a", "b"],
        "subscribed_topic_regex": "",
    }


def test_what_is_told_is_known_until_it_changes(subscription: SimpleNamespace) -> None:
    wanted = wanted_by(subscription)
    assert not wanted.is_told(wanted.now())
    wanted.told(wanted.now())
    assert wanted.is_told(wanted.now())
    subscription.topics = frozenset(["a"])
    assert not wanted.is_told(wanted.now())


def test_a_pattern_is_told_in_the_place_of_names(subscription: SimpleNamespace) -> None:
    subscription.pattern = "a|b"
    wanted = wanted_by(subscription)
    told = wanted.now()
    assert told.topics == frozenset()
    assert told.pattern is not None
    assert wanted.fields(told)["subscribed_topic_regex"] == told.pattern


@pytest.mark.parametrize("why", ["old brokers", "internal topics", "refused"])
def test_where_the_broker_cannot_match_a_pattern_the_names_are_told(
    subscription: SimpleNamespace, why: str
) -> None:
    subscription.pattern = ".*" if why == "internal topics" else "a|b"
    wanted = wanted_by(subscription, version=0 if why == "old brokers" else 1)
    if why == "refused":
        assert wanted.now().pattern is not None
        assert wanted.match_here() == "a|b"
    assert wanted.now() == Wanted(subscription.topics, None)
    assert ("subscribed_topic_regex" in wanted.fields(wanted.now())) is (why != "old brokers")


def test_another_pattern_than_the_refused_is_told_again(subscription: SimpleNamespace) -> None:
    subscription.pattern = "a|b"
    wanted = wanted_by(subscription)
    wanted.match_here()
    subscription.pattern = "a|c"
    assert wanted.now().pattern is not None
