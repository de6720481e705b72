"""FetchMetadata (KIP-695) on a real broker: what is told, and from where the lag counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from kafka import KafkaProducer
from kafka.errors import IllegalStateError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer, FetchMetadata, PollResult
from pyspark_kafka_rebalance.testing import LocalKafka

PATIENCE_S = 30.0

Consumers = Callable[..., DeferredRevokeConsumer]


@pytest.fixture(params=["classic", "consumer"])
def protocol(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def consumers(kafka: LocalKafka, group_id: str) -> Iterator[Consumers]:
    """Make members of one group; closed at the end."""
    kafka.configure_group(
        group_id,
        {"consumer.session.timeout.ms": 3_000, "consumer.heartbeat.interval.ms": 500},
    )
    with ExitStack() as stack:

        def make(*topics: str, **config: Any) -> DeferredRevokeConsumer:
            settings = {
                "bootstrap_servers": kafka.bootstrap_servers,
                "group_id": group_id,
                "auto_offset_reset": "earliest",
                "session_timeout_ms": 3_000,
                "heartbeat_interval_ms": 500,
                "fetch_max_wait_ms": 100,  # an empty answer comes after it
                **config,
            }
            consumer = DeferredRevokeConsumer(*topics, **settings)
            stack.callback(consumer.close, timeout_ms=2_000)
            return consumer

        yield make


def patience() -> Iterator[None]:
    """Go on, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        yield
        assert time.monotonic() < deadline, "the group did not get there"


class Watch:
    """Polls members, and checks of each poll what must be true of every one."""

    def __init__(self) -> None:
        self.next_offset: dict[TopicPartition, int] = {}
        self.skipped: dict[TopicPartition, set[int]] = {}  # offsets that are no records
        self.told: dict[TopicPartition, list[FetchMetadata]] = {}

    def poll(self, member: DeferredRevokeConsumer, hold: bool = False) -> PollResult:
        result = member.poll_with_rebalance(timeout_ms=20)
        for partition, records in result.records.items():
            expected = records[-1].offset + 1
            while expected in self.skipped.get(partition, ()):
                expected += 1
            self.next_offset[partition] = expected
        assert result.records.keys() <= result.metadata.keys()
        assert result.metadata.keys() <= member.assignment() - result.to_be_revoked
        for partition, metadata in result.metadata.items():
            assert metadata.lag == metadata.end_offset - metadata.position
            if partition in self.next_offset:
                assert metadata.position == self.next_offset[partition]
            self.told.setdefault(partition, []).append(metadata)
        if hold:
            assert member.delay_revoke(result.to_be_revoked)
        return result

    def until(
        self, done: Callable[[], object], *members: DeferredRevokeConsumer, hold: bool = False
    ) -> None:
        for _ in patience():
            if done():
                break
            for member in members:
                self.poll(member, hold)

    def first(
        self, wanted: Callable[[PollResult], object], member: DeferredRevokeConsumer
    ) -> PollResult:
        """Poll until a result is wanted; that result."""
        for _ in patience():
            result = self.poll(member)
            if wanted(result):
                break
        return result

    def last(self, partition: TopicPartition) -> FetchMetadata | None:
        return self.told[partition][-1] if partition in self.told else None

    def answers(self, partition: TopicPartition) -> int:
        """How many different answers were told."""
        return len({metadata.fetched_at_ms for metadata in self.told.get(partition, ())})

    def at_end(self, *partitions: TopicPartition) -> Callable[[], bool]:
        return lambda: all((last := self.last(p)) and last.lag == 0 for p in partitions)


@pytest.fixture
def watch() -> Watch:
    return Watch()


def partitions_of(topic: str, count: int) -> list[TopicPartition]:
    return [TopicPartition(topic, number) for number in range(count)]


