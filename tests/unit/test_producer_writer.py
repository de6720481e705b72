"""Writer: which producer the next transaction begins with, and what a commit without answer is."""

from __future__ import annotations

import time
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import (
    KafkaRebalanceError,
    TransactionAbortedError,
    TransactionInDoubtError,
)
from pyspark_kafka_rebalance.produce.producer import GroupMetadata, Offset
from pyspark_kafka_rebalance.produce.transaction_errors import Outcome
from pyspark_kafka_rebalance.producer import writer as module
from pyspark_kafka_rebalance.producer.writer import Writer

MEMBER = GroupMetadata("g", 3, "m")
OFFSETS = {TopicPartition("points", 0): Offset(7, "g/one")}


class Transaction:
    """What comes of it is up to the test."""

    def __init__(self) -> None:
        self.outcome: Outcome | None = None
        self.commits: list[BaseException | None] = [None]
        self.aborts: list[BaseException | None] = [None]
        self.calls: list[str] = []
        self.refuses: Exception | None = None

    def send_offsets(self, group: GroupMetadata, offsets: Any, member: Any) -> None:
        self.calls.append(f"offsets of generation {group.generation_id}")
        if self.refuses is not None:
            raise self.refuses

    def flush(self, timeout_ms: float) -> None:
        self.calls.append("flush")

    def commit(self, timeout_ms: float) -> None:
        self.calls.append("commit")
        if (error := self.commits.pop(0)) is not None:
            raise error

    def abort(self, reason: str, timeout_ms: float) -> None:
        self.calls.append("abort")
        if (error := self.aborts.pop(0)) is not None:
            raise error


class Producer:
    made: list[Producer]
    is_refused = has_failed = closed = False
    ends: float | None = None
    interrupts: BaseException | None = None
    closes_with: Exception | None = None
    refuses: Exception | None = None

    def __init__(self, **config: Any) -> None:
        self.initialized = 0
        self.now = Transaction()
        Producer.made.append(self)

    def initialize(self, timeout_ms: float | None = None) -> None:
        self.initialized += 1
        self.is_refused = False
        if self.refuses is not None:
            raise self.refuses

    def transaction(self) -> Transaction:
        if self.interrupts is not None:
            raise self.interrupts
        return self.now

    def end_by(self, when: float) -> None:
        self.ends = when

    def close(self, timeout_ms: float = 0) -> None:
        self.closed = True
        if self.closes_with is not None:
            raise self.closes_with

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    Producer.made = []
    monkeypatch.setattr(module, "Producer", Producer)
    return Writer({"transaction_timeout_ms": 1_000}, lambda: MEMBER)


def test_one_that_can_send_nothing_any_more_begins_no_transaction(writer: Writer) -> None:
    writer.connect()
    writer.begin()
    (first,) = Producer.made
    assert first.initialized == 1
    first.has_failed = True
    writer.begin()
    assert len(Producer.made) == 2
    assert first.closed
    writer.begin()
    assert len(Producer.made) == 2


class InterruptedByASignalError(BaseException):
    pass


def test_one_that_a_signal_has_interrupted_begins_no_transaction(writer: Writer) -> None:
    """It had begun one that nobody knew of, and refused each later one for ever."""
    writer.connect()
    (first,) = Producer.made
    first.interrupts = InterruptedByASignalError()
    with pytest.raises(InterruptedByASignalError):
        writer.begin()
    assert writer.transaction is None
    writer.begin()
    _, second = Producer.made
    assert first.closed
    writer.tear()
    second.now.aborts = [KeyError("a state that it was left in")]
    writer.abort("interrupted", 1)
    assert not second.closed, "a commit of it may still be answered"
    second.closes_with = KeyError("a state that it was left in")
    writer.begin()
    assert len(Producer.made) == 3
    writer.begin()
    assert len(Producer.made) == 3


def test_another_one_ends_what_a_torn_one_left_open(writer: Writer) -> None:
    """Readers would wait for it until its timeout."""
    writer.begin()
    (torn,) = Producer.made
    writer.tear()
    torn.now.aborts = [KafkaRebalanceError("interrupted")]
    writer.abort("closed", 1)
    torn.closes_with = KeyError("a state that it was left in")
    with pytest.raises(KeyError):
        writer.close(time.monotonic() + 60)
    _, other = Producer.made
    assert (other.initialized, other.closed) == (1, True)


