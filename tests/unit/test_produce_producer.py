"""`Producer` with its threads, on the model of the brokers."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from in_memory_connections import InMemoryConnections, in_memory
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError, TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.produce.requests import EndTxn, Produce, Request
from pyspark_kafka_rebalance.produce.transaction_errors import Outcome

PATIENCE_S = 60


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def made(request: pytest.FixtureRequest) -> Iterator[tuple[Producer, InMemoryConnections]]:
    with in_memory(request.param, linger_ms=1) as pair:
        yield pair


def visible(connections: InMemoryConnections, partition: int = 0) -> list[Any]:
    return connections.brokers.leader(TopicPartition("t", partition)).visible()


def test_transactions(made: tuple[Producer, InMemoryConnections]) -> None:
    producer, connections = made
    with producer.transaction() as one:
        future = one.send("t", b"a", partition=0, future=True)
        one.send_batch("t", pa.table({"value": [b"b", b"c"], "partition": [0, 1]}))
    assert future is not None
    assert future.result(PATIENCE_S) == ("t", 0, 0)
    with pytest.raises(KeyError), producer.transaction() as lost:  # noqa: PT012
        lost.send("t", b"never", partition=0)
        raise KeyError
    assert lost.outcome is Outcome.ABORTED
    with producer.transaction() as two:
        two.send("t", b"d", partition=0)
    assert visible(connections) == [b"a", b"b", b"d"]
    assert visible(connections, 1) == [b"c"]


def test_what_is_lost_is_repeated(made: tuple[Producer, InMemoryConnections]) -> None:
    producer, connections = made
    fates = iter(["on the way", "on the way back", ""] * 100)

    def lose(request: Request) -> str:
        return next(fates) if isinstance(request, (Produce, EndTxn)) else ""

    connections.lose = lose
    for n in range(5):
        with producer.transaction() as one:
            one.send("t", b"%d" % n, partition=0)
    assert visible(connections) == [b"%d" % n for n in range(5)]


def test_timers_do_not_add_up(made: tuple[Producer, InMemoryConnections]) -> None:
    """Each that had fired left one behind for the next metadata, minutes later."""
    producer, connections = made
    with producer.transaction() as one:
        for n in range(50):
            future = one.send("t", b"%d" % n, partition=0, future=True)
            assert future is not None
            future.result(PATIENCE_S)
        assert connections.waiting < 10


def test_several_threads_send(made: tuple[Producer, InMemoryConnections]) -> None:
    """Records and rows; each thread's in its order."""
    producer, connections = made
    errors: list[BaseException] = []
    with producer.transaction() as one:

        def send(who: int) -> None:
            try:
                for n in range(100):
                    value = b"%d:%d" % (who, n)
                    if who % 2 and n % 5:
                        table = pa.table({"value": [value], "partition": [0]})
                        one.send_batch("t", table)
                    else:
                        one.send("t", value, partition=0)
                one.flush()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=send, args=[who]) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert errors == []
    found = [tuple(map(int, value.split(b":"))) for value in visible(connections)]
    assert len(found) == 400
    for who in range(4):
        assert [n for each, n in found if each == who] == list(range(100))


def test_rows_are_refused_once_their_transaction_has_ended(
    made: tuple[Producer, InMemoryConnections],
) -> None:
    producer, connections = made
    one = producer.transaction()
    one.abort()
    for call in (
        lambda: one.send("t", b"x"),
        lambda: one.send_batch("t", pa.table({"value": [b"x"]})),
        one.flush,
        one.commit,
        one.abort,
    ):
        with pytest.raises(TransactionAbortedError):
            call()
    with producer.transaction() as two:
        two.send("t", b"y", partition=0)
    assert visible(connections) == [b"y"]


def test_memory_is_bounded() -> None:
    with in_memory(2, buffer_memory=5_000, batch_size=1_000) as (producer, connections):
        with producer.transaction() as warm:
            warm.send("t", b"x", partition=0)
        connections.lose = lambda request: "on the way" if isinstance(request, Produce) else ""
        one = producer.transaction()
        sent = 0

        def send() -> None:
            nonlocal sent
            for n in range(100):
                one.send("t", b"%03d" % n + b"x" * 97, partition=0)
                sent += 1

        sending = threading.Thread(target=send)
        sending.start()
        sending.join(1)
        assert sending.is_alive()
        assert 30 < sent < 50
        assert producer._delivery.used < 5_200
        connections.lose = lambda request: ""
        sending.join(PATIENCE_S)
        one.commit()
        assert sent == 100
        values = visible(connections)[1:]
        assert values == sorted(values)
        assert len(values) == 100
        assert producer._delivery.used == 0


