"""A `Producer` on the model of the brokers: its threads are real, its sockets are not."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.record import MemoryRecords
from model_transactions import Brokers, versions_of

from pyspark_kafka_rebalance.produce import broker_link, producer, wire
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.produce.requests import Answer, FindCoordinator, Produce, Request


class Message:
    """What a connection sends; it has a header as soon as it is sent."""

    def __init__(self, requests: list[Request], batches: Any = ()) -> None:
        self.requests = requests
        self.batches = batches
        self.header: Any = None


class Fields:
    """A response's fields."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class InMemoryConnections:
    """In place of `ClusterConnections`: an I/O thread, and the model's brokers behind it.

    Attributes
    ----------
    brokers : Brokers
    partitions : dict of str to int
        The topics that there are.
    lose : callable
        Says of a request whether it is lost: "", "on the way" or "on the way back".
    """

    def __init__(self, version: int) -> None:
        self.brokers = Brokers(version)
        self.partitions: dict[str, int] = {}
        self.lose: Callable[[Request], str] = lambda request: ""
        self.asked: list[Request] = []
        self.metadata_requests = 0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="in-memory-io")
        self._thread.start()

    def bootstrap(self, timeout_s: float) -> None:
        pass

    def run_soon(self, function: Callable[[], None]) -> None:
        self.run_later(0, function)

    def run_later(self, delay_s: float, function: Callable[[], None]) -> None:
        with self._changed:
            if self._ends:
                raise RuntimeError("the loop has ended")
            heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), function))
            self._changed.notify()

    def send_soon(self, message: Any, node_id: Any, done: Callable[[Any, Any], None]) -> None:
        if not isinstance(message, Message):
            self.metadata_requests += 1
            self.run_soon(lambda: done(self._metadata(message), None))
            return
        message.header = object()
        fate = self.lose(message.requests[0])
        self.asked += message.requests
        answers = (
            [] if fate == "on the way" else [self._answer(message, r) for r in message.requests]
        )
        for name, member in self.brokers.markers_due():
            self.brokers.mark(name, member)
        if fate:
            self.run_soon(lambda: done(None, kafka_errors.KafkaConnectionError("lost")))
        else:
            self.run_soon(lambda: done(answers, None))

    @property
    def waiting(self) -> int:
        """How many functions the I/O thread has to call, now or later."""
        with self._changed:
            return len(self._due)

    def add_coordinator(self, node_id: int, host: str, port: int, key_type: int, key: str) -> str:
        return f"coordinator-{node_id}"

    def take_metadata(self, metadata: Any) -> None:
        pass

    def close(self) -> None:
        with self._changed:
            self._ends = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _answer(self, message: Message, request: Request) -> Answer:
        if isinstance(request, Produce):
            batch = message.batches[message.requests.index(request)]
            records = [record.value for record in next(iter(MemoryRecords(bytes(batch))))]
            self.brokers.values["id", request.batch] = records
        return self.brokers.handle("id", request)

    def _metadata(self, request: Any) -> Any:
        def topic(name: str) -> Any:
            partitions = [
                Fields(partition_index=n, leader_id=1, leader_epoch=0)
                for n in range(self.partitions.get(name, 0))
            ]
            return Fields(
                name=name,
                topic_id=None,
                error_code=0 if partitions else 3,
                partitions=partitions,
            )

        return Fields(API_VERSION=12, topics=[topic(each.name) for each in request.topics])

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._ends and not (self._due and self._due[0][0] <= time.monotonic()):
                    self._changed.wait(self._due[0][0] - time.monotonic() if self._due else None)
                if self._ends:
                    return
                _, _, function = heapq.heappop(self._due)
            function()


@contextmanager
def in_memory(version: int, **config: Any) -> Iterator[tuple[Producer, InMemoryConnections]]:
    """A transactional producer and its brokers, with a topic "t" of two partitions."""
    connections = InMemoryConnections(version)
    connections.partitions["t"] = 2

    def several(requests: Any, response: Any) -> Any:
        return list(zip(requests, response, strict=True))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(producer, "ClusterConnections", lambda *arguments: connections)
        patch.setattr(producer, "versions_of", lambda _: versions_of(version))
        patch.setattr(broker_link.wire, "message", lambda request: Message([request]))
        patch.setattr(
            broker_link.wire, "ProduceMessage", lambda r, batches, timeout_ms: Message(r, batches)
        )
        patch.setattr(broker_link.wire, "answer", lambda request, response: response[0])
        patch.setattr(broker_link.wire, "produce_answers", several)
        patch.setattr(broker_link.wire, "new_leaders", lambda response: [])
        patch.setattr(wire, "coordinator_of", _coordinator_of)
        made = Producer("id", **{"max_block_ms": 20_000, **config})
        try:
            yield made, connections
        finally:
            made.close()


def _coordinator_of(request: FindCoordinator, response: Any) -> Any:
    return Fields(error_code=response[0].error, node_id=response[0].node, host="h", port=1)
