"""Append a record to its batch, without the work that kafka-python repeats for every record.

For each record ``KafkaProducer.send`` copies the names of all topics twice and the partitions of
one, sorts them, takes the transaction manager's lock four times, and formats itself for a log line
that is hardly ever written. That is half of what a record costs the sending thread. Here the same
things are looked up in place.

Invariants:
 1. A record that is appended here goes to the partition, and into the batch, that
    ``KafkaProducer.send`` would have chosen at that moment.
 2. If ``KafkaProducer.send`` would have refused the record, waited, or begun something (a batch, a
    partition in the transaction, the next sticky partition), the record is left to it.

Java's ``RecordAccumulator`` (KIP-480) decides likewise about the sticky partition.
"""

from __future__ import annotations

import random
from typing import Any

from kafka import KafkaProducer
from kafka.partitioner.default import DefaultPartitioner, murmur2
from kafka.partitioner.sticky import StickyPartitioner
from kafka.producer.producer_batch import ProducerBatch
from kafka.producer.transaction_manager import TransactionManager, TransactionState
from kafka.record.memory_records import MemoryRecordsBuilder

from ...transport.kafka_python_version import require_names

require_names(
    {
        KafkaProducer: ("send",),
        ProducerBatch: ("try_append",),
        MemoryRecordsBuilder: ("is_full",),
        TransactionManager: ("maybe_add_partition_to_transaction",),
    }
)

_NO_HEADERS: list[Any] = []


class RecordAppender:
    """Appends records for one transactional ``KafkaProducer`` without serializers.

    Parameters
    ----------
    producer : KafkaProducer
        A connected one.
    """

    def __init__(self, producer: Any) -> None:
        config = producer.config
        partitioner = config["partitioner"]
        self._producer = producer
        self._manager = producer._transaction_manager
        self._metadata = producer._metadata
        self._accumulator = producer._accumulator
        self._batches = producer._accumulator._batches
        self._locks = producer._accumulator._tp_locks
        self._wake = producer._sender.wakeup
        #: By topic: the sticky partition of records without a key. None if it is drawn at random.
        self._sticky = partitioner._sticky if type(partitioner) is StickyPartitioner else None
        #: By topic: the metadata of its partitions, and those with a leader to draw from.
        self._pools: dict[str, tuple[Any, list[int]]] = {}
        # By the last condition, what fits into a batch is not too large for a request.
        self._may_append = (
            type(partitioner) in (DefaultPartitioner, StickyPartitioner)
            and config["key_serializer"] is None
            and config["value_serializer"] is None
            and config["batch_size"] <= config["max_request_size"]
        )

    def send(
        self,
        topic: str,
        value: Any = None,
        key: Any = None,
        headers: Any = None,
        partition: int | None = None,
        timestamp_ms: int | None = None,
    ) -> Any:
        """As ``KafkaProducer.send``."""
        if headers is None and self._may_append and type(value) is bytes:
            if partition is None and key is None and self._sticky is None:
                partition = self._drawn(topic)
            future = self._appended(topic, value, key, partition, timestamp_ms)
            if future is not None:
                return future
        return self._producer.send(topic, value, key, headers, partition, timestamp_ms)

    def _drawn(self, topic: str) -> int | None:
        """Draw a partition as DefaultPartitioner does; None if that has no leader, or none has."""
        partitions = self._metadata._partitions.get(topic)
        if not partitions:
            return None
        pool = self._pools.get(topic)
        if pool is None or pool[0] is not partitions:
            led = [p for p, each in partitions.items() if each.leader_id != -1]
            pool = self._pools[topic] = (partitions, led)
        if not pool[1]:
            return None
        drawn = random.choice(pool[1])
        return None if partitions[drawn].leader_id == -1 else drawn

    def _appended(
        self, topic: str, value: bytes, key: Any, partition: int | None, timestamp_ms: int | None
    ) -> Any:
        """Append the record if its partition has a batch with room; its future, or None."""
        if key is not None and type(key) is not bytes:
            return None
        if partition is None:
            partitions = self._metadata._partitions.get(topic)
            if not partitions:
                return None
            if key is not None:
                numbers = sorted(partitions)
                partition = numbers[(murmur2(key) & 0x7FFFFFFF) % len(numbers)]
            elif self._sticky is not None:
                partition = self._sticky.get(topic)
                if partition not in partitions or partitions[partition].leader_id == -1:
                    return None  # KafkaProducer.send is to choose another one
        where = (topic, partition)
        manager = self._manager
        if manager._current_state is not TransactionState.IN_TRANSACTION or not (
            where in manager._partitions_in_transaction
            or where in manager._pending_partitions_in_transaction
            or where in manager._new_partitions_in_transaction
        ):
            return None
        lock = self._locks.get(where)
        if lock is None or self._producer._closed or self._accumulator._closed:
            return None
        with lock:
            batches = self._batches.get(where)
            if not batches:
                return None
            batch = batches[-1]
            future = batch.try_append(timestamp_ms, key, value, _NO_HEADERS)
            if future is None or not batch.records.is_full():
                return future
        self._wake()
        return future
