"""A poll that an exception ends has handed out nothing, wherever it comes (Ctrl-C, time limits).

Each place of a poll is interrupted in turn. Then the application commits, as in ``finally``:
nothing is committed that no poll returned. The next polls bring everything, and nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from typing import Any
from unittest import mock

import pytest
from histories import histories
from interruption import Interruption
from kafka.structs import TopicPartition
from model_log import PartitionLog
from simulated_kafka import TOPIC, Broker, World
from test_catch_up_skips_and_repeats_nothing import InOneThread

from pyspark_kafka_rebalance import DeferredRevokeConsumer, TimestampOrderedRecords
from pyspark_kafka_rebalance.errors import UnreadableRecordError

#: Every so manieth place is interrupted, and with RANDOM_HISTORIES each.
STEP = 1 if histories(1) > 1 else 7

BOTH = [TopicPartition(TOPIC, n) for n in range(2)]
Found = Iterable[tuple[TopicPartition, int]]
Poll = Callable[[], Found]


class TimeLimitError(Exception):
    """As a job queue raises it."""


class Run:
    """A consumer whose polls are interrupted, beside one whose polls are not."""

    def __init__(self, **options: Any) -> None:
        self.world = World()
        self.open = ExitStack()
        self.open.enter_context(self.world.is_real())
        self.logs = {p: PartitionLog() for p in BOTH}
        self.broker = Broker(self.world, self.logs, 30, 60)
        self.returned: dict[TopicPartition, set[int]] = {p: set() for p in BOTH}
        self.consumer = self.begins("interrupted", **options)

    def begins(self, name: str, **options: Any) -> DeferredRevokeConsumer:
        return DeferredRevokeConsumer(
            TOPIC,
            group_id="g",
            client_id=name,
            bootstrap_servers="broker:9092",
            group_protocol="consumer",
            kafka_client=self.broker.client,
            enable_incremental_fetch_sessions=False,
            metrics_enabled=False,
            consumer_timeout_ms=20,
            max_poll_records=8,
            auto_offset_reset="earliest",
            **options,
        )

    def produce(self, number: int) -> None:
        for log in self.logs.values():
            log.produce(number)

    def take(self, found: Found) -> None:
        for partition, offset in found:
            assert offset not in self.returned[partition], f"{partition} {offset} came twice"
            self.returned[partition].add(offset)

    def is_all_returned(self) -> bool:
        return all(len(self.returned[p]) == log.end for p, log in self.logs.items())

    def is_committed_right(self, where: str) -> None:
        """No record below the group's offsets that no poll returned."""
        for partition, offset in self.broker.committed.items():
            missing = set(range(offset)) - self.returned[partition]
            assert not missing, (
                f"{where}: {offset} is committed, {missing} of {partition} never came"
            )

    def close(self) -> None:
        for net in list(self.world.nets):
            net.die()
        self.open.close()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    name = "pyspark_kafka_rebalance.consumer.kafka_python.second_reader.threading.Thread"
    with mock.patch(name, InOneThread):
        yield
    logging.disable(logging.NOTSET)


def in_one(records: dict[TopicPartition, list[Any]]) -> Found:
    return [(p, record.offset) for p, found in records.items() for record in found]


def rows(table: Any) -> Found:
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "offset")]
    return [(TopicPartition(t, p), offset) for t, p, offset in zip(*columns, strict=True)]


def polls(consumer: DeferredRevokeConsumer) -> Poll:
    return lambda: in_one(consumer.poll(20))


def polls_with_rebalance(consumer: DeferredRevokeConsumer) -> Poll:
    return lambda: in_one(consumer.poll_with_rebalance(20).in_one())


def polls_arrow(consumer: DeferredRevokeConsumer) -> Poll:
    def poll() -> Found:
        result = consumer.poll_arrow(20, max_records=8)
        return [
            (p, offset)
            for p, batches in result.in_one().items()
            for batch in batches
            for offset in batch.column("offset").to_pylist()
        ]

    return poll


def one(record: Any) -> Found:
    return (
        [] if record is None else [(TopicPartition(record.topic, record.partition), record.offset)]
    )


def iterates(consumer: DeferredRevokeConsumer) -> Poll:
    return lambda: one(next(consumer, None))


def merges(consumer: DeferredRevokeConsumer) -> Poll:
    ordered = TimestampOrderedRecords(consumer, 0, buffered_records_per_partition=3)
    return lambda: [found for record in ordered.poll(20, 3).records for found in one(record)]


def merges_arrow(consumer: DeferredRevokeConsumer) -> Poll:
    ordered = TimestampOrderedRecords(consumer, 0, buffered_records_per_partition=3)
    return lambda: rows(ordered.poll_arrow(20, 3).records)


def iterates_in_order(consumer: DeferredRevokeConsumer) -> Poll:
    ordered = TimestampOrderedRecords(consumer, 0, buffered_records_per_partition=3)
    return lambda: one(next(ordered, None))


FACES = [
    polls,
    polls_with_rebalance,
    polls_arrow,
    iterates,
    merges,
    merges_arrow,
    iterates_in_order,
]


def interrupted_everywhere(run: Run, poll: Poll, step: int) -> int:
    """Interrupt a poll at each place; return how many there were."""
    at, places = 0, 0
    while True:
        at += step
        run.produce(3)
        if at % 2:
            run.world.sleep(0.01)  # what it fetches has arrived
        error = (KeyboardInterrupt, TimeLimitError)[places % 2]
        places += 1
        interruption = Interruption(at, error)
        # One that was put off may come first.
        with suppress(error, TimeLimitError, UnreadableRecordError), interruption:
            run.take(poll())
        if not interruption.raised:
            return places
        run.consumer.commit(timeout_ms=3_000)
        run.is_committed_right(interruption.where)
        for _ in range(60):
            try:
                run.take(poll())
            except (TimeLimitError, UnreadableRecordError):  # put off, because the poll had records
                continue
            if run.is_all_returned():
                break
        assert run.is_all_returned(), f"lost after {interruption.where}"
        for partition in run.consumer.assignment():
            run.consumer.processed(partition, *range(run.logs[partition].end))
        assert not run.consumer.unprocessed(), interruption.where


@pytest.mark.parametrize("face", FACES)
def test_nothing_counts_as_handed_out_that_no_poll_returned(face: Any) -> None:
    run = Run()
    try:
        poll = face(run.consumer)
        run.produce(2)
        while not run.is_all_returned():
            run.take(poll())
        for partition in BOTH:
            run.consumer.processed(partition, *range(run.logs[partition].end))
        places = interrupted_everywhere(run, poll, STEP)
        assert places * STEP > 200
    finally:
        run.close()
