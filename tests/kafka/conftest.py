"""Fixtures of the tests of group membership: members, three brokers, a network that breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest
from flaky_network import FlakyNetwork
from gaps_and_live import Commit, commit_foreign
from group_members import PROTOCOLS, MakeMember, elected_preferred, members_of, wait_until
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.source.group.batch_state import Gaps
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.source.offsets.query_identity import QueryIdentity
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.testing import LocalKafka

# An assertion in there says what it found, as in a test.
pytest.register_assert_rewrite("verifiable_group")


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Both protocols, one after the other; parametrize it (indirect) where only one applies."""
    name: str = request.param
    return name


@pytest.fixture
def session_timeout_ms() -> int:
    """Of the members that ``consumers`` makes; parametrize it for another."""
    return 6_000


@pytest.fixture
def consumers(
    kafka: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeMember]:
    """Make members of one group; closed at the end."""
    with members_of(kafka, group_id, protocol, session_timeout_ms) as make:
        yield make


@pytest.fixture
def topic(kafka: LocalKafka, topic_name: str) -> str:
    """A topic of one partition."""
    kafka.create_topic(topic_name)
    return topic_name


@pytest.fixture
def committed_at(kafka: LocalKafka, topic: str, group_id: str) -> Commit:
    """Have a foreign client, which knows no gaps, commit where the group is."""

    def commit(offset: int, partition: int = 0) -> TopicPartition:
        where = TopicPartition(topic, partition)
        commit_foreign(kafka, group_id, {where: offset})
        return where

    return commit


@pytest.fixture
def quorum(kafka3: LocalKafka) -> Iterator[LocalKafka]:
    """Three brokers; before and afterwards all run, and coordinate what they preferably do."""
    # Tests of another file may have left another broker with a group: no election brings it back.
    kafka3.committed("nobody")  # whoever asks first has `__consumer_offsets` created
    wait_until(lambda: elected_preferred(kafka3), "the preferred leaders")
    yield kafka3
    for broker_id in set(kafka3.broker_ids) - set(kafka3.running):
        kafka3.restart(broker_id)
    wait_until(lambda: elected_preferred(kafka3), "the preferred leaders")


@pytest.fixture
def quorum_members(
    quorum: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeMember]:
    with members_of(quorum, group_id, protocol, session_timeout_ms) as make:
        yield make


@pytest.fixture
def network() -> Iterator[FlakyNetwork]:
    """A way to the brokers that can be stalled and cut."""
    with FlakyNetwork() as flaky:
        yield flaky


@pytest.fixture
def query_of(kafka: LocalKafka, group_id: str) -> Iterator[Callable[..., QueryMembership]]:
    """Make the members of queries; stopped at the end."""
    made: list[QueryMembership] = []

    def make(
        restored: Mapping[TopicPartition, int] | None = None,
        run: str = group_id,
        identity: QueryIdentity | None = None,
        gaps: Gaps | None = None,
        followed: Mapping[TopicPartition, str] | None = None,
        **options: str,
    ) -> QueryMembership:
        settings = {
            "kafka.bootstrap.servers": kafka.bootstrap_servers,
            "kafka.group.id": group_id,
            "startingOffsets": "earliest",
            "includeRebalanceEvents": "false",
            **{name.replace("__", "."): value for name, value in options.items()},
        }
        parsed = SourceOptions.parse(settings, default_readers=2)
        query = QueryMembership(parsed, run, identity)
        made.append(query)
        query.start()
        if restored is not None:
            query.follow(followed or {})
            query.restore(restored, gaps=gaps)
        query.join()
        return query

    yield make
    for query in made:
        query.stop()