def test_a_topic_that_is_created_later() -> None:
    with in_memory(2) as (producer, connections), producer.transaction() as one:
        threading.Timer(0.5, lambda: connections.partitions.update(late=1)).start()
        one.send("late", b"a")
        assert 2 < connections.metadata_requests < 30


def test_a_topic_that_is_never_there() -> None:
    with in_memory(2, max_block_ms=300) as (producer, connections):
        one = producer.transaction()
        with pytest.raises(kafka_errors.KafkaTimeoutError, match="metadata of topic never"):
            one.send("never", b"a")
        time.sleep(0.3)
        asked = connections.metadata_requests
        time.sleep(0.5)
        assert connections.metadata_requests == asked, "nobody waits for it"
        one.abort()


def test_a_commit_waits_no_longer_than_it_is_told() -> None:
    with in_memory(2) as (producer, connections):
        one = producer.transaction()
        one.send("t", b"a", partition=0)
        connections.lose = lambda request: "on the way" if isinstance(request, EndTxn) else ""
        with pytest.raises(kafka_errors.KafkaTimeoutError, match="the end of transaction 1"):
            one.commit(timeout_ms=200)
        with pytest.raises(TransactionAbortedError, match=r"has ended|being committed"):
            one.send("t", b"late")
        connections.lose = lambda request: ""
        one.commit()
        assert one.outcome is Outcome.COMMITTED
        assert visible(connections) == [b"a"]


def test_an_error_that_nobody_expects_ends_the_producer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with in_memory(2) as (producer, _):
        one = producer.transaction()
        one.send("t", b"a", partition=0)
        one.flush()

        def fail(now: float) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(producer._delivery, "close_lingering", fail)
        one.send("t", b"b", partition=0)
        with pytest.raises(KafkaRebalanceError, match="ZeroDivisionError"):
            one.commit()
        with pytest.raises(KafkaRebalanceError, match="ZeroDivisionError"):
            one.send("t", b"c")
    assert "a producer cannot go on" in caplog.text


def test_a_closed_producer_says_so() -> None:
    with in_memory(2) as (producer, connections):
        one = producer.transaction()
        one.send("t", b"never", partition=0)
        producer.close()
        for call in (lambda: one.send("t", b"x"), one.flush, producer.transaction):
            with pytest.raises(KafkaRebalanceError, match="closed"):
                call()
        assert visible(connections) == []


def test_a_callback_on_the_io_thread_does_not_wait(
    made: tuple[Producer, InMemoryConnections],
) -> None:
    """It waited for itself: a flush for three minutes, and the records were given up then."""
    producer, _ = made
    raised: list[Any] = []
    called = threading.Event()
    with producer.transaction() as one:

        def call(_: Any) -> None:
            one.send("t", b"another", partition=1)
            for wait in (one.flush, one.commit, lambda: one.send("new", b"x"), producer.close):
                try:
                    wait()
                except RuntimeError as error:
                    raised.append(error)
            called.set()

        first = one.send("t", b"a", partition=0, future=True)
        assert first is not None
        first.add_done_callback(call)
        one.flush(PATIENCE_S * 1000)
        assert called.wait(PATIENCE_S)
    assert ["I/O thread" in str(error) for error in raised] == [True] * 4
    assert visible(made[1]) == [b"a"]
    assert visible(made[1], 1) == [b"another"]


def test_who_waits_for_room_holds_up_nobody_else() -> None:
    """With a time-out of their own, others waited as long as all who wait for room together."""
    with in_memory(2, buffer_memory=5_000, batch_size=1_000) as (producer, connections):
        lost = threading.Event()
        connections.lose = lambda request: (
            "on the way" if isinstance(request, Produce) and not lost.is_set() else ""
        )
        rows = pa.table({"value": [b"x" * 500] * 40, "partition": [0] * 40})
        errors: list[BaseException] = []
        with producer.transaction() as one:

            def send() -> None:
                try:
                    one.send_batch("t", rows)
                except BaseException as error:
                    errors.append(error)

            sending = [threading.Thread(target=send) for _ in range(2)]
            for thread in sending:
                thread.start()
            deadline = time.monotonic() + PATIENCE_S
            while producer._delivery.has_room:
                assert time.monotonic() < deadline, "there is always room"
                time.sleep(0.001)
            with pytest.raises(kafka_errors.KafkaTimeoutError):
                producer.flush(timeout_ms=1)
            assert all(thread.is_alive() for thread in sending)
            lost.set()
            for thread in sending:
                thread.join(PATIENCE_S)
        assert errors == []
        assert visible(connections) == [b"x" * 500] * 80
