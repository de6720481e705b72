"""What goes on around the readers of a plan: records are sent, and offsets are watched."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import confluent_kafka
from kafka import KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer

from .surroundings import PATIENCE_S, Background

log = logging.getLogger(__name__)

_LOOK_AT_MOST_MS = 2_000.0


@dataclass
class Input:
    """What was sent: by value, where to, in which transaction and when."""

    sent: dict[str, tuple[TopicPartition, str | None]] = field(default_factory=dict)
    sent_at: dict[str, float] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    prefix: str = ""

    def new(self, partition: TopicPartition, transaction: str | None) -> str:
        with self.lock:
            value = f"{self.prefix}{len(self.sent)}"
            self.sent[value] = partition, transaction
            self.sent_at[value] = time.time()
            return value


class Producing(Background):
    """Sends records at a steady rate."""

    _IDEMPOTENT = True

    def __init__(
        self,
        servers: str,
        partitions: Callable[[], list[TopicPartition]],
        given: Input,
        rate: float,
        chance: Random,
    ) -> None:
        super().__init__()
        self._servers = servers
        self._partitions = partitions
        self._given = given
        self._rate = rate
        self._chance = chance

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._servers,
            acks="all",
            enable_idempotence=self._IDEMPOTENT,
            linger_ms=5,
            reconnect_backoff_max_ms=200,
            metadata_max_age_ms=1_000,
        )
        try:
            while not self._stop.is_set():
                count = self._chance.randint(1, 20)
                for _ in range(count):
                    self._send_one(producer)
                self._stop.wait(count / self._rate)
            producer.flush(timeout=PATIENCE_S)
        finally:
            with suppress(KafkaError):  # what could not be sent
                producer.close(timeout=0)

    def _send_one(self, producer: KafkaProducer) -> None:
        # It may not know a partition yet that was added just now.
        known = [p for p in self._partitions() if p[1] in producer.partitions_for(p[0])]
        partition = self._chance.choice(known)
        value = self._given.new(partition, None)
        future = producer.send(
            partition.topic, value.encode(), key=_key_of(value), partition=partition.partition
        )
        future.add_callback(self._is_acknowledged, value)

    def _is_acknowledged(self, value: str, metadata: Any) -> None:
        self._given.acknowledged[value] = metadata.offset


class ProducingPlainly(Producing):
    """To a topic that may be another one before long, where sequence numbers mean nothing."""

    _IDEMPOTENT = False


class ProducingTransactions(Producing):
    """Sends records in transactions, of which it aborts every fourth.

    By librdkafka: kafka-python's producer may wait for the end of a transaction for ever.
    """

    _TIMEOUT_S = 10.0

    def run(self) -> None:
        name = f"transactions-{uuid.uuid4().hex[:8]}"
        config = {
            "bootstrap.servers": self._servers,
            "transactional.id": name,
            "linger.ms": 5,
            "reconnect.backoff.max.ms": 200,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,  # brokers come and go
        }
        producer: Any = None
        number = 0
        while not self._stop.is_set() or producer is None:  # which aborts what is still open
            number += 1
            count = self._chance.randint(1, 20)
            try:
                if producer is None:
                    producer = confluent_kafka.Producer(config)
                    producer.init_transactions(PATIENCE_S)
                self._send(producer, f"{name}/{number}", count)
            except (confluent_kafka.KafkaException, BufferError) as error:
                log.info("%s: %r", name, error)
                producer.purge()
                producer = None
            self._stop.wait(count / self._rate)

    def _send(self, producer: Any, transaction: str, count: int) -> None:
        producer.begin_transaction()
        for _ in range(count):
            partition = self._chance.choice(self._partitions())
            value = self._given.new(partition, transaction)
            producer.produce(
                partition.topic,
                value,
                key=_key_of(value),
                partition=partition.partition,
                on_delivery=self._is_there,
            )
        if self._chance.random() < 0.25:
            producer.flush(self._TIMEOUT_S)
            producer.abort_transaction(self._TIMEOUT_S)
        else:
            producer.commit_transaction(self._TIMEOUT_S)

    def _is_there(self, error: Any, message: Any) -> None:
        if error is None:
            self._given.acknowledged[message.value().decode()] = message.offset()


def _key_of(value: str) -> bytes:
    """Of ten: compaction leaves little."""
    return value[-1:].encode()


class Watch(Background):
    """Looks at a group's committed offsets, and if asked at the ends of its partitions.

    Parameters
    ----------
    servers, group : str
    partitions : callable
    ending : callable
        The partitions whose ends are looked at.
    isolation : str
        Of the group's readers, for the ends.
    looks_at_ends : bool
        Whether ``ends`` is needed.
    """

    def __init__(
        self,
        servers: str,
        group: str,
        partitions: Callable[[], list[TopicPartition]],
        ending: Callable[[], list[TopicPartition]],
        isolation: str,
        looks_at_ends: bool,
    ) -> None:
        super().__init__()
        self._servers = servers
        self._group = group
        self._partitions = partitions
        self._ending = ending
        self._isolation = isolation
        self._looks_at_ends = looks_at_ends
        self.seen: list[tuple[float, Mapping[TopicPartition, int]]] = []
        self.ends: list[tuple[float, Mapping[TopicPartition, int]]] = []

    def run(self) -> None:
        consumer = DeferredRevokeConsumer(  # not subscribed: no member
            bootstrap_servers=self._servers,
            group_id=self._group,
            isolation_level=self._isolation,
            reconnect_backoff_max_ms=200,
        )
        try:
            while not self._stop.wait(0.2):
                if self._looks_at_ends:
                    # kafka-python's own look-up does not ask for a leader that has moved.
                    ends = consumer.end_offsets_now(self._ending(), _LOOK_AT_MOST_MS)
                    self.ends.append((time.time(), ends))
                offsets = consumer.committed_offsets(self._partitions(), PATIENCE_S * 1_000)
                self.seen.append((time.time(), offsets))
        finally:
            consumer.close()

    @property
    def last(self) -> Mapping[TopicPartition, int]:
        return self.seen[-1][1] if self.seen else {}


def read_all(
    servers: str, partitions: list[TopicPartition], isolation: str
) -> list[tuple[TopicPartition, int, str]]:
    """Every record up to the last stable offset."""
    consumer = KafkaConsumer(
        bootstrap_servers=servers, isolation_level=isolation, auto_offset_reset="earliest"
    )
    try:
        consumer.assign(partitions)
        consumer.seek_to_beginning()
        ends = consumer.end_offsets(partitions)
        found = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(p) < ends[p] for p in partitions):
            for partition, records in consumer.poll(timeout_ms=200).items():
                found += [(partition, r.offset, r.value.decode()) for r in records]
            if time.monotonic() > deadline:
                raise TimeoutError(f"cannot read the logs to their ends {ends}")
        return found
    finally:
        consumer.close()


def wait_until_decided(servers: str, partitions: list[TopicPartition]) -> None:
    """Until no transaction is open any more."""
    committed = KafkaConsumer(bootstrap_servers=servers, isolation_level="read_committed")
    written = KafkaConsumer(bootstrap_servers=servers)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while committed.end_offsets(partitions) != written.end_offsets(partitions):
            if time.monotonic() > deadline:
                raise TimeoutError("a transaction is still open")
            time.sleep(0.1)
    finally:
        committed.close()
        written.close()
