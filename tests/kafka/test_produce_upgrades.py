"""`Producer` while the brokers' transactions are upgraded from v1 to v2, and downgraded again."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from group_members import wait_until
from kafka.admin import KafkaAdminClient
from producer_groups import read_committed
from written import ENDS_SOON, PATIENCE_S, producer_of

from pyspark_kafka_rebalance import TransactionAbortedError
from pyspark_kafka_rebalance.produce.producer import Producer
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
        self.begun = 0
        self.error: BaseException | None = None
        self._producer = producer
        self._topic = topic
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ends.set()
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()
        assert self.error is None

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
                    one.send(self._topic, b"%d:%d" % (number, record), partition=partition)
            if number % 5 == 4:
                one.flush()
                one.abort()
            else:
                one.commit()
                self.committed.append(number)
        except TransactionAbortedError:
            if self._producer.is_refused:
                raise

    def go_on_for(self, transactions: int) -> None:
        until = len(self.committed) + transactions
        wait_until(
            lambda: len(self.committed) >= until or self.error is not None, f"{transactions} more"
        )
        assert self.error is None


def test_transactions_are_upgraded_and_downgraded(cluster: LocalKafka, topic_name: str) -> None:
    cluster.create_topic(topic_name, PARTITIONS)
    with (
        producer_of(cluster, topic_name, metadata_max_age_ms=200) as producer,
        Writing(producer, topic_name) as writing,
    ):
        writing.go_on_for(20)
        assert producer.versions.transaction_version == 1
        for kind, level, version in (
            ("UPGRADE", 2, 2),
            ("SAFE_DOWNGRADE", 0, 1),
            ("UPGRADE", 2, 2),
        ):
            finalize(cluster, kind, level)
            wait_until(
                lambda wanted=version: producer.versions.transaction_version == wanted,  # type: ignore[misc]
                f"transactions v{version}",
            )
            writing.go_on_for(20)
    expected = [b"%d:%d" % (n, record) for n in writing.committed for record in range(RECORDS)]
    assert len(writing.committed) == writing.begun - writing.begun // 5, (
        "none was aborted by others"
    )
    assert read_committed(cluster, topic_name) == 2 * expected
