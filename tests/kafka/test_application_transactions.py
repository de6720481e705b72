"""Transactions of the application's own producer: ``group_metadata`` fences who has lost.

KIP-447: TxnOffsetCommit carries the member id and the generation of the consumer. librdkafka, for
one, answers a transaction of lost partitions with UNKNOWN_MEMBER_ID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from group_members import (
    held,
    losses,
    lost,
    owns,
    parts_of,
    poll_until,
    records,
    wait_until,
)
from kafka import KafkaProducer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest
from kafka.structs import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.messages import ConsumerGroupHeartbeatRequest
from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol

#: Of the broker, for what a member does that it does not know, or not in this generation.
REFUSED = kafka_errors.CommitFailedError


@contextmanager
def transactional_producer(kafka: LocalKafka, name: str) -> Iterator[KafkaProducer]:
    producer = KafkaProducer(
        bootstrap_servers=kafka.bootstrap_servers, transactional_id=name, retry_backoff_ms=10
    )
    try:
        producer.init_transactions()
        yield producer
    finally:
        producer.close()


def forward(
    producer: KafkaProducer,
    target: str,
    found: dict[TopicPartition, list[Any]],
    of: Callable[[], ConsumerGroupMetadata],
) -> None:
    """Send these records on, and their offsets, in one transaction; raises if it is refused."""
    producer.begin_transaction()
    try:
        for partition, values in found.items():
            for record in values:
                producer.send(target, b"%d-%d" % (partition.partition, record.offset))
        producer.send_offsets_to_transaction(
            {p: OffsetAndMetadata(values[-1].offset + 1, "", -1) for p, values in found.items()},
            of(),
        )
        producer.commit_transaction()
    except kafka_errors.KafkaError:
        producer.abort_transaction()
        raise


def forward_once_accepted(
    producer: KafkaProducer,
    target: str,
    found: dict[TopicPartition, list[Any]],
    of: Callable[[], ConsumerGroupMetadata],
) -> None:
    """As the docs say: between two generations a transaction may be refused, and is repeated."""

    def is_accepted() -> bool:
        try:
            forward(producer, target, found, of)
        except REFUSED:
            return False
        return True

    wait_until(is_accepted, "the owner's transaction is accepted")


def some_records(member: DeferredRevokeConsumer) -> dict[TopicPartition, list[Any]]:
    found: dict[TopicPartition, list[Any]] = {}
    while not found:
        found = member.poll(timeout_ms=200)
    return found


def joined(member: DeferredRevokeConsumer) -> bool:
    return parts_of(member).record.member.joined


def test_an_application_that_was_silent_for_too_long_cannot_commit(
    kafka, topic_name, group_id, consumers
):
    """Longer than max_poll_interval_ms in the hands of the application."""
    kafka.create_topic(topic_name)
    kafka.create_topic(f"{topic_name}-out")
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    with transactional_producer(kafka, group_id) as producer:
        found = some_records(member)
        owner = member.group_metadata()
        liveness = parts_of(member).liveness
        allowed_ms, liveness.max_silence_ms = liveness.max_silence_ms, 300
        second = consumers(topic_name)
        again = some_records(second)
        assert losses(member) == 1
        assert member.group_metadata().member_id == owner.member_id
        assert member.group_metadata().generation_id >= owner.generation_id
        with pytest.raises(REFUSED):
            forward(producer, f"{topic_name}-out", found, member.group_metadata)
        liveness.max_silence_ms = allowed_ms
        polled = poll_until(lambda: member.get_lost_partitions() == found.keys(), member)
        assert not records(polled[member])
        with pytest.raises(REFUSED):  # the application has them still, and knows that it has lost
            forward(producer, f"{topic_name}-out", found, member.group_metadata)
        forward_once_accepted(producer, f"{topic_name}-out", again, second.group_metadata)
        (where,) = found
        assert member.committed(where) == 10


@pytest.mark.parametrize("session_timeout_ms", [2_500])
def test_whose_session_has_ended_is_fenced_although_it_has_joined_again(
    kafka, topic_name, group_id, protocol, consumers
):
    """As after a suspension: the next membership begins before any poll knows of the loss."""
    kafka.create_topic(topic_name)
    kafka.create_topic(f"{topic_name}-out")
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    heartbeat = HeartbeatRequest if protocol == "classic" else ConsumerGroupHeartbeatRequest
    with transactional_producer(kafka, group_id) as producer:
        found = some_records(member)
        with held(member, heartbeat, answer=False):
            second = consumers(topic_name)
            again = some_records(second)
        while not (losses(member) == 1 and joined(member)):
            second.poll_membership()
        with pytest.raises(REFUSED):
            forward(producer, f"{topic_name}-out", found, member.group_metadata)
        forward_once_accepted(producer, f"{topic_name}-out", again, second.group_metadata)
        assert [len(values) for values in again.values()] == [10]


def test_who_has_left_is_fenced(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name)
    kafka.create_topic(f"{topic_name}-out")
    kafka.produce(topic_name, [b"x"] * 10)
    member = consumers(topic_name)
    with transactional_producer(kafka, group_id) as producer:
        found = some_records(member)
        member.unsubscribe()
        with pytest.raises(REFUSED):
            forward(producer, f"{topic_name}-out", found, member.group_metadata)
        member.assign(list(found))  # from now on outside the group, unfenced
        forward(producer, f"{topic_name}-out", some_records(member), member.group_metadata)
        (where,) = found
        assert member.committed(where) == 10


@pytest.mark.parametrize("protocol", ["consumer"], indirect=True)
def test_what_was_not_released_in_time_is_fenced_with_what_came_with_it(
    kafka, topic_name, group_id, consumers
):
    """Consumer protocol: the I/O loop gives overdue partitions up while nobody polls."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(f"{topic_name}-out")
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name, max_poll_interval_ms=3_000)
    with transactional_producer(kafka, group_id) as producer:
        poll_until(owns(member, 2), member)
        member.seek_to_beginning()
        found: dict[TopicPartition, list[Any]] = {}
        while len(found) < 2:
            for partition, values in member.poll(timeout_ms=100).items():
                found.setdefault(partition, []).extend(values)
        second = consumers(topic_name)
        wanted: frozenset[TopicPartition] = frozenset()
        while not wanted:
            second.poll_with_rebalance(timeout_ms=20)
            wanted = member.poll_with_rebalance(timeout_ms=20).to_be_revoked
        member.delay_revoke(wanted)
        poll_until(owns(second, 1), second)
        with pytest.raises(REFUSED):
            forward(producer, f"{topic_name}-out", found, member.group_metadata)
        polled = poll_until(lambda: bool(member.get_lost_partitions()), member, second)
        assert lost(polled[member]) == wanted
        kept = {p: values for p, values in found.items() if p not in wanted}
        forward(producer, f"{topic_name}-out", kept, member.group_metadata)


@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_transaction_of_partitions_that_stay_is_accepted_in_the_next_generation(
    kafka, topic_name, group_id, consumers
):
    """The recipe of docs/consumer.md: refused between two generations, then sent once more."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.create_topic(f"{topic_name}-out")
    kafka.produce(topic_name, [b"x"] * 20)
    member = consumers(topic_name, max_poll_records=5)
    poll_until(owns(member, 2), member)
    with transactional_producer(kafka, group_id) as producer:
        member.seek_to_beginning()
        found = some_records(member)
        old = member.group_metadata()
        second = consumers(topic_name)
        with held(member, JoinGroupRequest, answer=True) as holding:
            while not holding.is_set():
                second.poll_membership()
            assert member.group_metadata()[:3] == old[:3], "it cannot know the next one yet"
            with pytest.raises(REFUSED):
                forward(producer, f"{topic_name}-out", found, member.group_metadata)
        wait_until(lambda: member.group_metadata().generation_id > old.generation_id, "the next")
        with pytest.raises(REFUSED):
            forward(producer, f"{topic_name}-out", found, lambda: old)
        forward(producer, f"{topic_name}-out", found, member.group_metadata)
        for where, values in found.items():
            assert member.committed(where) == values[-1].offset + 1
