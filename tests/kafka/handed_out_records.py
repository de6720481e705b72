"""What the tests of handed out records have in common: reading to an offset, and what is told."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from group_members import membership_of, poll_until, wait_until
from kafka import KafkaConsumer
from kafka.serializer import Deserializer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import (
    DeferredRevokeConsumer,
    PartitionsLostError,
    UnreadableRecordError,
)


class Picky(Deserializer):
    """Cannot read one of the records, for as long as that lasts."""

    unreadable: bytes | None = b"4"

    def deserialize(self, topic: str, headers: Any, data: bytes | None) -> bytes | None:
        if data == self.unreadable:
            raise ValueError("unreadable")
        return data


def skipping(member: DeferredRevokeConsumer) -> Any:
    """Poll, and seek past what cannot be read."""
    try:
        return member.poll(timeout_ms=50)
    except UnreadableRecordError as error:
        member.seek(TopicPartition(error.topic, error.partition), error.next_offset)
        return {}


def told(member: KafkaConsumer, partition: TopicPartition) -> str:
    found = member.committed(partition, metadata=True)
    return "" if found is None else str(found.metadata)


def read_to_end(
    member: DeferredRevokeConsumer, last: int, poll: Callable[[], Any] | None = None
) -> list[int]:
    """The offsets that polls hand out until this last one; nothing is processed."""
    seen: list[int] = []

    def polled() -> bool:
        records = (poll or (lambda: member.poll(timeout_ms=50)))()
        for found in records.values():
            for batch in found:
                seen.extend(
                    [batch.offset] if hasattr(batch, "offset") else batch["offset"].to_pylist()
                )
        return last in seen

    wait_until(polled, f"offset {last}")
    return seen


def commits_in_the_topic_created_anew(
    member: DeferredRevokeConsumer, partition: TopicPartition, offset: int
) -> None:
    """At once, or with topic ids when it is assigned anew, and has been read once more."""

    def accepted() -> bool:
        with suppress(PartitionsLostError):
            member.commit_processed({partition: offset})
        assert member.drain(10_000)
        return bool(member.committed(partition) == offset)

    if membership_of(member).by_topic_id:
        poll_until(accepted, member)
    else:
        assert accepted()
