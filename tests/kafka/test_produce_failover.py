"""`Producer` while leaders and coordinators move: order and exactly once are kept."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest
from group_members import wait_until
from producer_groups import read_committed
from written import ENDS_SOON, PATIENCE_MS, PATIENCE_S, producer_of

from pyspark_kafka_rebalance import TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.testing import LocalKafka

PARTITIONS = 3


@pytest.fixture(scope="module")
def v1() -> Iterator[LocalKafka]:
    with LocalKafka(3, features={"transaction.version": 0}, broker_config=ENDS_SOON) as brokers:
        yield brokers


@pytest.fixture(params=["v2", pytest.param("v1", marks=pytest.mark.long)])
def cluster(request: pytest.FixtureRequest) -> LocalKafka:
    name = "quorum" if request.param == "v2" else "v1"
    brokers: LocalKafka = request.getfixturevalue(name)
    return brokers


@pytest.fixture
def rows(quorum: LocalKafka, topic_name: str) -> str:
    quorum.create_topic(topic_name, PARTITIONS)
    return topic_name


class Steady:
    """Sends numbered records to all partitions until it is stopped, a few hundred a second."""

    def __init__(self, send: Callable[[int, int], object]) -> None:
        self.count = 0
        self.error: BaseException | None = None
        self._send = send
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Steady:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._ends.wait(0.002):
                for partition in range(PARTITIONS):
                    self._send(partition, self.count)
                self.count += 1
        except BaseException as error:
            self.error = error

    def go_on_for(self, records: int) -> None:
        until = self.count + records
        wait_until(lambda: self.count >= until or self.error is not None, f"{records} records")
        assert self.error is None


def by_partition(cluster: LocalKafka, topic: str) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {p: [] for p in range(PARTITIONS)}
    for value in read_committed(cluster, topic):
        partition, number = value.split(b":")
        found[int(partition)].append(int(number))
    return found


def value_of(partition: int, number: int) -> bytes:
    return b"%d:%d" % (partition, number)


def test_plain_records_while_brokers_restart(quorum: LocalKafka, rows: str) -> None:
    with producer_of(quorum, linger_ms=1) as producer:

        def send(partition: int, number: int) -> None:
            producer.send(rows, value_of(partition, number), partition=partition)

        with Steady(send) as steady:
            steady.go_on_for(100)
            for broker_id in quorum.broker_ids[:2]:
                quorum.kill(broker_id)
                steady.go_on_for(100)
                quorum.restart(broker_id)
                steady.go_on_for(50)
        producer.flush(PATIENCE_MS)
    found = by_partition(quorum, rows)
    assert found == {p: list(range(steady.count)) for p in range(PARTITIONS)}


def test_transactions_while_brokers_restart(cluster: LocalKafka, topic_name: str) -> None:
    """Whole transactions, in order: those that were aborted are repeated by the application."""
    cluster.create_topic(topic_name, PARTITIONS)
    with producer_of(cluster, topic_name) as producer:
        written = _Transactions(producer, topic_name)
        with written:
            written.go_on_for(5)
            for broker_id in cluster.broker_ids[:2]:
                cluster.kill(broker_id)
                written.go_on_for(3)
                cluster.restart(broker_id)
                written.go_on_for(3)
    found = by_partition(cluster, topic_name)
    expected = list(range(written.committed * _Transactions.RECORDS))
    assert found == dict.fromkeys(range(PARTITIONS), expected)


class _Transactions:
    """Transactions one after the other; one that is aborted is repeated."""

    RECORDS = 20

    def __init__(self, producer: Producer, topic: str) -> None:
        self.committed = 0
        self._producer = producer
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.error: BaseException | None = None

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._write()
        except BaseException as error:
            self.error = error

    def _write(self) -> None:
        first = self.committed * self.RECORDS
        try:
            with self._producer.transaction() as one:
                for number in range(first, first + self.RECORDS):
                    for partition in range(PARTITIONS):
                        one.send(self._topic, value_of(partition, number), partition=partition)
                    if number % 7 == 0:
                        time.sleep(0.01)
            self.committed += 1
        except TransactionAbortedError:
            time.sleep(0.05)

    def go_on_for(self, transactions: int) -> None:
        until = self.committed + transactions
        wait_until(
            lambda: self.committed >= until or self.error is not None, f"{transactions} of them"
        )
        assert self.error is None
