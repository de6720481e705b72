"""Asynchronous workers that finish out of order, across rebalances, on a real broker."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from group_members import (
    PATIENCE_S,
    counted,
    held,
    lose,
    losses,
    owns,
    poll_until,
    request_revoke,
    share,
    wait_until,
)
from kafka import ConsumerRebalanceListener
from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetCommitRequest
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
        self._acknowledged: dict[TopicPartition, int] = {}

    def poll(self) -> None:
        result = self.member.poll_with_rebalance(timeout_ms=10, max_records=50)
        assert not result.lost
        for partition in result.revoked:
            self._complete.pop(partition, None)
            self._first.pop(partition, None)
            self._acknowledged.pop(partition, None)
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
        """What the broker acknowledged only moves forward, and only over what is complete."""
        for partition, first in list(self._first.items()):
            acknowledged = self.member.acknowledged(partition)
            if acknowledged is not None:
                with self._lock:
                    complete = set(self._complete.get(partition, ()))
                assert set(range(first, acknowledged)) <= complete, "committed past the processed"
                assert acknowledged >= self._acknowledged.get(partition, 0), "moved back"
                self._acknowledged[partition] = acknowledged


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

        def poll_while(going_on, produce: bool = True) -> None:
            nonlocal produced
            deadline = time.monotonic() + PATIENCE_S
            while going_on():
                assert time.monotonic() < deadline
                if produce and produced - done() < 200:
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
        poll_while(
            lambda: done() < produced or first.member.unprocessed() | second.member.unprocessed(),
            produce=False,
        )
        for application in running:
            assert application.member.drain(10_000)
    assert not first.failed + second.failed
    assert set((first.done + second.done).values()) == {1}, "a record came twice"
    ends = {TopicPartition(topic_name, p): produced // 6 for p in range(6)}
    assert kafka.committed(group_id) == ends


def test_a_late_worker_of_a_lost_partition_is_told_and_commits_nothing(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    results = poll_until(lambda: bool(member.unprocessed()), member)
    (partition,) = member.assignment()
    assert any(result.records for result in results[member])
    lose(member)
    with pytest.raises(PartitionsLostError, match=f"not owned: {topic_name}-0 at"):
        member.processed(partition, 0)  # before any poll has said so
    with pytest.raises(PartitionsLostError, match=f"not owned: {topic_name}-0 at"):
        member.processed(partition, 5)  # also where the position would not have moved
    poll_until(lambda: bool(member.get_lost_partitions()), member)
    assert member.unprocessed() == frozenset()
    with pytest.raises(PartitionsLostError):
        member.processed(partition, 0)
    poll_until(owns(member, 1), member)
    assert kafka.committed(group_id) == {}


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


def test_a_record_that_no_poll_handed_out_is_an_error(with_records):
    member, partition = with_records
    with pytest.raises(ValueError, match=rf"{partition.topic}-0: offset 10 was not handed out"):
        member.processed(partition, 10)


@pytest.fixture
def with_records(kafka, topic_name, consumers) -> tuple[DeferredRevokeConsumer, TopicPartition]:
    """A member with ten records of one partition in processing."""
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    poll_until(lambda: bool(member.unprocessed()), member)
    return member, TopicPartition(topic_name, 0)


def test_a_late_worker_is_told_also_when_the_partition_came_back(with_records):
    """It was an error of its own, as if the worker had made the offset up."""
    member, partition = with_records
    lose(member, keep_member_id=True)
    wait_until(lambda: bool(member.poll_membership().lost), "the loss")
    poll_until_owned_without_fetching(member)
    with pytest.raises(PartitionsLostError, match="was lost or revoked after offset 5"):
        member.processed(partition, 5)
    poll_until(lambda: bool(member.unprocessed()), member)
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 10


def poll_until_owned_without_fetching(member: DeferredRevokeConsumer) -> None:
    def owned() -> bool:
        member.poll_membership()
        return owns(member, 1)()

    wait_until(owned, "the assignment")


def test_what_an_iteration_dropped_is_not_waited_for(kafka, topic_name, consumers):
    """A seek throws the iterator's other records away: they counted as handed out for ever."""
    kafka.create_topic(topic_name)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    kafka.produce(topic_name, [b"x"] * 10)
    (partition,) = member.assignment()
    first = [next(member).offset for _ in range(3)]
    member.seek(partition, 8)
    second = [next(member).offset for _ in range(2)]
    assert (first, second) == ([0, 1, 2], [8, 9])
    assert member.unprocessed() == {partition}
    member.processed(partition, *second, *first)
    assert member.unprocessed() == frozenset()
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 10


