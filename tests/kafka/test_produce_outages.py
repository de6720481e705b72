"""`Producer` while its cluster is away, forgets it, or cannot write."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

import pytest
from kafka.errors import KafkaTimeoutError
from producer_groups import read_committed
from written import ENDS_SOON, PATIENCE_MS, PATIENCE_S, VERSIONS, producer_of

from pyspark_kafka_rebalance import TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.testing import LocalKafka

EXPIRATION_S = 1.0


@pytest.fixture(scope="module", params=VERSIONS)
def forgetful(request: pytest.FixtureRequest) -> Iterator[LocalKafka]:
    """A broker that forgets a transactional id after a second of silence."""
    config = {
        **ENDS_SOON,
        "transactional.id.expiration.ms": int(EXPIRATION_S * 1000),
        "transaction.remove.expired.transaction.cleanup.interval.ms": 200,
    }
    features = {"transaction.version": VERSIONS[request.param]}
    with LocalKafka(features=features, broker_config=config) as local:
        yield local


def write(producer: Producer, topic: str, value: bytes) -> None:
    """In a transaction; repeated if it is aborted, as an application would."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        assert time.monotonic() < deadline
        try:
            with producer.transaction() as one:
                one.send(topic, value, partition=0)
            return
        except TransactionAbortedError:
            time.sleep(0.1)


def test_silence_until_the_id_is_forgotten(forgetful: LocalKafka, topic_name: str) -> None:
    """Report 14: INVALID_PRODUCER_ID_MAPPING, for ever."""
    forgetful.create_topic(topic_name)
    with producer_of(forgetful, topic_name) as producer:
        for n in range(3):
            write(producer, topic_name, b"%d" % n)
            time.sleep(EXPIRATION_S + 2)
        write(producer, topic_name, b"3")
    assert read_committed(forgetful, topic_name) == [b"%d" % n for n in range(4)]


def test_the_coordinator_is_away_for_twice_the_timeout(
    forgetful: LocalKafka, topic_name: str
) -> None:
    """Report 18: commit timeout, then fenced for ever."""
    forgetful.create_topic(topic_name)
    timeout_ms = 2_000
    with producer_of(
        forgetful, topic_name, transaction_timeout_ms=timeout_ms, request_timeout_ms=1_000
    ) as producer:
        write(producer, topic_name, b"before")
        one = producer.transaction()
        one.send(topic_name, b"during", partition=0)
        one.flush(PATIENCE_MS)
        forgetful.suspend()
        errors: list[Exception] = []

        def commit() -> None:
            try:
                one.commit(PATIENCE_MS)
            except TransactionAbortedError as error:
                errors.append(error)

        committing = threading.Thread(target=commit)
        committing.start()
        time.sleep(2 * timeout_ms / 1000)
        forgetful.resume()
        committing.join(PATIENCE_S)
        assert not committing.is_alive()
        if errors:  # its owner knows that nobody else has the id
            try:
                write_again = producer.transaction()
            except TransactionAbortedError:
                producer.initialize()
                write_again = producer.transaction()
            write_again.send(topic_name, b"during", partition=0)
            write_again.commit(PATIENCE_MS)
        write(producer, topic_name, b"after")
    assert read_committed(forgetful, topic_name) == [b"before", b"during", b"after"]


@pytest.fixture(scope="module")
def v1() -> Iterator[LocalKafka]:
    with LocalKafka(3, features={"transaction.version": 0}, broker_config=ENDS_SOON) as brokers:
        yield brokers


@pytest.fixture(params=["v2", pytest.param("v1", marks=pytest.mark.long)])
def three(request: pytest.FixtureRequest) -> LocalKafka:
    """Three brokers, all of which run."""
    brokers: LocalKafka = request.getfixturevalue("quorum" if request.param == "v2" else "v1")
    return brokers


@pytest.mark.parametrize("away_s", [8, pytest.param(61, marks=pytest.mark.long)])
def test_too_few_replicas_for_a_while(three: LocalKafka, topic_name: str, away_s: float) -> None:
    three.create_topic(topic_name, config={"min.insync.replicas": 3})
    patience_ms = PATIENCE_MS + away_s * 1_000
    timeout_ms = 4 * PATIENCE_MS  # a minute is the default, at which the coordinator aborts
    with (
        producer_of(three, delivery_timeout_ms=timeout_ms) as plain,
        producer_of(
            three, topic_name, delivery_timeout_ms=timeout_ms, transaction_timeout_ms=timeout_ms
        ) as producer,
    ):
        write(producer, topic_name, b"0")
        plain.send(topic_name, b"1")
        plain.flush(PATIENCE_MS)
        three.kill(3)
        one = producer.transaction()
        one.send(topic_name, b"2")
        plain.send(topic_name, b"3")
        waiting = [
            threading.Thread(target=flush, args=[patience_ms]) for flush in (plain.flush, one.flush)
        ]
        for thread in waiting:
            thread.start()
        time.sleep(away_s)
        assert all(thread.is_alive() for thread in waiting)
        three.restart(3)
        for thread in waiting:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        one.commit(PATIENCE_MS)
        write(producer, topic_name, b"4")
    found = read_committed(three, topic_name)
    assert sorted(found) == [b"0", b"1", b"2", b"3", b"4"]
    assert (found[:2], found[-1]) == ([b"0", b"1"], b"4")


def test_too_few_replicas_for_longer_than_the_timeout(three: LocalKafka, topic_name: str) -> None:
    """The coordinator aborts the transaction; repeated, it is written once."""
    three.create_topic(topic_name, config={"min.insync.replicas": 3})
    with producer_of(three, topic_name, transaction_timeout_ms=1_000) as producer:
        write(producer, topic_name, b"0")
        three.kill(3)
        late = producer.transaction()
        late.send(topic_name, b"1")
        with pytest.raises((TransactionAbortedError, KafkaTimeoutError)):
            late.flush(10_000)
        three.restart(3)
        with contextlib.suppress(TransactionAbortedError):
            late.abort(timeout_ms=PATIENCE_MS)
        if producer.is_refused:  # its owner knows that nobody else has the id
            producer.initialize(PATIENCE_MS)
        write(producer, topic_name, b"1")
        write(producer, topic_name, b"2")
    assert read_committed(three, topic_name) == [b"0", b"1", b"2"]
