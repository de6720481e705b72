"""Questions for the ends of logs: who is asked, what is made of the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.future import Future
from kafka.protocol.consumer import IsolationLevel, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.kafka_python.log_offsets import LogOffsets
from pyspark_kafka_rebalance.consumer.kafka_python.topic_metadata import TopicMetadata
from pyspark_kafka_rebalance.consumer.offsets.found_records import RecordTime

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
UNCOMMITTED = IsolationLevel.READ_UNCOMMITTED


class Brokers:
    """Manager and loop in one: leaders, where their logs end, and the requests they got."""

    def __init__(self) -> None:
        self.leaders = {A0: 1, A1: 2, B0: 1}
        self.ends = {A0: 10, A1: 20, B0: 30}
        self.times: dict[TopicPartition, int] = {}
        self.errors: dict[TopicPartition, int] = {}
        self.failing: dict[int, Exception] = {}
        self.got: list[tuple[int, ListOffsetsRequest]] = []
        self.asked_for_metadata = 0
        self.spawned: list[Callable[[], object]] = []
        self.cluster = SimpleNamespace(
            leader_for_partition=self.leaders.get, request_update=self._request_update
        )

    def _request_update(self) -> None:
        self.asked_for_metadata += 1

    def send(self, request: ListOffsetsRequest, node_id: int) -> Future:
        self.got.append((node_id, request))
        if node_id in self.failing:
            return Future().failure(self.failing[node_id])
        of_topic = ListOffsetsResponse.ListOffsetsTopicResponse
        of_partition = of_topic.ListOffsetsPartitionResponse
        topics = []
        for topic in request.topics:
            told = []
            for asked in topic.partitions:
                partition = TopicPartition(topic.name, asked.partition_index)
                assert self.leaders[partition] == node_id
                error = self.errors.get(partition, 0)
                told.append(
                    of_partition(
                        partition_index=partition.partition,
                        error_code=error,
                        timestamp=self.times.get(partition, -1),
                        offset=-1 if error else self.ends[partition],
                        leader_epoch=0,
                    )
                )
            topics.append(of_topic(name=topic.name, partitions=told))
        return Future().success(ListOffsetsResponse(throttle_time_ms=0, topics=topics))

    def run(self, coroutine: Any, *arguments: Any) -> Any:
        return asyncio.run(coroutine(*arguments))

    def spawn(self, coroutine: Any, *arguments: Any) -> Future:
        """Runs when it is waited for."""
        asked = Future()

        def run() -> None:
            try:
                asked.success(asyncio.run(coroutine(*arguments)))
            except kafka_errors.KafkaError as error:
                asked.failure(error)

        self.spawned.append(run)
        return asked

    async def wait_for(self, future: Future, timeout_ms: float | None) -> Any:
        assert timeout_ms is None or timeout_ms <= 1_000
        while self.spawned and not future.is_done:
            await asyncio.to_thread(self.spawned.pop())
        if future.failed():
            raise future.exception
        return future.value


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


def ask(offsets: LogOffsets, *partitions: TopicPartition) -> dict[TopicPartition, int]:
    return offsets.ask(partitions, OffsetSpec.LATEST, UNCOMMITTED, 1_000)


def of(brokers: Brokers) -> LogOffsets:
    metadata = TopicMetadata(brokers, brokers)  # type: ignore[arg-type]
    return LogOffsets(brokers, brokers, metadata)  # type: ignore[arg-type]


def test_each_leader_is_asked_once_for_what_it_leads(brokers: Brokers) -> None:
    assert ask(of(brokers), A0, A1, B0) == brokers.ends
    assert [node for node, _ in brokers.got] == [1, 2]
    assert brokers.asked_for_metadata == 0


@pytest.mark.parametrize("leader", [None, -1])
def test_what_has_no_leader_is_left_out_and_looked_for(
    brokers: Brokers, leader: int | None
) -> None:
    brokers.leaders[A1] = leader  # type: ignore[assignment]
    assert ask(of(brokers), A0, A1) == {A0: 10}
    assert brokers.asked_for_metadata == 1


def test_a_request_is_made_once_for_the_same_partitions(brokers: Brokers) -> None:
    offsets = of(brokers)
    ask(offsets, A0, B0)
    brokers.ends[A0] = 11
    assert ask(offsets, A0, B0) == {A0: 11, B0: 30}
    ask(offsets, A0)
    first, again, other = (request for _, request in brokers.got)
    assert again is first
    assert other is not first


def test_requests_differ_by_what_is_asked(brokers: Brokers) -> None:
    offsets = of(brokers)
    offsets.ask([A0], OffsetSpec.EARLIEST, UNCOMMITTED, 1_000)
    offsets.ask([A0], OffsetSpec.LATEST, IsolationLevel.READ_COMMITTED, 1_000)
    offsets.ask([A0], OffsetSpec.LATEST, UNCOMMITTED, 1_000)
    asked = [(r.topics[0].partitions[0].timestamp, r.isolation_level) for _, r in brokers.got]
    assert asked == [(-2, 0), (-1, 1), (-1, 0)]


def test_a_leader_that_moved_is_asked_for_what_it_leads_now(brokers: Brokers) -> None:
    offsets = of(brokers)
    ask(offsets, A0, A1, B0)
    brokers.leaders[A0] = 2
    assert ask(offsets, A0, A1, B0) == brokers.ends


@pytest.mark.parametrize(
    "error", [kafka_errors.NotLeaderForPartitionError, kafka_errors.UnknownTopicOrPartitionError]
)
def test_what_a_leader_does_not_tell_is_left_out(
    brokers: Brokers, error: type[kafka_errors.BrokerResponseError]
) -> None:
    brokers.errors[A0] = error.errno
    assert ask(of(brokers), A0, B0) == {B0: 30}
    assert brokers.asked_for_metadata == 1


def test_a_leader_that_does_not_answer_leaves_out_its_own(brokers: Brokers) -> None:
    brokers.failing[1] = kafka_errors.KafkaConnectionError()
    assert ask(of(brokers), A0, A1, B0) == {A1: 20}


def test_topics_that_may_not_be_described_are_named(brokers: Brokers) -> None:
    brokers.errors |= {B0: kafka_errors.TopicAuthorizationFailedError.errno}
    with pytest.raises(kafka_errors.TopicAuthorizationFailedError, match="b"):
        ask(of(brokers), A0, B0)


def test_an_error_that_does_not_pass_is_raised(brokers: Brokers) -> None:
    brokers.failing[2] = kafka_errors.ClusterAuthorizationFailedError()
    with pytest.raises(kafka_errors.ClusterAuthorizationFailedError):
        ask(of(brokers), A0, A1)


def test_the_first_record_of_each_log_that_is_as_late(brokers: Brokers) -> None:
    brokers.times = {A0: 1_005}
    brokers.ends[B0] = -1  # as brokers say that there is none
    brokers.errors[A1] = kafka_errors.NotLeaderForPartitionError.errno
    found = of(brokers).first_at({A0: 1_000, A1: 5, B0: 2_000}, UNCOMMITTED, 1_000)
    assert found == {A0: RecordTime(10, 1_005), B0: None}
    asked = {t.name: [p.timestamp for p in t.partitions] for t in brokers.got[0][1].topics}
    assert asked == {"a": [1_000], "b": [2_000]}
    assert brokers.asked_for_metadata == 1


def test_the_latest_record_takes_a_later_version_of_the_question(brokers: Brokers) -> None:
    brokers.times = {A0: 1_005}
    assert of(brokers).latest([A0], UNCOMMITTED, 1_000) == {A0: RecordTime(10, 1_005)}
    ask(of(brokers), A0)
    versions = [(request._min_version, request._max_version) for _, request in brokers.got]
    assert versions == [(7, 7), (1, 5)]


def test_a_request_by_timestamps_is_made_once_and_never_changed_while_it_is_on_its_way(
    brokers: Brokers,
) -> None:
    offsets = of(brokers)
    timestamps = {A0: 1_000, B0: 2_000}
    offsets.first_at(timestamps, UNCOMMITTED, 1_000)
    brokers.failing[1] = kafka_errors.KafkaTimeoutError()  # it may still be sent
    offsets.first_at({A0: 1_001, B0: 2_001}, UNCOMMITTED, 1_000)
    del brokers.failing[1]
    offsets.first_at({A0: 1_002, B0: 2_002}, UNCOMMITTED, 1_000)
    first, again, other = (request for _, request in brokers.got)
    assert again is first
    assert other is not first
    asked = [[p.timestamp for p in topic.partitions] for topic in first.topics]
    assert asked == [[1_001], [2_001]]
    asked = [[p.timestamp for p in topic.partitions] for topic in other.topics]
    assert asked == [[1_002], [2_002]]


def test_what_is_asked_of_other_partitions_than_before_is_not_made_anew(brokers: Brokers) -> None:
    offsets = of(brokers)
    for timestamps in ({A0: 1_000, B0: 2_000}, {B0: 2_001}, {A0: 1_002, B0: 2_002}):
        offsets.first_at(timestamps, UNCOMMITTED, 1_000)
    first, some, again = (
        {topic.name: topic.partitions for topic in request.topics} for _, request in brokers.got
    )
    assert some.keys() == {"b"}
    assert first["a"][0] is again["a"][0]
    assert first["b"][0] is some["b"][0] is again["b"][0]
    assert [p.timestamp for p in (*again["a"], *again["b"])] == [1_002, 2_002]


def test_what_was_asked_ahead_is_waited_for_unless_it_is_there(brokers: Brokers) -> None:
    brokers.times = {A0: 1_005}
    offsets = of(brokers)
    answer = offsets.begin_first_at({A0: 1_000}, UNCOMMITTED, 1_000)
    assert not brokers.got
    assert answer() == {A0: RecordTime(10, 1_005)}, "waited for"
    brokers.run = None  # type: ignore[assignment,method-assign]
    assert answer() == {A0: RecordTime(10, 1_005)}, "the loop is not asked"


def test_what_was_asked_ahead_and_is_refused_says_so(brokers: Brokers) -> None:
    brokers.errors = {A0: kafka_errors.TopicAuthorizationFailedError.errno}
    answer = of(brokers).begin_first_at({A0: 1_000}, UNCOMMITTED, 1_000)
    with pytest.raises(kafka_errors.TopicAuthorizationFailedError):
        answer()
