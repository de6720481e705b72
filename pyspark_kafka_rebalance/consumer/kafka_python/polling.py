"""What a poll is made of: rounds of kafka-python's consumer, its fetcher, its iteration."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import KafkaConsumer
from kafka.consumer.fetcher import Fetcher
from kafka.structs import TopicPartition
from kafka.util import Timer

from ...transport.kafka_python_version import require_names

require_names(
    {
        KafkaConsumer: ("_poll_once",),
        Fetcher: (
            "_handle_fetch_response",
            "PartitionRecords",
        ),
    }
)


def watch_fetches(
    consumer: KafkaConsumer,
    answered: Callable[[Any, Collection[TopicPartition], Any], None],
) -> None:
    """Before the first fetch: have ``answered(node_id, partitions asked for, response)`` called.

    On the I/O loop, before kafka-python looks at the response: a poll that returns its records
    also has what ``answered`` made of it.
    """
    fetcher = consumer._fetcher
    handle = fetcher._handle_fetch_response

    def tell_and_handle(
        node_id: Any, fetch_offsets: Mapping[TopicPartition, int], send_time: float, response: Any
    ) -> None:
        answered(node_id, fetch_offsets, response)
        handle(node_id, fetch_offsets, send_time, response)

    fetcher._handle_fetch_response = tell_and_handle


def fetch_step(consumer: KafkaConsumer, timeout_ms: float, max_records: int, update: bool) -> Any:
    """One round of kafka-python's own poll: positions, fetches, buffered records."""
    return consumer._poll_once(Timer(timeout_ms), max_records, update_offsets=update)


def hand_out_as(consumer: KafkaConsumer, form: Callable[..., Any]) -> None:
    """Have what is fetched handed out in another form: what to put in ``PartitionRecords``' place.

    What has been decoded in the one form and not handed out is fetched again for the other: the
    positions are behind what was handed out.
    """
    fetcher = consumer._fetcher
    if fetcher.PartitionRecords is form:
        return
    fetcher.PartitionRecords = form
    for decoded in (fetcher._next_partition_records, *fetcher._paused_partition_records.values()):
        if decoded:
            decoded.drain()
    fetcher._next_partition_records = None
    fetcher._paused_partition_records.clear()


def is_closed(consumer: KafkaConsumer) -> bool:
    """Whether the consumer's ``close()`` has ended, or been left halfway by an error."""
    return bool(consumer._closed)


def end_iteration(consumer: KafkaConsumer) -> None:
    """Forget what ``next(consumer)`` has taken from a poll and not returned."""
    consumer._iterator = None
