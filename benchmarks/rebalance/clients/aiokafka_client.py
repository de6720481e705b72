"""aiokafka, which only has the eager protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

import aiokafka
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError

from ..application import Application

POLL_MS = 500


def version() -> str:
    """The library's version."""
    return str(aiokafka.__version__)


class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    """Drains inside the callback, which can await."""

    def __init__(self, consumer: AIOKafkaConsumer, application: Application) -> None:
        self._consumer = consumer
        self._application = application

    async def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        """Drain; the library has stopped fetching, but still sends heartbeats."""
        if not revoked:
            return
        topic = next(iter(revoked)).topic
        numbers = [p.partition for p in revoked]
        await asyncio.sleep(self._application.revoking(numbers))
        if offsets := self._application.drained(numbers):
            await self._consumer.commit(_for_commit(topic, offsets))
        self._application.revoked(numbers)

    async def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        """Accept the partitions; the consumer resumes at the committed offsets."""
        self._application.assigned([p.partition for p in assigned])


def consume(member: Mapping[str, Any], application: Application) -> None:
    """Poll until the application stops."""
    asyncio.run(_consume(member, application))


async def _consume(member: Mapping[str, Any], application: Application) -> None:
    topic = member["topic"]
    consumer = AIOKafkaConsumer(
        bootstrap_servers=member["bootstrap_servers"],
        group_id=member["group_id"],
        client_id=member["name"],
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        partition_assignment_strategy=(RangePartitionAssignor,),
        **member["config"],
    )
    consumer.subscribe([topic], listener=Listener(consumer, application))
    await consumer.start()
    # commit() waits for its answer, which polls should not.
    committing: asyncio.Task[None] | None = None
    while not application.stopping.is_set():
        records = await consumer.getmany(timeout_ms=POLL_MS)
        application.polled({p.partition: [r.offset for r in of] for p, of in records.items()})
        if committing is not None and committing.done():
            committing = None
        if committing is None and (offsets := application.commit_due()):
            committing = asyncio.create_task(_commit(consumer, _for_commit(topic, offsets)))
    await consumer.stop()


async def _commit(consumer: AIOKafkaConsumer, offsets: Mapping[TopicPartition, int]) -> None:
    try:
        await consumer.commit(dict(offsets))
    except KafkaError as error:
        # Refused during a rebalance: the next commit or the listener makes up for it.
        print(f"commit refused: {error!r}", flush=True)


def _for_commit(topic: str, offsets: Mapping[int, int]) -> dict[TopicPartition, int]:
    return {TopicPartition(topic, p): offset for p, offset in offsets.items()}
