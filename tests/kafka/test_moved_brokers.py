"""All brokers come back at other addresses, behind the same bootstrap name (KIP-899).

Java's client bootstraps again, by default since Kafka 4.0. Here the broker has two listeners: it
"moves" when a proxy leads the bootstrap name to the other one, and nobody answers at the first any
more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from flaky_network import FlakyNetwork
from group_members import losses, owns, poll_until, records, wait_until
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from producer_groups import read_committed

from pyspark_kafka_rebalance import DeferredRevokeConsumer, ProducerGroup
from pyspark_kafka_rebalance.fetch.fetcher import RangeFetcher
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.membership import QueryMembership
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transport.secured_clients import admin_client

pytestmark = pytest.mark.each_protocol

NAME = "brokers.test"


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """A broker with two addresses."""
    with LocalKafka(listeners={"MOVED": "PLAINTEXT"}) as broker:
        yield broker


class Brokers:
    """The way to the broker."""

    def __init__(self, kafka: LocalKafka, network: FlakyNetwork) -> None:
        self._network = network
        self._first, self._second = (
            int(servers.rpartition(":")[2])
            for servers in (kafka.bootstrap_servers, kafka.servers_of("MOVED"))
        )
        network.name(NAME, self._first)

    @property
    def config(self) -> dict[str, Any]:
        return {"bootstrap_servers": f"{NAME}:9092", "proxy_url": self._network.url}

    def move(self) -> None:
        self._network.name(NAME, self._second)
        self._network.leave(self._first)


@pytest.fixture
def brokers(kafka: LocalKafka, network: FlakyNetwork) -> Brokers:
    return Brokers(kafka, network)


def test_members_go_on_and_lose_nothing(kafka, topic_name, group_id, brokers, protocol):
    kafka.create_topic(topic_name, partitions=2)
    config = {**brokers.config, "group_id": group_id, "auto_offset_reset": "earliest"}
    with DeferredRevokeConsumer(topic_name, group_protocol=protocol, **config) as member:
        kafka.produce(topic_name, [b"x"] * 10)
        polled: dict[Any, list[Any]] = {}
        poll_until(owns(member, 2), member, results=polled)
        poll_until(lambda: len(records(polled[member])) == 10, member, results=polled)
        brokers.move()
        kafka.produce(topic_name, [b"x"] * 10)
        poll_until(lambda: len(records(polled[member])) == 20, member, results=polled)
        assert losses(member) == 0
        member.commit_processed(dict.fromkeys(member.assignment(), 10))
        assert member.drain(30_000)
        assert kafka.committed(group_id) == {TopicPartition(topic_name, n): 10 for n in range(2)}


def test_ranges_are_read_on(kafka, topic_name, brokers):
    """The executors' connections, which outlive the tasks."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    with closing(RangeFetcher(client_config=brokers.config, retry_timeout_ms=30_000)) as fetcher:

        def rows(start: int, end: int) -> int:
            found = fetcher.read([OffsetRange(topic_name, 0, start, end)])
            return sum(batch.num_rows for _, batch in found)

        assert rows(0, 5) == 5
        brokers.move()
        assert rows(5, 10) == 5


def test_admin_clients_go_on(kafka, topic_name, brokers):
    kafka.create_topic(topic_name)
    admin = admin_client(brokers.config)

    def listed() -> bool:
        try:
            return topic_name in admin.list_topics()
        except kafka_errors.RetriableError:  # in between
            return False

    try:
        assert listed()
        brokers.move()
        wait_until(listed, "the answer at the other address")
    finally:
        admin.close()


@pytest.mark.parametrize("by", ["subscribe", "assign"])
def test_a_planner_goes_on(kafka, topic_name, group_id, brokers, by):
    kafka.create_topic(topic_name)
    where = TopicPartition(topic_name, 0)
    wanted = topic_name if by == "subscribe" else f'{{"{topic_name}": [0]}}'
    settings = {
        "kafka.bootstrap.servers": brokers.config["bootstrap_servers"],
        "kafka.group.id": group_id,
        by: wanted,
    }
    options = SourceOptions.parse(settings, default_readers=1)
    options.client_config["proxy_url"] = brokers.config["proxy_url"]
    query = QueryMembership(options, group_id)
    try:
        query.start()
        query.join()
        wait_until(lambda: query.log_ends.end_offsets([where]) == {where: 0}, "its end")
        brokers.move()
        kafka.produce(topic_name, [b"x"])

        def told() -> bool:
            query.raise_failure()
            return query.log_ends.end_offsets([where]) == {where: 1}

        wait_until(told, "its end now")
        wait_until(lambda: where in query.plannable(), "it is owned")
    finally:
        query.stop()


def test_a_producer_group_goes_on(kafka, topic_name, group_id, brokers):
    kafka.create_topic(topic_name)
    with ProducerGroup(group_id, 1, session_timeout_ms=30_000, **brokers.config) as group:
        assert group.subscribe() == {0: None}
        for n, move in enumerate([False, True, False]):
            if move:
                brokers.move()
            group.send(topic_name, b"%d" % n, source_partition=0)
            group.commit_transaction({0: f"{n}"})
    assert read_committed(kafka, topic_name) == [b"0", b"1", b"2"]