def test_a_worker_that_finishes_as_the_drain_of_close_ends(with_records, kafka, group_id):
    """Its commit was counted by nobody and never sent, and later ones met silence."""
    member, partition = with_records
    drain, drained = member.drain, []

    def draining(timeout_ms: float) -> bool:
        kafka.resume()
        drained.append(drain(timeout_ms))
        if len(drained) == 1:
            kafka.suspend()
            member.processed(partition, 1)
        return drained[-1]

    member.drain = draining
    kafka.suspend()  # nothing is acknowledged before it is drained
    try:
        member.processed(partition, 0)
        member.close()
    finally:
        kafka.resume()
    assert drained == [True, True]
    assert kafka.committed(group_id) == {partition: 2}
    with pytest.raises(PartitionsLostError, match=f"{partition.topic}-0 at 2"):
        member.processed(partition, 2)
    with pytest.raises(PartitionsLostError, match=f"{partition.topic}-0 at 3"):
        member.commit_processed({partition: 3})


def test_what_the_listener_commits_at_close_is_drained(kafka, topic_name, group_id, consumers):
    """It was called after the drain, and what it said was processed was forgotten."""

    class Committing(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            member.commit_processed(dict.fromkeys(revoked, 4))

    kafka.create_topic(topic_name)
    member = consumers()
    member.subscribe([topic_name], listener=Committing())
    poll_until(owns(member, 1), member)
    member.close()
    assert kafka.committed(group_id) == {TopicPartition(topic_name, 0): 4}


def test_a_lower_commit_takes_along_what_workers_completed_beyond_it(with_records):
    member, partition = with_records
    member.processed(partition, *range(1, 6))
    member.commit_processed({partition: 1})
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 6
    member.processed(partition, 8, 9)
    member.commit({partition: OffsetAndMetadata(8, "", -1)})
    assert member.unprocessed() == frozenset()
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 10


def test_after_forgetting_commits_the_position_is_that_of_the_records_handed_out_since(
    with_records,
):
    """It went on from the highest that was ever handed out: past what was not processed."""
    member, partition = with_records
    member.processed(partition, *range(10))
    assert member.drain(10_000)
    member.forget_commits([partition])
    member.seek(partition, 0)
    wait_until(lambda: bool(member.poll(timeout_ms=20, max_records=3)), "the first again")
    member.processed(partition, 2, 1, 0)
    assert member.drain(10_000)
    assert member.acknowledged(partition) == 3


def test_partitions_assigned_by_hand_are_refused_instead_of_never_committed(
    kafka, topic_name, group_id, consumers
):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 10)
    partition = TopicPartition(topic_name, 0)
    member = consumers()
    member.assign([partition])
    wait_until(lambda: bool(member.poll(timeout_ms=20)), "the records")
    with pytest.raises(PartitionsLostError):
        member.commit_processed({partition: 3})
    with pytest.raises(PartitionsLostError):
        member.processed(partition, 0)
    member.commit()
    assert kafka.committed(group_id) == {partition: 10}


