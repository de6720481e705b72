"""A record that an event loop sends: whatever happens beside it, nothing is waited for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from pyspark_kafka_rebalance import RecordTooLargeError, TransactionAbortedError
from pyspark_kafka_rebalance.producer.members.ownership import SourceOwnership
from pyspark_kafka_rebalance.producer.options import ProducerOptions
from pyspark_kafka_rebalance.producer.transactions import NOT_AT_ONCE, NOW, Handle, Transactions


class Transaction:
    """What a record meets on its way is up to the test."""

    def __init__(self) -> None:
        self.meets: Callable[[], None] = lambda: None
        self.sent = 0

    def send(self, topic: str, *_: Any, future: bool) -> None:
        self.meets()
        self.sent += 1


class KnownWriter:
    is_over = False

    def __init__(self) -> None:
        self.transaction = Transaction()

    def waits_for(self, topic: str) -> bool:
        return topic != "rows"

    def begin(self) -> Transaction:
        return self.transaction

    def announce(self, topic: str, numbers: Any, group_id: str) -> None:
        pass

    def abort(self, reason: str, timeout_s: float) -> None:
        raise AssertionError("an event loop would wait here")


class Membership:
    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.ownership = SourceOwnership(1)
        self.ownership.assigned([0])
        self.ownership.read(0, 1, None)
        self.ownership.turn()


@pytest.fixture
def writer() -> KnownWriter:
    return KnownWriter()


@pytest.fixture
def transactions(writer: KnownWriter) -> Transactions:
    """With an open transaction that has a record of source partition 0."""
    options = ProducerOptions.checked("db1", 1, bootstrap_servers="127.0.0.1:1")
    made = Transactions(options)
    made.membership = Membership()  # type: ignore[assignment]
    made._writer = writer  # type: ignore[assignment]
    made.send(None, 0, None, "rows", b"first", None, None, None, None)
    return made


def at_once(
    transactions: Transactions, topic: str = "rows", source_partition: int = 0, made: float = NOW
) -> Any:
    record = (topic, b"value", None, None, None, None)
    return transactions.send_at_once(None, made, source_partition, "a", *record)


def test_a_record_of_an_open_transaction(transactions: Transactions, writer: KnownWriter) -> None:
    assert at_once(transactions) is not NOT_AT_ONCE
    assert writer.transaction.sent == 2
    assert transactions.boundaries.points() == {0: "a"}


def test_what_takes_a_broker_is_left_to_the_thread(
    transactions: Transactions, writer: KnownWriter
) -> None:
    assert at_once(transactions, topic="not known yet") is NOT_AT_ONCE
    assert at_once(transactions, source_partition=1) is NOT_AT_ONCE
    transactions.membership.ownership.doom("lost")
    assert at_once(transactions) is NOT_AT_ONCE
    assert writer.transaction.sent == 1


def test_a_lock_that_is_held(transactions: Transactions) -> None:
    with transactions.lock:
        found: list[Any] = []
        other = threading.Thread(target=lambda: found.append(at_once(transactions)))
        other.start()
        other.join()
    assert found == [NOT_AT_ONCE]


def test_a_loss_between_the_look_and_the_record(
    transactions: Transactions, writer: KnownWriter
) -> None:
    """The doomed transaction takes the record; the next call tells."""
    writer.transaction.meets = lambda: transactions.membership.ownership.doom("lost")
    assert at_once(transactions) is not NOT_AT_ONCE
    assert at_once(transactions) is NOT_AT_ONCE


def test_a_record_that_is_refused(transactions: Transactions, writer: KnownWriter) -> None:
    def refuse() -> None:
        raise RecordTooLargeError("rows", 0, 2, 1)

    writer.transaction.meets = refuse
    with pytest.raises(RecordTooLargeError):
        at_once(transactions)  # this record alone


def test_a_transaction_that_has_ended_meanwhile(
    transactions: Transactions, writer: KnownWriter
) -> None:
    def fail() -> None:
        raise TransactionAbortedError("fenced", {})

    writer.transaction.meets = fail
    assert at_once(transactions) is NOT_AT_ONCE


def test_who_is_to_be_told_of_an_abort_is_told_by_the_thread(
    transactions: Transactions, writer: KnownWriter
) -> None:
    transactions.tell_again("fenced")
    assert at_once(transactions) is NOT_AT_ONCE
    assert writer.transaction.sent == 1


def test_a_call_that_was_made_before_its_user_was_told(transactions: Transactions) -> None:
    before = transactions.tellings
    transactions.tellings += 1
    assert at_once(transactions, made=before) is NOT_AT_ONCE
    assert at_once(transactions, made=before + 1) is not NOT_AT_ONCE


def test_a_handle_takes_its_own_records_alone(transactions: Transactions) -> None:
    other = Handle()
    record = ("rows", b"value", None, None, None, None)
    assert transactions.send_at_once(other, NOW, 0, "a", *record) is NOT_AT_ONCE
    transactions._handle = other
    assert transactions.send_at_once(other, NOW, 0, "a", *record) is not NOT_AT_ONCE
    assert at_once(transactions) is NOT_AT_ONCE
