"""kafka-python's traps, each by what went wrong in it.

Others of them are in test_deferred.py: short polls, the fenced static member, the listener that
could not commit.
"""

from __future__ import annotations

import random
import socket
from contextlib import closing

import pytest
from group_members import (
    PATIENCE_S,
    counted,
    held,
    lose,
    lost,
    owns,
    poll_until,
    records,
    share,
    wait_until,
)
from kafka import errors as kafka_errors
from kafka.protocol.consumer import JoinGroupRequest, OffsetCommitRequest
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.membership import classic

classic_only = pytest.mark.parametrize("protocol", ["classic"], indirect=True)


@classic_only
def test_a_topic_that_appears_during_a_join_is_joined_next(kafka, topic_name, consumers):
    """The need to rejoin was forgotten when metadata changed while a join was under way."""
    kafka.create_topic(f"{topic_name}.a", partitions=1)
    member = consumers(metadata_max_age_ms=200)
    member.subscribe(pattern=f"^{topic_name}")
    poll_until(owns(member, 1), member)
    with held(member, JoinGroupRequest, answer=True) as joining:
        kafka.create_topic(f"{topic_name}.b", partitions=1)
        assert joining.wait(PATIENCE_S)
        kafka.create_topic(f"{topic_name}.c", partitions=1)
        wait_until(
            lambda: f"{topic_name}.c" in member._io.subscription.topics, "the new topic's metadata"
        )
    poll_until(owns(member, 3), member)


@classic_only
def test_fewer_topics_are_joined_with_at_once(kafka, topic_name, consumers, monkeypatch):
    """Nothing told the membership, which looked for itself every five seconds."""
    monkeypatch.setattr(classic, "IDLE_S", 600.0)
    topics = [f"{topic_name}.{name}" for name in "ab"]
    for topic in topics:
        kafka.create_topic(topic, partitions=1)
    member = consumers(*topics)
    poll_until(owns(member, 2), member)
    member.subscribe(topics[:1])
    poll_until(owns(member, 1), member)


def test_commit_async_without_a_coordinator_does_not_report_a_success_that_was_none(
    kafka, topic_name, group_id, consumers
):
    """The future was done when the coordinator was found, before anything was committed."""
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    partition = TopicPartition(topic_name, 0)
    with held(member, OffsetCommitRequest, answer=False) as committing:
        member._coordinator.coordinator_dead("the test says so")
        future = member.commit_async({partition: OffsetAndMetadata(7, "", -1)})
        assert committing.wait(PATIENCE_S)
        assert not future.is_done
    wait_until(lambda: future.is_done, "the commit's answer")
    assert future.succeeded()
    assert kafka.committed(group_id) == {partition: 7}


