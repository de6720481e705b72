"""Polls that a signal handler interrupts, on a real broker: Ctrl-C, the time limits of job queues.

``tests/unit/test_interrupted_polls.py`` interrupts every place; here the places are random.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, TimestampOrderedRecords
from pyspark_kafka_rebalance.errors import UnreadableRecordError
from pyspark_kafka_rebalance.testing import LocalKafka

RECORDS = 2_000
HITS = 15


def raise_within_the_package(signal_number: int, frame: FrameType | None) -> None:
    """As Ctrl-C does, but not once the call has returned.

    What the package has returned and this file has not yet put down would be lost by this file.
    """
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("pyspark_kafka_rebalance."):
            raise KeyboardInterrupt
        frame = frame.f_back


@pytest.fixture
def interrupted() -> Iterator[None]:
    """SIGALRM raises wherever the package is at work."""
    former = signal.signal(signal.SIGALRM, raise_within_the_package)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, former)


def polls(consumer: DeferredRevokeConsumer) -> Callable[[], list[int]]:
    return lambda: [r.offset for found in consumer.poll(50, 50).values() for r in found]


def iterates(consumer: DeferredRevokeConsumer) -> Callable[[], list[int]]:
    return lambda: [record.offset for record in [next(consumer, None)] if record is not None]


def merges(consumer: DeferredRevokeConsumer) -> Callable[[], list[int]]:
    ordered = TimestampOrderedRecords(consumer, 0)
    return lambda: [record.offset for record in ordered.poll(50, 50).records]


@pytest.mark.usefixtures("interrupted")
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
@pytest.mark.parametrize("face", [polls, iterates, merges])
def test_what_no_poll_returned_is_not_committed_and_comes_with_the_next(
    kafka: LocalKafka, topic_name: str, group_id: str, protocol: Any, face: Any
) -> None:
    kafka.create_topic(topic_name)
    partition = TopicPartition(topic_name, 0)
    kafka.produce(topic_name, [b"%d" % n for n in range(RECORDS)])
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    returned: list[int] = []
    with DeferredRevokeConsumer(
        topic_name,
        group_id=group_id,
        bootstrap_servers=kafka.bootstrap_servers,
        group_protocol=protocol,
        auto_offset_reset="earliest",
        consumer_timeout_ms=50,
    ) as consumer:
        poll = face(consumer)
        while not returned:
            returned += poll()
        hits = 0
        while hits < HITS and len(returned) < RECORDS - 500:
            found: list[int] = []
            try:
                signal.setitimer(
                    signal.ITIMER_REAL, rng.choice([1e-5, 1e-4, 1e-3]) * (rng.random() + 0.1)
                )
                try:
                    found = poll()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, UnreadableRecordError):
                hits += 1
                consumer.commit()
                assert consumer.committed(partition) == len(returned) + len(found), seed
            returned += found
        assert hits, "nothing was interrupted"
        while len(returned) < RECORDS:
            with suppress(KeyboardInterrupt):
                returned += poll()
        assert returned == list(range(RECORDS)), seed
        assert consumer.unprocessed() == {partition}
        consumer.processed(partition, *returned)
        assert consumer.drain(10_000)
        assert consumer.acknowledged(partition) == RECORDS