def test_empty_answers_are_told_again_and_again(kafka, topic_name, consumers, watch):
    """The broker leaves an unchanged partition out of its answers; that is an answer too."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    both = partitions_of(topic_name, 2)
    before = time.time_ns() // 1_000_000
    watch.until(lambda: all(watch.answers(p) >= 4 for p in both), member)
    for partition in both:
        told = watch.told[partition]
        assert {(m.position, m.lag, m.end_offset) for m in told} == {(0, 0, 0)}
        times = [m.fetched_at_ms for m in told]
        assert before <= times[0] <= times[-1] <= time.time_ns() // 1_000_000
        assert times == sorted(times)
        assert member.current_lag(partition) == 0


def test_records_fetched_but_not_yet_returned_are_lag(kafka, topic_name, consumers, watch):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 45)
    (partition,) = partitions_of(topic_name, 1)
    member = consumers(topic_name, max_poll_records=10)
    lags = []
    for _ in range(5):
        result = watch.first(lambda result: result.records, member)
        lags.append(result.metadata[partition].lag)
        assert member.current_lag(partition) == lags[-1]
    assert lags == [35, 25, 15, 5, 0]
    in_five_polls = watch.told[partition][-5:]
    assert len({m.fetched_at_ms for m in in_five_polls}) == 1, "one answer brought them all"


def test_a_partition_whose_records_wait_behind_anothers_is_told(
    kafka, topic_name, consumers, watch
):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20, partition=0)
    kafka.produce(topic_name, [b"x"] * 20, partition=1)
    both = partitions_of(topic_name, 2)
    member = consumers(topic_name, max_poll_records=5)
    watch.until(watch.at_end(*both), member)
    # From here on one answer brings the records of both.
    for partition in both:
        member.seek(partition, 0)
        watch.next_offset[partition] = 0
        watch.told.pop(partition)
    result = watch.first(lambda result: result.records, member)
    ((returned, records),) = result.records.items()
    assert len(records) == 5
    (waiting,) = set(both) - {returned}
    at = result.metadata[returned].fetched_at_ms
    assert result.metadata[returned] == FetchMetadata(5, 15, 20, at)
    assert FetchMetadata(0, 20, 20, at) in watch.told[waiting]


def test_under_read_committed_an_open_transaction_is_not_lag(kafka, topic_name, consumers, watch):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 3)
    (partition,) = partitions_of(topic_name, 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_name)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(4):
            producer.send(topic_name, b"open")
        producer.flush()
        member = consumers(topic_name, isolation_level="read_committed")
        watch.until(lambda: partition in watch.next_offset and watch.at_end(partition)(), member)
        assert watch.last(partition).end_offset == watch.next_offset[partition] == 3
        assert member.highwater(partition) == 7
        producer.commit_transaction()
        # 3 and 4 records and the mark of the commit, which is no record.
        watch.skipped[partition] = {7}
        watch.until(lambda: watch.last(partition).position == 8, member)
        assert watch.last(partition).lag == 0
    finally:
        producer.close()


def test_under_read_uncommitted_the_end_is_the_high_watermark(kafka, topic_name, consumers, watch):
    kafka.create_topic(topic_name)
    (partition,) = partitions_of(topic_name, 1)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, transactional_id=topic_name)
    try:
        producer.init_transactions()
        producer.begin_transaction()
        for _ in range(4):
            producer.send(topic_name, b"open")
        producer.flush()
        member = consumers(topic_name)
        watch.until(lambda: (last := watch.last(partition)) and last.position == 4, member)
        assert watch.last(partition).end_offset == 4
        producer.abort_transaction()
    finally:
        producer.close()


def test_after_a_seek_the_lag_counts_from_there(kafka, topic_name, consumers, watch):
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"x"] * 20)
    (partition,) = partitions_of(topic_name, 1)
    member = consumers(topic_name, max_poll_records=3)
    watch.until(watch.at_end(partition), member)
    member.seek(partition, 5)
    assert member.current_lag(partition) == 15
    watch.next_offset[partition] = 5
    result = watch.first(lambda result: result.records, member)
    assert (result.metadata[partition].position, result.metadata[partition].lag) == (8, 12)
    member.seek_to_beginning(partition)
    assert member.current_lag(partition) is None, "where the beginning is has to be asked"
    watch.next_offset[partition] = 0
    result = watch.first(lambda result: result.records, member)
    assert result.metadata[partition].lag == 17


def test_a_partition_being_revoked_is_not_told(kafka, topic_name, protocol, consumers, watch):
    """Nothing more of it will be read: to wait for its lag to shrink would be to wait in vain."""
    kafka.create_topic(topic_name, partitions=4)
    all_four = partitions_of(topic_name, 4)
    first = consumers(topic_name, group_protocol=protocol)
    watch.until(lambda: all(watch.answers(p) for p in all_four), first)
    second = consumers(topic_name, group_protocol=protocol)
    newcomer = Watch()
    asked: frozenset[TopicPartition] = frozenset()
    for _ in patience():
        if asked := watch.poll(first, hold=True).to_be_revoked:
            break
        newcomer.poll(second)
    kept = first.assignment() - asked
    watch.told.clear()
    # The fetch that was under way when the revoke was requested is answered meanwhile.
    watch.until(lambda: all(watch.answers(p) >= 2 for p in kept), first, hold=True)
    assert watch.told.keys() == kept
    assert {first.current_lag(p) for p in asked} == {0}, "it is still ours to say"
    for _ in patience():
        watch.poll(first)
        newcomer.poll(second)
        if all(newcomer.answers(p) for p in asked):
            break
    assert newcomer.told.keys() == asked == second.assignment()
    assert watch.told.keys() == kept
    for partition in asked:
        with pytest.raises(IllegalStateError, match="not assigned"):
            first.current_lag(partition)


def test_a_partition_revoked_at_once_is_not_told(kafka, topic_name, protocol, consumers, watch):
    kafka.create_topic(topic_name, partitions=4)
    all_four = partitions_of(topic_name, 4)
    first = consumers(topic_name, group_protocol=protocol, defer_revoke=False)
    watch.until(lambda: all(watch.answers(p) for p in all_four), first)
    second = consumers(topic_name, group_protocol=protocol)
    Watch().until(lambda: len(first.assignment()) == 2, second, first)  # checks every poll
    watch.told.clear()
    watch.until(lambda: all(watch.answers(p) >= 2 for p in first.assignment()), first)
    assert watch.told.keys() == first.assignment()


def test_what_is_lost_is_not_told_and_begins_anew(kafka, topic_name, protocol, consumers, watch):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    both = partitions_of(topic_name, 2)
    member = consumers(topic_name, group_protocol=protocol)
    watch.until(watch.at_end(*both), member)
    kafka.suspend()
    try:
        lost = watch.first(lambda result: result.lost, member).lost
        assert lost == set(both)
        for partition in both:
            with pytest.raises(IllegalStateError, match="not assigned"):
                member.current_lag(partition)
    finally:
        kafka.resume()
    watch.told.clear()
    watch.next_offset.clear()  # nothing was committed: from the beginning
    watch.first(lambda result: result.assigned, member)
    watch.until(watch.at_end(*both), member)
    assert sum(watch.last(p).end_offset for p in both) == 20


def test_poll_keeps_its_shape(kafka, topic_name, consumers):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20, partition=0)
    full, empty = partitions_of(topic_name, 2)
    member = consumers(topic_name)
    returned: dict[TopicPartition, int] = {}
    for _ in patience():
        for partition, records in member.poll(timeout_ms=20).items():
            assert type(records) is list
            assert records, "an empty answer is no entry"
            returned[partition] = returned.get(partition, 0) + len(records)
        if returned == {full: 20} and member.current_lag(empty) is not None:
            break
    assert member.current_lag(full) == member.current_lag(empty) == 0


def test_partitions_assigned_by_hand_are_told(kafka, topic_name, consumers, watch):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20, partition=0)
    full, empty = partitions_of(topic_name, 2)
    member = consumers()
    member.assign([full, empty])
    watch.until(watch.at_end(full, empty), member)
    assert (watch.last(full).end_offset, watch.last(empty).end_offset) == (20, 0)
    member.assign([empty])
    watch.told.clear()
    watch.until(lambda: watch.answers(empty) >= 2, member)
    assert watch.told.keys() == {empty}
    member.assign([full, empty])
    assert member.current_lag(full) is None
