"""RecordAppender: records go where KafkaProducer.send would put them, or the way it goes itself."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.cluster import ClusterMetadata
from kafka.partitioner.default import DefaultPartitioner
from kafka.partitioner.sticky import StickyPartitioner
from kafka.producer.record_accumulator import RecordAccumulator
from kafka.producer.transaction_manager import (
    ProducerIdAndEpoch,
    TransactionManager,
    TransactionState,
)
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.producer.kafka_python.record_appender import RecordAppender

COUNT = 6


class Producer:
    """As KafkaProducer: what went the long way, and what it has besides."""

    def __init__(self, partitioner: Any, **config: Any) -> None:
        self.config = {
            "partitioner": partitioner,
            "key_serializer": None,
            "value_serializer": None,
            "batch_size": 16384,
            "max_request_size": 1048576,
            **config,
        }
        self._closed = False
        self._transaction_manager = TransactionManager("id")
        self._transaction_manager.set_producer_id_and_epoch(ProducerIdAndEpoch(1, 0))
        self._transaction_manager._current_state = TransactionState.IN_TRANSACTION
        self._metadata = ClusterMetadata(bootstrap_servers=["127.0.0.1:1"])
        self._metadata._partitions = {
            "rows": {p: SimpleNamespace(leader_id=0) for p in range(COUNT)}
        }
        self._accumulator = RecordAccumulator(
            transaction_manager=self._transaction_manager, batch_size=self.config["batch_size"]
        )
        self.woken = 0
        self._sender = SimpleNamespace(wakeup=self._wake)
        self.long: list[tuple[Any, ...]] = []
        for p in range(COUNT):
            self.begin_batch(p)

    def begin_batch(self, p: int) -> None:
        where = TopicPartition("rows", p)
        self._transaction_manager.maybe_add_partition_to_transaction(where)
        self._accumulator.append(where, None, None, b"first", [])

    def send(self, *arguments: Any) -> str:
        self.long.append(arguments)
        return "long"

    def counts(self) -> dict[int, int]:
        """Records behind the first of each partition."""
        return {
            where.partition: sum(batch.record_count for batch in batches) - 1
            for where, batches in self._accumulator._batches.items()
        }

    def _wake(self) -> None:
        self.woken += 1


def test_a_record_with_a_key_goes_where_its_hash_says() -> None:
    partitioner = DefaultPartitioner()
    producer = Producer(partitioner)
    appender = RecordAppender(producer)
    expected: Counter[int] = Counter()
    for n in range(100):
        key = b"key-%d" % n
        appender.send("rows", b"value", key)
        expected[partitioner.partition("rows", key, key, b"", b"", producer._metadata)] += 1
    assert not producer.long
    assert producer.counts() == expected


def test_a_record_without_a_key_is_drawn_among_those_that_have_a_leader() -> None:
    producer = Producer(DefaultPartitioner())
    producer._metadata._partitions["rows"][2].leader_id = -1
    appender = RecordAppender(producer)
    for _ in range(300):
        appender.send("rows", b"value")
    counts = producer.counts()
    assert not producer.long
    assert counts.pop(2) == 0
    assert min(counts.values()) > 20


def test_a_leader_that_is_lost_later_is_looked_at_too() -> None:
    producer = Producer(DefaultPartitioner())
    appender = RecordAppender(producer)
    appender.send("rows", b"value")
    for each in producer._metadata._partitions["rows"].values():
        each.leader_id = -1
    assert appender.send("rows", b"value") == "long"
    assert producer.long == [("rows", b"value", None, None, None, None)]


def test_a_drawn_partition_goes_with_the_record_that_begins_a_batch() -> None:
    producer = Producer(DefaultPartitioner())
    producer._accumulator._batches.clear()
    appender = RecordAppender(producer)
    for _ in range(300):
        appender.send("rows", b"value")
    drawn = Counter(arguments[4] for arguments in producer.long)
    assert set(drawn) == set(range(COUNT))
    assert min(drawn.values()) > 20


def test_the_sticky_partition_is_kept_until_kafka_python_chooses_another() -> None:
    partitioner = StickyPartitioner()
    producer = Producer(partitioner)
    appender = RecordAppender(producer)
    assert appender.send("rows", b"value") == "long"  # none is chosen yet
    assert producer.long.pop()[4] is None
    partitioner._sticky["rows"] = 3
    appender.send("rows", b"value")
    assert producer.counts()[3] == 1
    producer._metadata._partitions["rows"][3].leader_id = -1
    assert appender.send("rows", b"value") == "long"


@pytest.mark.parametrize(
    "arguments",
    [
        {"topic": "other", "value": b"value"},
        {"topic": "other", "value": b"value", "key": b"key"},
        {"value": None, "key": b"key"},
        {"value": None},
        {"value": "text"},
        {"value": b"value", "key": "text"},
        {"value": b"value", "headers": [("name", b"value")]},
        {"value": b"value", "partition": COUNT},
        {"value": b"value", "partition": -1},
        {"value": b"x" * 20_000, "partition": 0},  # no room
    ],
)
def test_what_is_not_ordinary_goes_the_long_way(arguments: dict[str, Any]) -> None:
    producer = Producer(DefaultPartitioner())
    assert RecordAppender(producer).send(**{"topic": "rows", **arguments}) == "long"
    assert sum(producer.counts().values()) == 0


@pytest.mark.parametrize("state", set(TransactionState) - {TransactionState.IN_TRANSACTION})
def test_without_a_transaction_kafka_python_refuses_it(state: TransactionState) -> None:
    producer = Producer(DefaultPartitioner())
    producer._transaction_manager._current_state = state
    assert RecordAppender(producer).send("rows", b"value", partition=0) == "long"


def test_a_partition_that_the_transaction_does_not_have_is_added_by_kafka_python() -> None:
    producer = Producer(DefaultPartitioner())
    manager = producer._transaction_manager
    new = manager._new_partitions_in_transaction
    new.remove(("rows", 0))
    appender = RecordAppender(producer)
    assert appender.send("rows", b"value", partition=0) == "long"
    for where in (manager._pending_partitions_in_transaction, manager._partitions_in_transaction):
        where.add(TopicPartition("rows", 0))
        assert appender.send("rows", b"value", partition=0) != "long"
        where.clear()


@pytest.mark.parametrize("closed", ["_closed", "_accumulator"])
def test_after_the_end_kafka_python_refuses_it(closed: str) -> None:
    producer = Producer(DefaultPartitioner())
    if closed == "_closed":
        producer._closed = True
    else:
        producer._accumulator.close()
    assert RecordAppender(producer).send("rows", b"value", partition=0) == "long"


@pytest.mark.parametrize(
    "config",
    [
        {"partitioner": lambda *_: 0},
        {"value_serializer": object()},
        {"key_serializer": object()},
        {"batch_size": 2_000_000},
    ],
)
def test_settings_that_it_does_not_know_are_left_to_kafka_python(config: dict[str, Any]) -> None:
    producer = Producer(**{"partitioner": DefaultPartitioner(), **config})
    assert RecordAppender(producer).send("rows", b"value", partition=0) == "long"


def test_a_full_batch_wakes_the_sender_and_a_closed_one_takes_nothing() -> None:
    producer = Producer(DefaultPartitioner(), batch_size=1_000)
    appender = RecordAppender(producer)
    (batch,) = producer._accumulator._batches["rows", 0]
    size = batch.records.size_in_bytes()
    appender.send("rows", b"x" * (1_000 - size - 9), partition=0)  # 9: what a record adds
    assert batch.records.is_full()
    assert producer.woken == 1
    (other,) = producer._accumulator._batches["rows", 1]
    other.records.close()  # it is being sent, or aborted
    assert appender.send("rows", b"value", partition=1) == "long"