def test_a_commit_of_the_positions_leaves_out_a_revoke_that_is_complete(
    kafka, topic_name, group_id, consumers
):
    """The library named its partition too, and everything was refused."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name)
    moving, kept = TopicPartition(topic_name, 0), TopicPartition(topic_name, 1)
    poll_until(lambda: member.unprocessed() == {moving, kept}, member)
    with held(member, OffsetCommitRequest, answer=True) as committing:
        member.commit_processed({moving: 5})
        assert committing.wait(PATIENCE_S)
        request_revoke(member, moving)
        member.poll_membership()
        assert member.assignment() == {kept}
        future = member.commit_async()
    wait_until(lambda: future.is_done, "the answer")
    assert future.succeeded()
    assert kafka.committed(group_id) == {moving: 5, kept: 10}


@contextmanager
def first_commit(
    member: DeferredRevokeConsumer, answered: Callable[[Any], Any]
) -> Iterator[list[Any]]:
    """Let ``answered`` make of the answer to the first commit what it likes. The requests."""
    loop = member._io.loop
    with counted(member, OffsetCommitRequest) as sent:
        send = loop.send

        async def altering_send(request: Any, node_id: str | None, timeout_ms: float) -> Any:
            response = await send(request, node_id, timeout_ms)
            if isinstance(request, OffsetCommitRequest) and len(sent) == 1:
                return answered(response)
            return response

        loop.send = altering_send
        yield sent


def leave_one_out(response: Any) -> Any:
    response.topics[0].partitions.pop()
    return response


def never_arrive(error: type[Exception]) -> Callable[[Any], Any]:
    def raising(_: Any) -> Any:
        raise error("the test says so")

    return raising


UNKNOWN_ANSWERS = {
    "one partition missing": leave_one_out,
    "connection lost": never_arrive(kafka_errors.KafkaConnectionError),
    "timeout": never_arrive(kafka_errors.KafkaTimeoutError),
}


@pytest.mark.parametrize("how", UNKNOWN_ANSWERS)
@pytest.mark.parametrize("by_hand", [False, True])
def test_a_commit_without_an_answer_is_sent_again_not_taken_for_done(
    kafka, topic_name, group_id, consumers, how, by_hand
):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    offsets = dict.fromkeys(member.assignment(), 3)
    with first_commit(member, UNKNOWN_ANSWERS[how]) as sent:
        if by_hand:
            member.commit({p: OffsetAndMetadata(o, "", -1) for p, o in offsets.items()})
        else:
            member.commit_processed(offsets)
            assert member.drain(PATIENCE_S * 1000)
            assert {p: member.acknowledged(p) for p in offsets} == offsets
        assert len(sent) == 2
    assert kafka.committed(group_id) == offsets


@pytest.mark.parametrize("how", UNKNOWN_ANSWERS)
def test_what_an_asynchronous_commit_did_not_bring_home_is_not_processed(with_records, how):
    """It counted before the answer: its revoke was completed although the commit had failed."""
    member, partition = with_records
    with first_commit(member, UNKNOWN_ANSWERS[how]):
        failed = member.commit_async()
        wait_until(lambda: failed.is_done, "the first answer")
        assert failed.failed()
        assert member.unprocessed() == {partition}
        again = member.commit_async()
        wait_until(lambda: again.is_done, "the second answer")
        assert again.succeeded()
    assert member.unprocessed() == frozenset()


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_answer_to_a_former_membership_does_not_end_the_present_one(with_records, by_hand):
    """In the consumer protocol both may have the same id and the same epoch."""
    member, partition = with_records
    go_on = threading.Event()

    def unknown_member(response: Any) -> Any:
        response.topics[0].partitions[0].error_code = kafka_errors.UnknownMemberIdError.errno
        return response

    with first_commit(member, unknown_member) as sent:
        loop = member._io.loop
        send = loop.send

        async def late_send(request: Any, node_id: str | None, timeout_ms: float) -> Any:
            response = await send(request, node_id, timeout_ms)
            while isinstance(request, OffsetCommitRequest) and not go_on.is_set():
                await loop.sleep(0.01)
            return response

        loop.send = late_send
        if by_hand:
            future = member.commit_async()
        else:
            member.processed(partition, 0)
        wait_until(lambda: bool(sent), "the commit on its way")
        lose(member, keep_member_id=True)
        poll_until(lambda: bool(member.get_lost_partitions()), member)
        poll_until(owns(member, 1), member)
        before = losses(member)
        go_on.set()
        if by_hand:
            wait_until(lambda: future.is_done, "the late answer")
            assert future.failed()
        else:
            poll_until(lambda: bool(member.unprocessed()), member)
            member.processed(partition, 1)  # behind it; the broker has accepted the first
            assert member.drain(10_000)
        assert losses(member) == before
