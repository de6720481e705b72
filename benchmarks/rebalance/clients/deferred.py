"""Our client: no listener; it delays a revoke poll by poll until the partitions are drained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.structs import TopicPartition

import pyspark_kafka_rebalance
from pyspark_kafka_rebalance import DeferredRevokeConsumer

from ..application import Application

POLL_MS = 50


def version() -> str:
    """The library's version."""
    return pyspark_kafka_rebalance.__version__


def consume(member: Mapping[str, Any], application: Application) -> None:
    """Poll until the application stops."""
    topic = member["topic"]
    consumer = DeferredRevokeConsumer(
        topic,
        bootstrap_servers=member["bootstrap_servers"],
        group_id=member["group_id"],
        client_id=member["name"],
        auto_offset_reset="earliest",
        **member["config"],
    )
    seen_drained: set[int] = set()
    while not application.stopping.is_set():
        result = consumer.poll_with_rebalance(timeout_ms=POLL_MS)
        if gone := result.revoked | result.lost:
            application.revoked(_numbers(gone))
        if result.assigned:
            application.assigned(_numbers(result.assigned))
        application.polled(
            {p.partition: [r.offset for r in records] for p, records in result.records.items()}
        )
        offsets = application.commit_due()
        revoking = _numbers(result.to_be_revoked)
        busy = application.busy(revoking)
        if drained := revoking - busy - seen_drained:
            offsets |= application.drained(drained)
        seen_drained = revoking - busy
        if offsets:
            consumer.commit_processed({TopicPartition(topic, p): o for p, o in offsets.items()})
        consumer.delay_revoke(p for p in result.to_be_revoked if p.partition in busy)
    consumer.close()


def _numbers(partitions: Iterable[TopicPartition]) -> set[int]:
    return {p.partition for p in partitions}
