"""A poll that an exception ends has handed out nothing, wherever it comes (Ctrl-C, time limits).

Each place of a poll is interrupted in turn. Then the application commits, as in ``finally``:
nothing is committed that no poll returned. The next polls bring everything, and nothing twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from typing import Any
from unittest import mock

import pytest
from histories import places as places_of
from interruption import Interruption
from kafka import ConsumerRebalanceListener
from kafka.structs import TopicPartition
from model_log import PartitionLog
from simulated_kafka import TOPIC, Broker, World
from test_catch_up_skips_and_repeats_nothing import InOneThread

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PollResult, TimestampOrderedRecords
from pyspark_kafka_rebalance.errors import PartitionsLostError, UnreadableRecordError

#: Every so manieth place is interrupted, from the first one on; with RANDOM_HISTORIES each.
FIRST, STEP = places_of(7)

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


def interrupted_everywhere(run: Run, poll: Poll, first: int, step: int) -> int:
    """Interrupt a poll at each place; return how many there were."""
    at, places = first - step, 0
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
        places = interrupted_everywhere(run, poll, FIRST, STEP)
        assert places * STEP > 200
    finally:
        run.close()


# -- a rebalance ----------------------------------------------------------------------------------


class Owned(ConsumerRebalanceListener):  # type: ignore[misc]
    """What the listener, and what the polls, were told to be assigned."""

    def __init__(self) -> None:
        self.by_listener: set[TopicPartition] = set()
        self.by_polls: set[TopicPartition] = set()

    def on_partitions_assigned(self, assigned: set[TopicPartition]) -> None:
        self.by_listener |= assigned

    def on_partitions_revoked(self, revoked: set[TopicPartition]) -> None:
        self.by_listener -= revoked

    def on_partitions_lost(self, lost: set[TopicPartition]) -> None:
        self.by_listener -= lost

    def polled(self, result: PollResult) -> None:
        self.by_polls = (self.by_polls | result.assigned) - result.revoked - result.lost


class Rebalanced(Run):
    """Two members, between which the group moves partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.owned = Owned()
        self.consumer.subscribe([TOPIC], listener=self.owned)
        self.other = self.begins("other")
        self.twice: set[tuple[TopicPartition, int]] = set()

    def poll(
        self,
        consumer: DeferredRevokeConsumer,
        within: AbstractContextManager[Any] = nullcontext(),  # noqa: B008
    ) -> None:
        with within:
            result = consumer.poll_with_rebalance(20)
        if consumer is self.consumer:
            self.owned.polled(result)
        for partition, offset in in_one(result.records):
            if offset in self.returned[partition]:
                self.twice.add((partition, offset))
            self.returned[partition].add(offset)
            with suppress(PartitionsLostError):
                consumer.processed(partition, offset)

    def member_of(self, name: str) -> str:
        return next(m for m in self.broker.group.heard if self.broker.client_of[m] == name)

    def aim(self, *owners: str) -> None:
        self.broker.group.aim([self.member_of(owner) for owner in owners])

    def settle(self, where: str) -> None:
        """Everything is returned, and both have what the group wants them to have."""
        for _ in range(200):
            for consumer in (self.consumer, self.other):
                with suppress(TimeLimitError, UnreadableRecordError):
                    self.poll(consumer)
            target = self.broker.group.target
            names = {self.broker.client_of[member]: member for member in self.broker.group.heard}
            stands = len(names) == 2 and all(
                {p.partition for p in consumer.assignment()} == target.get(names[name])
                for name, consumer in (("interrupted", self.consumer), ("other", self.other))
            )
            if stands and self.is_all_returned():
                break
            self.world.sleep(0.2)
        assert stands, f"{where}: not assigned as the group wants it"
        assert self.is_all_returned(), f"{where}: lost"
        assigned = self.consumer.assignment()
        assert self.owned.by_listener == assigned, f"{where}: {self.owned.by_listener}, {assigned}"
        assert self.owned.by_polls == self.consumer.assignment(), where


@pytest.mark.parametrize("what", ["revoke", "assignment", "loss"])
@pytest.mark.parametrize("polls_before", [0, 1])
def test_a_rebalance_goes_on_where_a_poll_was_interrupted(what: str, polls_before: int) -> None:
    run = Rebalanced()
    at, places = 5 * (FIRST - STEP), 0
    try:
        run.produce(2)
        run.settle("at the beginning")
        while True:
            at += 5 * STEP
            run.aim("interrupted", "interrupted" if what != "assignment" else "other")
            run.settle("between")
            run.twice.clear()
            run.produce(2)
            if what == "loss":
                run.broker.group.remove(run.member_of("interrupted"))
            else:
                run.aim("interrupted", "interrupted" if what == "assignment" else "other")
            run.world.sleep(2.5)
            run.poll(run.other)
            run.world.sleep(1.2)
            for _ in range(polls_before):
                run.poll(run.consumer)
            interruption = Interruption(at, (KeyboardInterrupt, TimeLimitError)[places % 2])
            places += 1
            with suppress(KeyboardInterrupt, TimeLimitError, UnreadableRecordError):
                run.poll(run.consumer, interruption)
            if not interruption.raised:
                break
            with suppress(PartitionsLostError):
                run.consumer.commit(timeout_ms=3_000)
            run.is_committed_right(interruption.where)
            run.settle(interruption.where)
            assert what == "loss" or not run.twice, f"{interruption.where}: twice {run.twice}"
        assert at > 200
    finally:
        run.close()
