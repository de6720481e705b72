"""Asynchronous workers that finish out of order, across rebalances, on a real broker."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from group_members import PATIENCE_S, committed, owns, poll_until, share
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PartitionsLostError


class Application:
    """A member whose records are processed by a pool, each for a random time."""

    def __init__(self, member: DeferredRevokeConsumer, pool: ThreadPoolExecutor, seed: int) -> None:
        self.member = member
        self.done: Counter[tuple[TopicPartition, int]] = Counter()
        self.failed: list[BaseException] = []
        self._pool = pool
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._complete: dict[TopicPartition, set[int]] = {}
        self._first: dict[TopicPartition, int] = {}

    def poll(self) -> None:
        result = self.member.poll_with_rebalance(timeout_ms=10, max_records=50)
        assert not result.lost
        for partition in result.revoked:
            self._complete.pop(partition, None)
            self._first.pop(partition, None)
        for partition, records in result.records.items():
            self._first.setdefault(partition, records[0].offset)
            for record in records:
                future = self._pool.submit(self._process, partition, record.offset)
                future.add_done_callback(self._note)
        self.member.delay_revoke(result.to_be_revoked & self.member.unprocessed())
        self._check_commits()

    def _process(self, partition: TopicPartition, offset: int) -> None:
        time.sleep(self._random.uniform(0, 0.02))
        with self._lock:
            self.done[partition, offset] += 1
            self._complete.setdefault(partition, set()).add(offset)
        self.member.processed(partition, offset)

    def _note(self, future: Future[None]) -> None:
        error = future.exception()
        if error is not None:
            self.failed.append(error)

    def _check_commits(self) -> None:
        """What the broker acknowledged lies behind nothing that is not complete."""
        for partition, first in list(self._first.items()):
            acknowledged = self.member.acknowledged(partition)
            if acknowledged is not None:
                with self._lock:
                    complete = set(self._complete.get(partition, ()))
                assert set(range(first, acknowledged)) <= complete, "committed past the processed"


def test_workers_that_finish_out_of_order_across_joins_and_leaves(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name, partitions=6)
    produced = 0
    with ThreadPoolExecutor(12) as pool:
        first = Application(consumers(topic_name), pool, 1)
        second = Application(consumers(topic_name), pool, 2)
        running = [first]

        def done() -> int:
            return sum(first.done.values()) + sum(second.done.values())

        def poll_while(going_on) -> None:
            nonlocal produced
            deadline = time.monotonic() + PATIENCE_S
            while going_on():
                assert time.monotonic() < deadline
                if produced - done() < 200:
                    kafka.produce(topic_name, [b"x"] * 60)
                    produced += 60
                for application in running:
                    application.poll()

        poll_while(lambda: done() < 500)
        running.append(second)
        poll_while(lambda: not share(first.member, second.member, partitions=6)())
        shared_at = done()
        poll_while(lambda: done() < shared_at + 500)
        assert second.done, "the second member processed nothing"
        while done() < produced or first.member.unprocessed() | second.member.unprocessed():
            for application in running:
                application.poll()
        for application in running:
            assert application.member.drain(10_000)
    assert not first.failed + second.failed
    assert set((first.done + second.done).values()) == {1}, "a record came twice"
    ends = {TopicPartition(topic_name, p): produced // 6 for p in range(6)}
    assert committed(kafka, group_id) == ends


def test_a_late_worker_of_a_lost_partition_is_told_and_commits_nothing(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    results = poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    assert any(result.records for result in results[member])
    member._membership._lose("test")
    with pytest.raises(PartitionsLostError, match=f"not owned: {topic_name}-0 at"):
        member.processed(partition, 0)  # before any poll has said so
    poll_until(lambda: bool(member.get_lost_partitions()), member)
    assert member.unprocessed() == frozenset()
    with pytest.raises(PartitionsLostError):
        member.processed(partition, 0)
    poll_until(owns(member, 1), member)
    assert committed(kafka, group_id) == {}


def test_what_is_committed_by_hand_counts_as_processed(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    member.commit({partition: OffsetAndMetadata(4, "", -1)})
    member.processed(partition, 4, 6, 7)
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 5
    member.commit_processed({partition: 9})
    assert member.unprocessed() == {partition}
    member.commit()  # the positions
    assert member.unprocessed() == frozenset()


def test_a_record_that_no_poll_handed_out_is_an_error(kafka, topic_name, consumers):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    with pytest.raises(ValueError, match=rf"{topic_name}-0: offset 10 was not handed out"):
        member.processed(partition, 10)
