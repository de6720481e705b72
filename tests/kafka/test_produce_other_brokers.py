"""`Producer` on older brokers, and on brokers that want logins and permissions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition
from producer_groups import read_committed
from written import PATIENCE_MS, PATIENCE_S, committed, member_of, metadata_of, producer_of

from pyspark_kafka_rebalance import (
    AuthenticationError,
    AuthorizationError,
    TransactionAbortedError,
    UnsupportedBrokerError,
)
from pyspark_kafka_rebalance.produce.producer import Offset, Producer
from pyspark_kafka_rebalance.settings.client_settings import map_client_settings
from pyspark_kafka_rebalance.testing import LocalKafka, SecuredKafka


@pytest.fixture(
    scope="module",
    params=["3.2.3", *(pytest.param(v, marks=pytest.mark.long) for v in ("2.5.1", "2.8.2"))],
)
def older(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    with LocalKafka(version=request.param) as local:
        yield local


def test_older_brokers(older: LocalKafka, topic_name: str, group_id: str) -> None:
    older.create_topic(topic_name)
    where = TopicPartition(topic_name, 0)
    with (
        member_of(older, group_id, topic_name) as member,
        producer_of(older, topic_name) as producer,
    ):
        assert producer.versions.transaction_version == 1
        with producer.transaction() as one:
            one.send(topic_name, b"a")
            one.send_offsets(metadata_of(member), {where: Offset(1)})
        lost = producer.transaction()
        lost.send(topic_name, b"never")
        lost.flush(PATIENCE_MS)
        lost.abort()
        with producer.transaction() as one:
            one.send(topic_name, b"b")
    assert committed(older, group_id, where) == 1
    with producer_of(older) as plain:
        plain.send(topic_name, b"c")
    assert read_committed(older, topic_name) == [b"a", b"b", b"c"]


def test_brokers_that_are_too_old() -> None:
    with (
        LocalKafka(version="2.3.1") as local,
        pytest.raises(UnsupportedBrokerError, match=r"Kafka 2\.5"),
    ):
        producer_of(local)


# Permissions.


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    with SecuredKafka(tmp_path_factory.mktemp("secured"), users={"etl": "etl-pass=word"}) as local:
        yield local


def secured_producer(kafka: SecuredKafka, name: str | None = None, **config: object) -> Producer:
    client = dict(map_client_settings(kafka.login("PLAIN", "etl")).client)
    return Producer(name, **{**client, **config})


def test_a_login(secured: SecuredKafka, topic_name: str) -> None:
    secured.create_topic(topic_name)
    with secured_producer(secured, topic_name) as producer, producer.transaction() as one:
        one.send(topic_name, b"a")
    assert read_committed(secured, topic_name) == [b"a"]


def test_a_wrong_password(secured: SecuredKafka) -> None:
    with pytest.raises(AuthenticationError):
        secured_producer(secured, sasl_plain_password="wrong")


def test_no_permission_for_the_transactional_id(secured: SecuredKafka, topic_name: str) -> None:
    secured.allow("User:somebody", "WRITE", "TRANSACTIONAL_ID", topic_name)
    with (
        secured_producer(secured, topic_name) as producer,
        pytest.raises(AuthorizationError, match=f"transactional id {topic_name}"),
    ):
        producer.transaction()


def test_no_permission_to_see_the_topic(secured: SecuredKafka, topic_name: str) -> None:
    secured.create_topic(topic_name)
    secured.allow("User:somebody", "WRITE", "TOPIC", topic_name)
    # The broker may describe it until it has heard of the permission.
    refused = (AuthorizationError, kafka_errors.TopicAuthorizationFailedError)
    with secured_producer(secured) as plain, pytest.raises(refused, match=topic_name):  # noqa: PT012
        plain.send(topic_name, b"a")
        plain.flush(PATIENCE_MS)


def test_no_permission_to_write(secured: SecuredKafka, topic_name: str) -> None:
    secured.create_topic(topic_name)
    secured.allow("User:etl", "DESCRIBE", "TOPIC", topic_name)
    with secured_producer(secured) as plain:
        refused = plain.send(topic_name, b"a", future=True)
        assert refused is not None
        with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
            refused.result(PATIENCE_S)
        with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
            plain.flush(PATIENCE_MS)
    with secured_producer(secured, f"{topic_name}-id") as producer:
        one = producer.transaction()
        one.send(topic_name, b"a")
        with pytest.raises(
            TransactionAbortedError,
            match=rf"TOPIC_AUTHORIZATION_FAILED \(it needs WRITE on topic {topic_name}\)",
        ):
            one.commit(PATIENCE_MS)
