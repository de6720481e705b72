"""ProducerGroup: a request is sent again, and its first copy arrives in the next transaction.

Under transactions of the first kind (EndTxn v3, all that kafka-python speaks) the epoch stays from
one transaction to the next, so a broker cannot tell the copies apart.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from flaky_network import FlakyNetwork
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
)
from producer_groups import PATIENCE_S, MakeProducer, producers_of, read_committed

from pyspark_kafka_rebalance import ProducerGroup
from pyspark_kafka_rebalance.testing import LocalKafka

OF_A_TRANSACTION = (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    ProduceRequest,
    TxnOffsetCommitRequest,
    EndTxnRequest,
)


@pytest.fixture
def rows(kafka: LocalKafka, topic_name: str) -> str:
    kafka.create_topic(topic_name, 2)
    return topic_name


@pytest.fixture
def group(
    kafka: LocalKafka, group_id: str, protocol: str, network: FlakyNetwork
) -> Iterator[ProducerGroup]:
    """A member whose producer, and nothing else of it, sends through ``network``."""
    with producers_of(kafka, group_id, protocol, 25_000) as make:
        yield member_of(make, network)


def member_of(make: MakeProducer, network: FlakyNetwork) -> ProducerGroup:
    group = make()
    group._options.producer["proxy_url"] = network.url
    group.subscribe()
    return group


def epoch_of(group: ProducerGroup) -> tuple[int, int]:
    producer = group._transactions._current.now
    assert producer is not None
    now = producer._manager.producer_id_and_epoch
    return now.producer_id, now.epoch


@pytest.mark.parametrize("kind", OF_A_TRANSACTION)
def test_its_first_copy_arrives_in_the_next_transaction(
    kafka: LocalKafka, rows: str, group: ProducerGroup, network: FlakyNetwork, kind: type
) -> None:
    """A delayed EndTxn committed the half of the next transaction that it found."""
    delayed = network.delay(kind)
    group.send(rows, b"first", partition=0, source_partition=0)
    committing = threading.Thread(target=group.commit_transaction, args=[{0: "1"}])
    committing.start()
    assert delayed.is_sent.wait(PATIENCE_S)
    committing.join(PATIENCE_S)
    before = epoch_of(group)
    group.send(rows, b"half", partition=1, source_partition=0).get(timeout=PATIENCE_S)
    after = epoch_of(group)
    delayed.arrive()
    group.send(rows, b"whole", partition=1, source_partition=0)
    group.commit_transaction({0: "2"})
    assert read_committed(kafka, rows) == [b"first", b"half", b"whole"]
    assert after != before, "what was delayed was valid"


@pytest.mark.parametrize("kind", [ProduceRequest, EndTxnRequest])
def test_its_first_copy_arrives_after_the_transaction_was_aborted(
    kafka: LocalKafka, rows: str, group: ProducerGroup, network: FlakyNetwork, kind: type
) -> None:
    """A delayed EndTxn aborted the half of the next transaction that it found."""
    delayed = network.delay(kind)
    group.send(rows, b"never", partition=0, source_partition=0)
    aborting = threading.Thread(target=group.abort_transaction)
    if kind is EndTxnRequest:
        aborting.start()
    assert delayed.is_sent.wait(PATIENCE_S)
    if kind is not EndTxnRequest:
        aborting.start()
    aborting.join(PATIENCE_S)
    group.send(rows, b"half", partition=0, source_partition=0).get(timeout=PATIENCE_S)
    delayed.arrive()
    group.send(rows, b"whole", partition=1, source_partition=0)
    group.commit_transaction({0: "1"})
    assert read_committed(kafka, rows) == [b"half", b"whole"]


def test_an_answered_transaction_is_followed_under_the_same_epoch(
    rows: str, group: ProducerGroup
) -> None:
    """A new producer for each transaction would cost more than the transaction."""
    epochs = set()
    for n in range(3):
        group.send(rows, b"%d" % n, partition=0, source_partition=0)
        epochs.add(epoch_of(group))
        group.commit_transaction({0: str(n)})
    assert len(epochs) == 1
