"""A log that the broker's cleaner works on, for tests of what compaction leaves."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing import LocalKafka

_PATIENCE_S = 60.0


class CompactedLog:
    """A topic of one partition, created here, whose segments hold what one ``write`` brought."""

    def __init__(self, kafka: LocalKafka, topic: str) -> None:
        self._kafka = kafka
        self._topic = topic
        self.partition = TopicPartition(topic, 0)
        self.end = 0
        kafka.create_topic(
            topic,
            config={
                "cleanup.policy": "compact",
                "segment.ms": 100,
                "min.cleanable.dirty.ratio": 0.001,
                "delete.retention.ms": 600_000,
            },
        )

    def write(
        self, *keys: int, batches: int = 1, timestamps_ms: Sequence[int] | None = None
    ) -> None:
        """A record of each of these keys, in segments that are not those of what comes next.

        With timestamps, these may not be those of the same tenth of a second as what comes next.
        """
        size = -(-len(keys) // batches)
        for first in range(0, len(keys), size):
            some = [b"%d" % key for key in keys[first : first + size]]
            times = None if timestamps_ms is None else timestamps_ms[first : first + size]
            self._kafka.produce(self._topic, some, keys=some, partition=0, timestamps_ms=times)
        time.sleep(0.15)  # older than segment.ms: the next record rolls the log
        self.end += len(keys)

    def offsets(self) -> list[int]:
        """What a consumer finds."""
        plain = KafkaConsumer(
            bootstrap_servers=self._kafka.bootstrap_servers, auto_offset_reset="earliest"
        )
        plain.assign([self.partition])
        found: list[int] = []
        while not found or found[-1] < self.end - 1:
            for records in plain.poll(timeout_ms=200).values():
                found += [record.offset for record in records]
        plain.close()
        return found

    def wait_until_left(self, *offsets: int) -> None:
        """Until the cleaner has been at work. The segment written last is never cleaned."""
        deadline = time.monotonic() + _PATIENCE_S
        while self.offsets() != [*offsets]:
            assert time.monotonic() < deadline, f"not compacted down to {offsets[:5]}…"
            time.sleep(0.05)
