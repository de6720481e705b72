"""What a member of the consumer protocol tells of its subscription."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from pyspark_kafka_rebalance.consumer.wanted_topics import Wanted, WantedTopics


@pytest.fixture
def io() -> SimpleNamespace:
    return SimpleNamespace(
        pattern=None,
        topics=frozenset(["b", "a"]),
        internal_topics=frozenset(["__consumer_offsets"]),
        api_version=lambda request: 1,
    )


def test_names_are_told_by_name(io: SimpleNamespace) -> None:
    wanted = WantedTopics(io, True)
    assert wanted.now() == Wanted(io.topics, None)
    assert wanted.fields(wanted.now()) == {
        "subscribed_topic_names": ["a", "b"],
        "subscribed_topic_regex": "",
    }


def test_what_is_told_is_known_until_it_changes(io: SimpleNamespace) -> None:
    wanted = WantedTopics(io, True)
    assert not wanted.is_told(wanted.now())
    wanted.told(wanted.now())
    assert wanted.is_told(wanted.now())
    io.topics = frozenset(["a"])
    assert not wanted.is_told(wanted.now())


def test_a_pattern_is_told_in_the_place_of_names(io: SimpleNamespace) -> None:
    io.pattern = "a|b"
    wanted = WantedTopics(io, True)
    told = wanted.now()
    assert told.topics == frozenset()
    assert told.pattern is not None
    assert wanted.fields(told)["subscribed_topic_regex"] == told.pattern


@pytest.mark.parametrize("why", ["old brokers", "internal topics", "refused"])
def test_where_the_broker_cannot_match_a_pattern_the_names_are_told(
    io: SimpleNamespace, why: str
) -> None:
    io.pattern = ".*" if why == "internal topics" else "a|b"
    if why == "old brokers":
        io.api_version = lambda request: 0
    wanted = WantedTopics(io, True)
    if why == "refused":
        assert wanted.now().pattern is not None
        assert wanted.match_here() == "a|b"
    assert wanted.now() == Wanted(io.topics, None)
    assert ("subscribed_topic_regex" in wanted.fields(wanted.now())) is (why != "old brokers")


def test_another_pattern_than_the_refused_is_told_again(io: SimpleNamespace) -> None:
    io.pattern = "a|b"
    wanted = WantedTopics(io, True)
    wanted.match_here()
    io.pattern = "a|c"
    assert wanted.now().pattern is not None
