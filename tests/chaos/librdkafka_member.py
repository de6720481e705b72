"""A member of a churn that uses librdkafka, through confluent-kafka.

It has no deferred revoke: what is in processing when a partition is revoked is finished and
committed in the callback, while nothing else is processed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import confluent_kafka
from kafka.structs import TopicPartition

from .book import Book, MemberReport, MemberSettings

POLL_S = 0.04
#: Messages that one turn takes at most.
MAX_MESSAGES = 500

#: It says goodbye only once the rebalance that it is in has ended.
LEAVE_TIMEOUT_S = 60.0

#: A commit in the middle of a rebalance is sent again with the next one, or in the callback.
_REBALANCING = {
    confluent_kafka.KafkaError.REBALANCE_IN_PROGRESS,
    confluent_kafka.KafkaError.ILLEGAL_GENERATION,
    confluent_kafka.KafkaError.STALE_MEMBER_EPOCH,
}


class LibrdkafkaMember:
    """Polls until told to leave; single-threaded, its callbacks run in ``poll`` and ``close``.

    Parameters
    ----------
    settings : MemberSettings
    on_owned : callable
        Called with the number of partitions whenever that changes.
    """

    def __init__(self, settings: MemberSettings, on_owned: Callable[[int], None]) -> None:
        self._on_owned = on_owned
        self._book = Book(settings)
        self._uncommitted: dict[TopicPartition, int] = {}
        self._consumer = confluent_kafka.Consumer(_config(settings))
        self._consumer.subscribe(
            list(settings.topics),
            on_assign=self._on_assign,
            on_revoke=self._on_revoke,
            on_lost=self._on_lost,
        )

    def run(self, leave: threading.Event) -> MemberReport:
        """Take part in the group until ``leave`` is set; unsubscribing revokes, which drains."""
        try:
            while not leave.is_set():
                self._turn()
            self._consumer.unsubscribe()
            deadline = time.monotonic() + LEAVE_TIMEOUT_S
            while self._book.held:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"unsubscribed, but not revoked: {self._book.held}")
                self._turn()
        except Exception as error:
            raise self._book.broken() from error
        finally:
            self._consumer.close()
        return self._book.close()

    def _turn(self) -> None:
        self._book.polls += 1
        wait = POLL_S
        for _ in range(MAX_MESSAGES):
            message = self._consumer.poll(wait)
            if message is None:
                break
            if message.error() is not None:
                raise confluent_kafka.KafkaException(message.error())
            # At once, not at the end of the turn: the next poll may run the revoke's callback.
            partition = TopicPartition(message.topic(), message.partition())
            self._book.processing.begin(partition, [message.offset()], time.monotonic())
            wait = 0.0
        self._uncommitted |= self._book.processing.finish(time.monotonic())
        if self._uncommitted:
            try:
                self._consumer.commit(offsets=_named(self._uncommitted), asynchronous=False)
            except confluent_kafka.KafkaException as error:
                if error.args[0].code() not in _REBALANCING:
                    raise
            else:
                self._uncommitted = {}

    def _on_assign(self, consumer: Any, assigned: list[confluent_kafka.TopicPartition]) -> None:
        consumer.incremental_assign(assigned)
        self._book.take(_ours(assigned), time.monotonic())
        self._on_owned(len(self._book.held))

    def _on_revoke(self, consumer: Any, revoked: list[confluent_kafka.TopicPartition]) -> None:
        gone = _ours(revoked)
        while gone & self._book.processing.partitions:
            time.sleep(POLL_S)
            self._uncommitted |= self._book.processing.finish(time.monotonic())
        due = {p: self._uncommitted.pop(p) for p in gone if p in self._uncommitted}
        if due:
            consumer.commit(offsets=_named(due), asynchronous=False)
        self._book.let_go(gone)
        consumer.incremental_unassign(revoked)
        self._on_owned(len(self._book.held))

    def _on_lost(self, consumer: Any, lost: list[confluent_kafka.TopicPartition]) -> None:
        self._book.note([f"librdkafka lost: {sorted(_ours(lost))}"])
        self._book.let_go(_ours(lost))
        consumer.incremental_unassign(lost)


def _config(settings: MemberSettings) -> dict[str, Any]:
    config = {
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": settings.group_id,
        "client.id": settings.name,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "group.protocol": settings.group_protocol,
        "reconnect.backoff.max.ms": 200,
    }
    if settings.group_protocol == "classic":  # in the other one the group says
        config |= {
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": settings.session_timeout_ms,
            "heartbeat.interval.ms": settings.heartbeat_interval_ms,
        }
    return config


def _ours(partitions: Iterable[confluent_kafka.TopicPartition]) -> frozenset[TopicPartition]:
    return frozenset(TopicPartition(p.topic, p.partition) for p in partitions)


def _named(offsets: Mapping[TopicPartition, int]) -> list[confluent_kafka.TopicPartition]:
    return [confluent_kafka.TopicPartition(*p, offset) for p, offset in offsets.items()]
