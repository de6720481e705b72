"""A record that an event loop sends: whatever happens beside it, nothing is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.producer.aborts import Author, Call
from pyspark_kafka_rebalance.producer.options import ProducerOptions
from pyspark_kafka_rebalance.producer.ownership import SourceOwnership
from pyspark_kafka_rebalance.producer.transactions import Transactions


class Sent:
    is_done = False


class Producer:
    """What a record meets on its way is up to the test."""

    broken = False
    unanswered = False

    def __init__(self) -> None:
        self.meets: Callable[[], None] = lambda: None
        self.failed: BaseException | None = None
        self.sent = 0

    def knows(self, topic: str) -> bool:
        return topic == "rows"

    def send(self, topic: str, *_: Any) -> Sent:
        self.meets()
        self.sent += 1
        return Sent()

    def begin(self, group_id: str) -> None:
        pass

    def add(self, partitions: Any) -> None:
        pass

    def failure(self) -> BaseException | None:
        return self.failed

    def abort(self, timeout_s: float) -> bool:
        raise AssertionError("an event loop would wait here")


class Membership:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ownership = SourceOwnership(1)
        self.ownership.assigned([0])
        self.ownership.read(0, 1, None)
        self.ownership.turn()


@pytest.fixture
def producer() -> Producer:
    return Producer()


@pytest.fixture
def transactions(producer: Producer) -> Transactions:
    """With an open transaction that has a record of source partition 0."""
    options = ProducerOptions.checked("db1", 1, bootstrap_servers="127.0.0.1:1")
    made = Transactions(options)
    made.membership = Membership()  # type: ignore[assignment]
    made._current.now = producer  # type: ignore[assignment]
    made.send(0, None, "rows", b"first", None, None, None, None)
    return made


def at_once(transactions: Transactions, topic: str = "rows", source_partition: int = 0) -> Any:
    record = (topic, b"value", None, None, None, None)
    return transactions.send_at_once(transactions.call, source_partition, "a", *record)


def test_a_record_of_an_open_transaction(transactions: Transactions, producer: Producer) -> None:
    assert at_once(transactions) is not None
    assert producer.sent == 2
    assert transactions.boundaries.points() == {0: "a"}


def test_what_takes_a_broker_is_left_to_the_thread(
    transactions: Transactions, producer: Producer
) -> None:
    assert at_once(transactions, topic="not known yet") is None
    assert at_once(transactions, source_partition=1) is None
    transactions.membership.ownership.doom("lost")
    assert at_once(transactions) is None
    assert producer.sent == 1


def test_a_lock_that_is_held(transactions: Transactions) -> None:
    with transactions.lock:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(at_once(transactions)))
        other.start()
        other.join()
    assert found == [None]


def test_a_loss_between_the_look_and_the_record(
    transactions: Transactions, producer: Producer
) -> None:
    """The doomed transaction takes the record; the next call tells."""
    producer.meets = lambda: transactions.membership.ownership.doom("lost")
    assert at_once(transactions) is not None
    assert at_once(transactions) is None


def test_a_producer_that_has_failed_meanwhile(
    transactions: Transactions, producer: Producer
) -> None:
    def fail() -> None:
        raise kafka_errors.KafkaError("the producer has failed")

    producer.meets = fail
    with pytest.raises(kafka_errors.KafkaError):
        at_once(transactions)  # this record alone
    producer.failed = kafka_errors.ProducerFencedError()
    assert at_once(transactions) is None


def test_who_is_to_be_told_of_an_abort_is_told_by_the_thread(
    transactions: Transactions, producer: Producer
) -> None:
    transactions.aborts.aborted("fenced")
    assert at_once(transactions) is None
    transactions.call = Call(Author())
    assert at_once(transactions) is not None