def test_none_is_needed_for_what_is_decided(writer: Writer) -> None:
    writer.begin()
    writer.commit(OFFSETS)
    writer.begin()
    writer.abort("closed", 1)
    (torn,) = Producer.made
    writer.tear()
    torn.has_failed = True
    writer.close(time.monotonic() + 60)
    assert Producer.made == [torn]


def test_one_that_is_not_let_in_at_the_end_is_no_error(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer.begin()
    writer.tear()
    monkeypatch.setattr(Producer, "refuses", kafka_errors.KafkaTimeoutError("no broker"))
    writer.close(time.monotonic() + 60)
    assert "the open transaction ends with its timeout" in caplog.text


def test_one_that_is_fenced_takes_its_id_back_before_the_next_transaction(writer: Writer) -> None:
    writer.begin()
    (first,) = Producer.made
    first.is_refused = True
    writer.begin()
    assert first.initialized == 1
    assert len(Producer.made) == 1


def test_no_producer_is_made_at_the_end(writer: Writer) -> None:
    writer.end_by(time.monotonic() + 10)
    with pytest.raises(kafka_errors.IllegalStateError, match="being closed"):
        writer.begin()
    assert Producer.made == []


def test_offsets_go_in_the_name_of_the_member_as_it_is(writer: Writer) -> None:
    transaction: Any = writer.begin()
    writer.commit(OFFSETS)
    assert transaction.calls == ["offsets of generation 3", "commit"]
    assert writer.transaction is None


def test_nothing_is_committed_for_a_member_that_is_lost(writer: Writer) -> None:
    writer._member = lambda: None
    transaction: Any = writer.begin()
    with pytest.raises(TransactionAbortedError, match="out of the group"):
        writer.commit(OFFSETS)
    assert transaction.calls == []


def test_who_has_the_last_word_before_the_end_is_asked_when_all_is_accepted(writer: Writer) -> None:
    class RefusedError(KafkaRebalanceError):
        pass

    def refuse() -> None:
        assert transaction.calls[-1] == "flush"
        raise RefusedError

    transaction: Any = writer.begin()
    with pytest.raises(RefusedError):
        writer.commit(OFFSETS, refuse)
    assert "commit" not in transaction.calls


late = kafka_errors.KafkaTimeoutError("the end of transaction 1: not after 1 s")


@pytest.mark.parametrize(
    ("abort", "outcome", "expected"),
    [
        (None, Outcome.ABORTED, TransactionAbortedError),
        (kafka_errors.KafkaTimeoutError("not yet"), None, TransactionAbortedError),
        (RuntimeError("the commit was sent"), None, TransactionInDoubtError),
        (None, Outcome.NOT_KNOWABLE, TransactionInDoubtError),
        (None, Outcome.COMMITTED, None),  # its answer came just now
    ],
)
def test_a_commit_without_an_answer(
    writer: Writer,
    abort: BaseException | None,
    outcome: Outcome | None,
    expected: type[Exception] | None,
) -> None:
    """What was not sent is aborted; what was sent may be committed."""
    transaction: Any = writer.begin()
    transaction.commits, transaction.aborts = [late], [abort]
    transaction.outcome = outcome
    if expected is None:
        writer.commit(OFFSETS)
    else:
        with pytest.raises(expected, match="the end of transaction 1"):
            writer.commit(OFFSETS)


def test_a_commit_of_a_producer_that_fails_may_be_committed(writer: Writer) -> None:
    transaction: Any = writer.begin()
    transaction.commits = [KafkaRebalanceError("the I/O thread has ended")]
    with pytest.raises(TransactionInDoubtError):
        writer.commit(OFFSETS)


def test_what_fails_before_the_commit_is_sent_is_not_committed(writer: Writer) -> None:
    transaction: Any = writer.begin()
    transaction.refuses = KafkaRebalanceError("the I/O thread has ended")
    with pytest.raises(TransactionAbortedError, match="the I/O thread"):
        writer.commit(OFFSETS)
    assert "commit" not in transaction.calls


def test_an_abort_that_takes_longer_goes_on_in_the_background(writer: Writer) -> None:
    for error in (kafka_errors.KafkaTimeoutError(), TransactionAbortedError("ended", {}), None):
        transaction: Any = writer.begin()
        transaction.aborts = [error]
        writer.abort("doomed", 10.0)
        assert transaction.calls == ["abort"]
        assert writer.transaction is None
        transaction.calls.clear()