def test_commit_async_of_what_is_lost_reports_a_failure(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    answers = []
    kafka.suspend()  # it does not join again before it commits
    try:
        lose(member, keep_member_id=True)
        member._coordinator.coordinator_dead("the test says so")
        member.commit_async(
            {TopicPartition(topic_name, 0): OffsetAndMetadata(7, "", -1)},
            callback=lambda _, answer: answers.append(answer),
        )
    finally:
        kafka.resume()
    poll_until(lambda: bool(answers), member)
    assert isinstance(answers[0], Exception)
    assert kafka.committed(group_id) == {}


def test_commit_processed_without_a_coordinator_arrives(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    partition = TopicPartition(topic_name, 0)
    member._coordinator.coordinator_dead("the test says so")
    member.commit_processed({partition: 7})
    assert member.drain(PATIENCE_S * 1000)
    assert kafka.committed(group_id) == {partition: 7}
    assert member.acknowledged(partition) == 7


def test_commit_callbacks_come_from_polls_and_in_order(kafka, topic_name, consumers):
    """They came in reverse order; and only kafka-python's own coordinator called them."""
    kafka.create_topic(topic_name, partitions=1)
    member = consumers(topic_name)
    poll_until(owns(member, 1), member)
    partition = TopicPartition(topic_name, 0)
    called = []
    futures = [
        member.commit_async(
            {partition: OffsetAndMetadata(offset, "", -1)},
            callback=lambda offsets, answer: called.append((offsets[partition].offset, answer)),
        )
        for offset in (1, 2, 3)
    ]
    wait_until(lambda: all(future.is_done for future in futures), "the answers")
    poll_until(lambda: len(called) >= 3, member)
    assert called == [(1, None), (2, None), (3, None)]


def test_many_commits_go_one_at_a_time_and_the_last_arrives(kafka, topic_name, group_id, consumers):
    """With more than five in flight the library failed or dropped the last."""
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    with counted(member, OffsetCommitRequest) as sent:
        with held(member, OffsetCommitRequest, answer=True) as committing:
            member.commit_processed({TopicPartition(topic_name, 1): 1})
            assert committing.wait(PATIENCE_S)
            for offset in range(2, 201):
                member.commit_processed({TopicPartition(topic_name, offset % 2): offset})
            assert len(sent) == 1, "two in flight"
        assert member.drain(PATIENCE_S * 1000)
        assert len(sent) == 2, "not merged"
    assert kafka.committed(group_id) == {
        TopicPartition(topic_name, 0): 200,
        TopicPartition(topic_name, 1): 199,
    }


def test_close_drains_what_is_in_flight_and_what_waits(kafka, topic_name, group_id, consumers):
    kafka.create_topic(topic_name, partitions=2)
    member = consumers(topic_name)
    poll_until(owns(member, 2), member)
    first, second = (TopicPartition(topic_name, n) for n in range(2))
    member.commit_processed({first: 1})
    member.commit_processed({second: 8})
    member.commit_processed({first: 9})
    member.close()
    assert kafka.committed(group_id) == {first: 9, second: 8}


@classic_only
def test_releases_that_come_together_share_one_join(kafka, topic_name, consumers):
    """Each opened its own JoinGroup, and each join round costs a heartbeat interval."""
    kafka.create_topic(topic_name, partitions=6)
    patient = {"heartbeat_interval_ms": 60_000, "session_timeout_ms": 180_000}
    first = consumers(topic_name, **patient)
    poll_until(owns(first, 6), first)
    second = consumers(topic_name, **patient)
    poll_until(lambda: len(first._ownership.revoking) == 3, first, second, hold=True)
    waiting = sorted(first._ownership.revoking)
    with counted(first, JoinGroupRequest) as joins:
        while waiting:  # one a poll
            waiting.pop()
            result = first.poll_with_rebalance(timeout_ms=20)
            if result.to_be_revoked:
                assert first.delay_revoke(sorted(result.to_be_revoked)[: len(waiting)])
            assert not joins
        poll_until(share(first, second, partitions=6), first, second)
        assert len(joins) == 1


@classic_only
def test_one_slow_partition_does_not_hold_the_others_back(kafka, topic_name, consumers):
    """The other side of sharing a join: it must not wait for what may take minutes."""
    kafka.create_topic(topic_name, partitions=6)
    first = consumers(topic_name)
    poll_until(owns(first, 6), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 3, first, second, hold=True)
    slow = min(first._ownership.revoking)

    def done_but_one() -> bool:
        first.delay_revoke({slow})
        return len(second.assignment()) == 2

    poll_until(done_but_one, first, second)
    assert slow in first.assignment()
    poll_until(share(first, second, partitions=6), first, second)


@classic_only
def test_a_release_while_a_join_is_under_way_asks_for_one_more(kafka, topic_name, consumers):
    """That join had claimed the partition as owned, so its new owner never got it."""
    kafka.create_topic(topic_name, partitions=4)
    first = consumers(topic_name)
    poll_until(owns(first, 4), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 2, first, second, hold=True)
    moving = first._ownership.revoking
    with held(first, JoinGroupRequest, answer=True) as joining:
        third = consumers(topic_name)  # makes the group join again
        poll_until(joining.is_set, first, second, third, hold=True)
        poll_until(lambda: not first._ownership.revoking, first, second, third)
        assert first.assignment().isdisjoint(moving)
    poll_until(share(first, second, third, partitions=4), first, second, third)


def test_the_gate_of_a_revoking_partition_outlives_an_assignment(
    kafka, topic_name, protocol, consumers
):
    """The library lifts it from everything that stays with every new assignment; and a leader
    that reported its last assignment, not what it owns, had its held partitions given away.

    A third member arrives in a deferral.
    """
    kafka.create_topic(topic_name, partitions=6)
    first = consumers(topic_name)
    poll_until(owns(first, 6), first)
    second = consumers(topic_name)
    poll_until(lambda: len(first._ownership.revoking) == 3, first, second, hold=True)
    moving, before = first._ownership.revoking, first.generation
    third = consumers(topic_name)
    poll_until(lambda: third.generation > before, first, second, third, hold=True)
    if protocol == "classic":  # in the other the epoch waits for the release
        poll_until(lambda: first.generation > before, first, second, third, hold=True)
    assert moving <= first._ownership.revoking
    kept = first.assignment() - first._ownership.revoking
    kafka.produce(topic_name, [b"x"] * 12)
    polled = {}

    def all_of_the_kept() -> bool:
        return {(p, n) for p in kept for n in range(2)} <= set(records(polled[first]))

    poll_until(all_of_the_kept, first, second, third, hold=True, results=polled)
    assert second.assignment() | third.assignment() == frozenset(), "given away while held"
    results = poll_until(share(first, second, third, partitions=6), first, second, third)
    assert not any(map(lost, results.values()))


def test_a_leader_that_the_metadata_do_not_list_costs_no_records(
    kafka, topic_name, consumers, monkeypatch
):
    """A poll raised after it had taken records, and nothing was fetched of that broker any more."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"%d" % number for number in range(50)])
    member = consumers(topic_name)
    manager = member._io.loop._manager
    find, read = manager.get_connection, []
    unlisted = 0

    def fail(node_id, *arguments, **named):
        nonlocal unlisted
        if node_id == kafka.broker_ids[0]:
            unlisted += 1
            raise kafka_errors.UnknownBrokerIdError(node_id)
        return find(node_id, *arguments, **named)

    def read_some(more):
        for _ in range(more):
            result = member.poll_with_rebalance(timeout_ms=50, max_records=10)
            read.extend(r.offset for found in result.records.values() for r in found)

    wait_until(lambda: read_some(1) or read, "the first are read")
    monkeypatch.setattr(manager, "get_connection", fail)
    wait_until(lambda: read_some(1) or unlisted > 2, "the others are taken, and more asked for")
    monkeypatch.setattr(manager, "get_connection", find)
    kafka.produce(topic_name, [b"more"] * 50)
    wait_until(lambda: read_some(1) or len(read) >= 100, "the broker is asked again")
    assert read == list(range(100))


def test_a_silent_bootstrap_server_does_not_use_up_the_time_for_the_others(
    kafka, topic, group_id, monkeypatch
):
    """It did, if kafka-python happened to pick it first."""
    monkeypatch.setattr(random, "choice", lambda servers: servers[0])
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = [f"127.0.0.1:{silent.getsockname()[1]}", kafka.bootstrap_servers]
        with closing(
            DeferredRevokeConsumer(
                group_id=group_id, bootstrap_servers=servers, bootstrap_timeout_ms=8_000
            )
        ) as consumer:
            assert consumer.existing_topics(8_000) >= {topic}
