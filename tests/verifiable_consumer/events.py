"""The events of a verifiable consumer, as Kafka's own tool writes them. Pure.

Follows ``org.apache.kafka.tools.VerifiableConsumer`` of Apache Kafka 4.3, field by field and in its
order: one JSON object per line, ``timestamp`` (ms since 1970) and ``name`` first.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka.structs import TopicPartition

#: The fields of an event after ``timestamp`` and ``name``.
Fields = Mapping[str, Any]


def event_line(timestamp_ms: int, name: str, fields: Fields | None = None) -> str:
    """Return an event as a line, without the line end."""
    event = {"timestamp": timestamp_ms, "name": name, **(fields or {})}
    return json.dumps(event, separators=(",", ":"))


def partitions_changed(partitions: Iterable[TopicPartition]) -> Fields:
    """``partitions_assigned`` and ``partitions_revoked``: what changed, not what is owned now."""
    return {"partitions": [_named(partition) for partition in sorted(partitions)]}


def record_data(record: Any) -> Fields:
    """``record_data``: one ConsumerRecord of bytes; what is not UTF-8 is replaced, as in Java."""
    return {
        "key": _text(record.key),
        "value": _text(record.value),
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
    }


def records_consumed(records: Mapping[TopicPartition, Sequence[Any]]) -> Fields:
    """``records_consumed``: the records of one poll; partitions without any are left out."""
    summaries = [
        {
            **_named(partition),
            "count": len(batch),
            "minOffset": batch[0].offset,
            "maxOffset": batch[-1].offset,
        }
        for partition, batch in records.items()
        if batch
    ]
    return {"count": sum(map(len, records.values())), "partitions": summaries}


def offsets_committed(offsets: Mapping[TopicPartition, int], error: str | None) -> Fields:
    """``offsets_committed``: the result of a commit; ``error`` is there only when it failed."""
    committed = [{**_named(partition), "offset": offset} for partition, offset in offsets.items()]
    failed = {} if error is None else {"error": error}
    return {"offsets": committed, **failed, "success": error is None}


def _named(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", errors="replace")
