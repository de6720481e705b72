"""confluent-kafka, which is librdkafka: eager, cooperative, and the consumer protocol."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from ..application import Application

#: Short: ``consume`` waits this long for a full batch, while other clients return what they have.
CONSUME_S = 0.02
_BATCH = 1_000


def version() -> str:
    """The library's version; its librdkafka's version begins with the same two numbers."""
    return str(confluent_kafka.__version__)


class Listener:
    """Drains inside the callback, which runs in ``consume`` on the polling thread."""

    def __init__(self, topic: str, application: Application, *, incremental: bool) -> None:
        self._topic = topic
        self._application = application
        self._incremental = incremental

    def on_assign(self, consumer: Consumer, assigned: list[TopicPartition]) -> None:
        """Accept the partitions; the consumer resumes at the committed offsets."""
        if self._incremental:
            consumer.incremental_assign(assigned)
        else:
            consumer.assign(assigned)
        self._application.assigned([p.partition for p in assigned])

    def on_revoke(self, consumer: Consumer, revoked: list[TopicPartition]) -> None:
        """Drain; no records of any partition are returned until this returns."""
        numbers = [p.partition for p in revoked]
        time.sleep(self._application.revoking(numbers))
        if offsets := self._application.drained(numbers):
            consumer.commit(offsets=_for_commit(self._topic, offsets), asynchronous=False)
        self._give_up(consumer, revoked)

    def on_lost(self, consumer: Consumer, lost: list[TopicPartition]) -> None:
        """Release the partitions; it is too late to commit."""
        self._give_up(consumer, lost)

    def _give_up(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._incremental:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()
        self._application.revoked([p.partition for p in partitions])


def consume(member: Mapping[str, Any], application: Application) -> None:
    """Poll until the application stops."""
    topic = member["topic"]
    config = dict(member["config"])
    eager = config.get("partition.assignment.strategy") == "range"
    consumer = Consumer(
        {
            "bootstrap.servers": member["bootstrap_servers"],
            "group.id": member["group_id"],
            "client.id": member["name"],
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            **config,
        }
    )
    listener = Listener(topic, application, incremental=not eager)
    consumer.subscribe(
        [topic],
        on_assign=listener.on_assign,
        on_revoke=listener.on_revoke,
        on_lost=listener.on_lost,
    )
    while not application.stopping.is_set():
        offsets: dict[int, list[int]] = defaultdict(list)
        for message in consumer.consume(_BATCH, CONSUME_S):
            if (error := message.error()) is None:
                offsets[message.partition()].append(message.offset())
            elif error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        application.polled(offsets)
        if due := application.commit_due():
            consumer.commit(offsets=_for_commit(topic, due), asynchronous=True)
    consumer.close()


def _for_commit(topic: str, offsets: Mapping[int, int]) -> list[TopicPartition]:
    return [TopicPartition(topic, p, offset) for p, offset in offsets.items()]
