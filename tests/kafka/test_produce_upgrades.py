"""`Producer` while the brokers' transactions are upgraded from v1 to v2, and downgraded again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from group_members import wait_until
from kafka.admin import KafkaAdminClient
from kafka.protocol.producer import InitProducerIdRequest
from producer_groups import read_committed
from written import ENDS_SOON, PATIENCE_MS, PATIENCE_S, producer_of

from pyspark_kafka_rebalance import TransactionAbortedError
from pyspark_kafka_rebalance.fetch.connections import ClusterConnections
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.produce.transaction_errors import Errors
from pyspark_kafka_rebalance.testing import LocalKafka

PARTITIONS = 2
RECORDS = 5


@pytest.fixture
def cluster() -> Iterator[LocalKafka]:
    with LocalKafka(features={"transaction.version": 0}, broker_config=ENDS_SOON) as local:
        yield local


def finalize(cluster: LocalKafka, kind: str, level: int) -> None:
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    try:
        done = admin.update_features({"transaction.version": (kind, level)})
    finally:
        admin.close()
    assert done.get("transaction.version", "OK") == "OK", done


class Writing:
    """Transactions one after the other, every fifth of them aborted by the application."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.committed: list[int] = []
        self.aborted_by_others: list[int] = []
        self.begun = 0
        self.error: BaseException | None = None
        self._producer = producer
        self._topic = topic
        self._ends = threading.Event()
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._is_held = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Stay within a transaction that has records.

        By its source, a coordinator (Kafka 4.3) whose transactions are downgraded amid an EndTxn of
        v2, after the commit and before all markers, can never write that the markers are there.
        """
        self._may_go_on.clear()
        assert self._is_held.wait(PATIENCE_S)
        try:
            yield
        finally:
            self._is_held.clear()
            self._may_go_on.set()

    def _run(self) -> None:
        try:
            while not self._ends.is_set():
                self._write(self.begun)
                self.begun += 1
        except BaseException as error:
            self.error = error

    def _write(self, number: int) -> None:
        one = self._producer.transaction()
        try:
            for record in range(RECORDS):
                for partition in range(PARTITIONS):
                    one.send(self._topic, _value(partition, number, record), partition=partition)
            if not self._may_go_on.is_set():
                one.flush()
                self._is_held.set()
                assert self._may_go_on.wait(PATIENCE_S)
            if number % 5 == 4:
                one.flush()
                one.abort()
            else:
                one.commit()
                self.committed.append(number)
        except TransactionAbortedError:
            self.aborted_by_others.append(number)

    def go_on_for(self, transactions: int) -> None:
        for until in range(len(self.committed) + 1, len(self.committed) + transactions + 1):
            wait_until(
                lambda until=until: len(self.committed) >= until or self.error is not None,  # type: ignore[misc]
                f"transaction {until}",
            )
            assert self.error is None

    def check(self, cluster: LocalKafka) -> None:
        """What was committed is there, whole, in order, once; what was not is not."""
        found = read_committed(cluster, self._topic)
        for partition in range(PARTITIONS):
            expected = [_value(partition, n, r) for n in self.committed for r in range(RECORDS)]
            assert [each for each in found if each.startswith(b"%d:" % partition)] == expected
        assert len(found) == PARTITIONS * RECORDS * len(self.committed)


def _value(partition: int, number: int, record: int) -> bytes:
    return b"%d:%d:%d" % (partition, number, record)


def goes_over_to(producer: Producer, version: int) -> None:
    wait_until(lambda: producer.versions.transaction_version == version, f"transactions v{version}")


def test_transactions_are_upgraded_and_downgraded(cluster: LocalKafka, topic_name: str) -> None:
    """After a downgrade a new epoch was asked for, which a coordinator could not write."""
    cluster.create_topic(topic_name, PARTITIONS)
    with (
        producer_of(cluster, topic_name, metadata_max_age_ms=200) as producer,
        Writing(producer, topic_name) as writing,
    ):
        writing.go_on_for(20)
        assert producer.versions.transaction_version == 1
        finalize(cluster, "UPGRADE", 2)
        goes_over_to(producer, 2)
        writing.go_on_for(20)
        with writing.held():
            finalize(cluster, "SAFE_DOWNGRADE", 0)
            goes_over_to(producer, 1)
        writing.go_on_for(20)
        assert len(writing.aborted_by_others) <= 1
        finalize(cluster, "UPGRADE", 2)
        goes_over_to(producer, 2)
        writing.go_on_for(20)
        assert len(writing.aborted_by_others) <= 1
    writing.check(cluster)


def write(cluster: LocalKafka, name: str, topic: str, value: bytes) -> None:
    with producer_of(cluster, name) as producer, producer.transaction() as one:
        one.send(topic, value, partition=0)


def test_a_producer_is_started_after_a_downgrade(cluster: LocalKafka, topic_name: str) -> None:
    """The coordinator refused the transactional id for ever, restarted or not."""
    finalize(cluster, "UPGRADE", 2)
    cluster.create_topic(topic_name, PARTITIONS)
    for name in ("closed", "refused"):
        write(cluster, name, topic_name, b"before")
    with producer_of(cluster, "open") as left:
        open_one = left.transaction()
        open_one.send(topic_name, b"never", partition=0)
        open_one.flush(PATIENCE_MS)
        finalize(cluster, "SAFE_DOWNGRADE", 0)
        for value in (b"first", b"second"):
            write(cluster, "closed", topic_name, value)
            write(cluster, "open", topic_name, value)
        with pytest.raises(TransactionAbortedError):
            open_one.commit(PATIENCE_MS)
    as_others_do(cluster, "refused")
    cluster.restart()
    write(cluster, "refused", topic_name, b"last")
    expected = [b"before"] * 2 + [b"first"] * 2 + [b"second"] * 2 + [b"last"]
    assert read_committed(cluster, topic_name) == expected


def as_others_do(cluster: LocalKafka, name: str) -> None:
    """Start as a client that does not know of all this."""
    connections = ClusterConnections({"bootstrap_servers": cluster.bootstrap_servers}, 2**20)
    try:
        connections.bootstrap(PATIENCE_S)
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            version=4,
        )
        answer = connections.send(request).wait()
        assert answer.error_code == Errors.UNSUPPORTED_VERSION
    finally:
        connections.close()


def test_a_downgrade_that_a_producer_learns_of_by_a_refusal(
    cluster: LocalKafka, topic_name: str
) -> None:
    """The coordinator refuses all else of the transactional id until its broker is restarted."""
    finalize(cluster, "UPGRADE", 2)
    cluster.create_topic(topic_name, PARTITIONS)
    with (
        producer_of(cluster, topic_name) as producer,
        Writing(producer, topic_name) as writing,
    ):
        writing.go_on_for(20)
        assert producer.versions.transaction_version == 2
        with writing.held():
            finalize(cluster, "SAFE_DOWNGRADE", 0)
        goes_over_to(producer, 1)
        cluster.restart()
        writing.go_on_for(20)
        assert producer.versions.transaction_version == 1
        assert 1 <= len(writing.aborted_by_others) <= 2
    writing.check(cluster)
