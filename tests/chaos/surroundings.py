"""What goes on around the members of a churn: input, restarting brokers, an eye on the commits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.brokers.metadata import ask_broker

from .invariants import CommittedOffsets

if TYPE_CHECKING:
    from typing_extensions import Self

#: A restart of a broker takes 7 s on an idle machine with two cores, and 30 s on a busy one.
PATIENCE_S = 150.0

_SEND_EVERY_S = 0.02
_LOOK_EVERY_S = 0.25


def partitions_of(topics: Mapping[str, int]) -> list[TopicPartition]:
    """All partitions of the topics, given how many each has."""
    return [TopicPartition(topic, n) for topic, count in topics.items() for n in range(count)]


def wait_until_in_sync(kafka: LocalKafka, topics: Iterable[str], restarted: int) -> None:
    """Wait until a broker that has restarted says that all have every record of these topics."""
    deadline = time.monotonic() + PATIENCE_S
    port = int(kafka.bootstrap_servers.split(",")[restarted - 1].rpartition(":")[2])
    while True:
        metadata = ask_broker(port, list(topics))
        partitions = [p for topic in metadata.topics for p in topic.partitions]
        if all(len(p.isr_nodes) == len(kafka.broker_ids) for p in partitions):
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"the replicas of broker {restarted} are not in sync again")
        time.sleep(0.1)


class Background:
    """A loop on a thread of its own, while a ``with`` block runs; its failure is raised there."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._guarded, name=type(self).__name__)

    def run(self) -> None:
        """The loop, until ``self._stop`` is set."""
        raise NotImplementedError

    def raise_if_failed(self) -> None:
        """Raise what the loop ended with."""
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """End the loop and wait for it; again is fine."""
        self._stop.set()
        self._thread.join()
        self.raise_if_failed()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self.run()
        except BaseException as error:
            self._error = error


class SteadyInput(Background):
    """Produces so many records a second, round all partitions.

    Idempotent and acknowledged by every replica in sync, so that a broker that restarts neither
    loses nor doubles a record of the input itself.
    """

    def __init__(self, kafka: LocalKafka, topics: Mapping[str, int], rate: int) -> None:
        super().__init__()
        self._servers = kafka.bootstrap_servers
        self._partitions = partitions_of(topics)
        self._rate = rate
        self.sent = 0

    def run(self) -> None:
        producer = KafkaProducer(
            bootstrap_servers=self._servers,
            acks="all",
            enable_idempotence=True,
            linger_ms=5,
            reconnect_backoff_max_ms=200,
        )
        failures: list[BaseException] = []
        start = time.monotonic()
        try:
            while not self._stop.wait(_SEND_EVERY_S) and not failures:
                for n in range(self.sent, int((time.monotonic() - start) * self._rate)):
                    topic, partition = self._partitions[n % len(self._partitions)]
                    future = producer.send(topic, b"%d" % n, partition=partition)
                    future.add_errback(failures.append)
                    self.sent = n + 1
            producer.flush(timeout=PATIENCE_S)
        finally:
            producer.close(timeout=0)
        if failures:
            raise failures[0]

    def end_offsets(self) -> dict[TopicPartition, int]:
        """After the end of the input, the partitions' ends, exclusive."""
        consumer = KafkaConsumer(bootstrap_servers=self._servers)
        try:
            return dict(consumer.end_offsets(self._partitions))
        finally:
            consumer.close()


class RollingRestarts(Background):
    """Restarts one broker after the other, each when the last one's replicas are in sync again.

    ``restarts`` counts them; an empty order restarts none. Between two rounds there is a rest. A
    coordinator that ends before the rebalance which follows a leave takes the leave with it: the
    next one has the member from the log, until its session times out, which begins anew with every
    move of the coordinator. Without a rest such a member would be in the group for ever.
    """

    def __init__(
        self, kafka: LocalKafka, topics: Mapping[str, int], order: tuple[int, ...], rest_s: float
    ) -> None:
        super().__init__()
        self._kafka = kafka
        self._topics = [*topics, "__consumer_offsets"]
        self._order = order
        self._rest_s = rest_s
        self.restarts = 0

    def run(self) -> None:
        while self._order and not self._stop.is_set():
            for broker_id in self._order:
                self._kafka.restart(broker_id)
                wait_until_in_sync(self._kafka, self._topics, broker_id)
                self.restarts += 1
                if self._stop.is_set():
                    return
            self._stop.wait(self._rest_s)


class CommitWatch(Background):
    """Asks the coordinator for the group's committed offsets, again and again.

    For stable ones, as a next owner does (kafka-python's admin client cannot): a coordinator that
    has just taken over may otherwise answer with older offsets than the last.
    """

    def __init__(self, kafka: LocalKafka, topics: Mapping[str, int], group_id: str) -> None:
        super().__init__()
        self._servers = kafka.bootstrap_servers
        self._partitions = partitions_of(topics)
        self._group_id = group_id
        self.observed: list[CommittedOffsets] = []

    def run(self) -> None:
        consumer = DeferredRevokeConsumer(  # not subscribed: no member
            bootstrap_servers=self._servers, group_id=self._group_id, reconnect_backoff_max_ms=200
        )
        try:
            while not self._stop.wait(_LOOK_EVERY_S):
                offsets = consumer.committed_offsets(self._partitions, PATIENCE_S * 1_000)
                self.observed.append(CommittedOffsets(time.monotonic(), offsets))
        finally:
            consumer.close()

    def has_reached(self, ends: Mapping[TopicPartition, int]) -> bool:
        """Whether everything up to these ends is committed."""
        if not self.observed:
            return False
        committed = self.observed[-1].offsets
        return all(committed.get(partition, 0) == end for partition, end in ends.items())
