"""Who has brokers create a missing topic: consumers that may (KIP-361), and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from group_members import members_of, parts_of, poll_until
from kafka import KafkaAdminClient
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, ProducerGroup
from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.fetch.fetcher import RangeFetcher
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.group.clients.query_members import build_clients
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.transport.secured_clients import admin_client


@pytest.fixture(scope="module")
def kafka() -> Iterator[LocalKafka]:
    """A broker as its defaults have it: it creates the topics that metadata requests name."""
    with LocalKafka(broker_config={"auto.create.topics.enable": True}) as broker:
        yield broker


@pytest.fixture
def existing(kafka: LocalKafka) -> Iterator[KafkaAdminClient]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    with closing(admin):
        yield admin


def asked(member: DeferredRevokeConsumer) -> None:
    """Poll until the member has got metadata once more: its requests name its topics by now."""
    metadata = parts_of(member).metadata
    for _ in range(2):
        before = metadata.renewed_ms
        metadata.refresh()
        poll_until(lambda before=before: metadata.renewed_ms != before, member)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_consumer_creates_its_topic_if_it_may_which_is_the_default(
    kafka, existing, topic_name, group_id, protocol
):
    with members_of(kafka, group_id, protocol, 6_000) as make:
        asked(make(topic_name, allow_auto_create_topics=False))
        assert topic_name not in existing.list_topics()
        member = make(topic_name)
        poll_until(lambda: topic_name in existing.list_topics(), member)


def test_partitions_assigned_by_hand_and_questions_create_nothing_if_not_allowed(
    kafka, existing, topic_name, group_id
):
    where = TopicPartition(topic_name, 0)
    consumer = DeferredRevokeConsumer(
        group_id=group_id,
        bootstrap_servers=kafka.bootstrap_servers,
        allow_auto_create_topics=False,
    )
    with closing(consumer):
        consumer.assign([where])
        asked(consumer)
        assert not consumer.partitions_for_topic(topic_name)
        with pytest.raises((kafka_errors.KafkaError, KafkaRebalanceError)):
            consumer.end_offsets([where], timeout_ms=500)
    assert topic_name not in existing.list_topics()


def test_a_query_and_what_it_asks_create_nothing(kafka, existing, topic_name, group_id):
    settings = {
        "kafka.bootstrap.servers": kafka.bootstrap_servers,
        "kafka.group.id": group_id,
        "kafka.allow.auto.create.topics": "true",
    }
    for by, wanted in {
        "subscribe": topic_name,
        "assign": f'{{"{topic_name}": [0]}}',
    }.items():
        options = SourceOptions.parse({**settings, by: wanted}, default_readers=1)
        with pytest.raises(KafkaRebalanceError, match="do not exist"):
            next(build_clients(options, group_id))
    config = {"bootstrap_servers": kafka.bootstrap_servers}
    with (
        closing(RangeFetcher(client_config=config, retry_timeout_ms=200)) as fetcher,
        pytest.raises(KafkaRebalanceError),
    ):
        list(fetcher.read([OffsetRange(topic_name, 0, 0, 1)]))
    with closing(admin_client(config)) as admin:
        admin._manager.cluster.add_topic(topic_name)
        admin._manager.run(admin._manager.cluster.refresh_metadata)
    assert topic_name not in existing.list_topics()


def test_a_producer_group_creates_the_topic_it_writes_to_if_it_may(
    kafka, existing, topic_name, group_id
):
    for allowed in (False, True):
        config = {"max_block_ms": 3_000, "allow_auto_create_topics": allowed}
        with ProducerGroup(
            f"{group_id}-{allowed}", 1, bootstrap_servers=kafka.bootstrap_servers, **config
        ) as group:
            group.subscribe()
            if allowed:
                group.send(topic_name, b"x", source_partition=0)
                group.commit_transaction({0: "1"})
                continue
            with pytest.raises((kafka_errors.KafkaError, KafkaRebalanceError)):
                group.send(topic_name, b"x", source_partition=0)
        assert topic_name not in existing.list_topics()
    assert topic_name in existing.list_topics()
