"""kafka-python, eager or cooperative."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import kafka
from kafka import KafkaConsumer
from kafka.consumer.subscription_state import AsyncConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.structs import OffsetAndMetadata, TopicPartition

from ..application import Application

#: Long, because a join that ends between two polls is discarded and restarted. A poll that has
#: records returns at once.
POLL_MS = 500

_ASSIGNORS = {"range": RangePartitionAssignor, "cooperative-sticky": CooperativeStickyAssignor}


def version() -> str:
    """The library's version."""
    return str(kafka.__version__)


class Listener(AsyncConsumerRebalanceListener):  # type: ignore[misc]
    """Drains inside the callback, a coroutine, since a plain listener cannot commit here."""

    def __init__(self, consumer: KafkaConsumer, application: Application) -> None:
        self._consumer = consumer
        self._application = application

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Drain on the library's own thread; poll returns nothing until this returns.

        Awaiting on the library's loop instead of sleeping made no difference when tried.
        """
        if not revoked:
            return
        topic = next(iter(revoked)).topic
        numbers = [p.partition for p in revoked]
        time.sleep(self._application.revoking(numbers))
        if offsets := self._application.drained(numbers):
            await self._consumer.commit_async(_for_commit(topic, offsets))
        self._application.revoked(numbers)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Accept the partitions; the consumer resumes at the committed offsets."""
        self._application.assigned([p.partition for p in assigned])

    async def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        """Forget the partitions; it is too late to commit."""
        self._application.revoked([p.partition for p in lost])


def consume(member: Mapping[str, Any], application: Application) -> None:
    """Poll until the application stops."""
    topic = member["topic"]
    config = dict(member["config"])
    config["partition_assignment_strategy"] = [
        _ASSIGNORS[config.pop("partition_assignment_strategy")]
    ]
    consumer = KafkaConsumer(
        bootstrap_servers=member["bootstrap_servers"],
        group_id=member["group_id"],
        client_id=member["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        **config,
    )
    consumer.subscribe([topic], listener=Listener(consumer, application))
    while not application.stopping.is_set():
        records = consumer.poll(timeout_ms=POLL_MS)
        application.polled({p.partition: [r.offset for r in of] for p, of in records.items()})
        if offsets := application.commit_due():
            # If one is refused during a rebalance, the next commit or the listener makes up for it.
            consumer.commit_async(_for_commit(topic, offsets))
    consumer.close()


def _for_commit(topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, Any]:
    return {TopicPartition(topic, p): OffsetAndMetadata(o, "", -1) for p, o in offsets.items()}
