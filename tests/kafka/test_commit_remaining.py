"""What is left of a partition travels with its commit, on a real broker (KIP-333)."""

from __future__ import annotations

import pytest
from group_members import parts_of, wait_until
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import GroupCommit, Remaining
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import PartitionsLostError
from pyspark_kafka_rebalance.source.group.clients.assign_client import AssignClient

LATER_MS = 10_000


def steps(tp):
    """As a query catches up: each with the lowest offset, or with the gaps alone."""
    return [
        Remaining(400, (Gap(70, 120), Gap(300, 310))),
        Remaining(500, (Gap(70, 120), Gap(300, 310))),
        Remaining(500, (Gap(100, 120), Gap(300, 310))),
        Remaining(900, (Gap(305, 310),)),
        Remaining(950),
    ]


def commit_each(owner, asked, tp):
    for left in steps(tp):
        owner.commit_remaining({tp: left})
        owner.commit_remaining({tp: left})
        wait_until(lambda left=left: owner.acknowledged_remaining(tp) == left, "it is committed")
        assert asked.group_commits([tp], LATER_MS) == {tp: GroupCommit(left)}
        assert asked.committed_offsets([tp], LATER_MS) == {tp: left.committed()}


def commit_while_it_is_not_known(owner, lane, tp, monkeypatch):
    """As of a broker that has just started: the same was never committed, and a revoke waited."""
    commit, refused = lane.commit, []

    async def refuse_once(member, offsets):
        if not refused:
            refused.append(offsets)
            return dict.fromkeys(offsets, kafka_errors.UnknownTopicOrPartitionError)
        return await commit(member, offsets)

    for left in (Remaining(9, (Gap(6, 8),)), Remaining(9, (Gap(6, 7),))):
        refused.clear()

        def is_committed(left=left):
            owner.poll_membership()
            owner.take_unknown()
            owner.commit_remaining({tp: left})
            return owner.acknowledged_remaining(tp) == left

        with monkeypatch.context() as patched:
            patched.setattr(lane, "commit", refuse_once)
            wait_until(is_committed, "it is committed")
        assert refused


def test_a_member_commits_what_is_left(kafka, topic_name, consumers, protocol, monkeypatch):
    kafka.create_topic(topic_name, partitions=1)
    tp = TopicPartition(topic_name, 0)
    member = consumers(topic_name)
    wait_until(lambda: member.poll_membership() and tp in member.assignment(), "it owns the topic")
    commit_each(member, member, tp)
    member.forget_commits([tp])
    member.commit_remaining({tp: Remaining(5)})
    wait_until(lambda: member.acknowledged_remaining(tp) == Remaining(5), "it moves back")
    lane = parts_of(member).commits._lane
    commit_while_it_is_not_known(member, lane, tp, monkeypatch)
    with pytest.raises(PartitionsLostError):
        member.commit_remaining({TopicPartition(topic_name, 7): Remaining(3)})


def test_so_does_who_names_partitions(kafka, topic_name, group_id, monkeypatch):
    kafka.create_topic(topic_name, partitions=1)
    tp = TopicPartition(topic_name, 0)
    client = DeferredRevokeConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group_id, session_timeout_ms=6_000
    )
    owner = AssignClient(client, [tp])
    try:
        commit_each(owner, owner, tp)
        owner.forget_commits([tp])
        owner.commit_remaining({tp: Remaining(5)})
        wait_until(lambda: owner.acknowledged_remaining(tp) == Remaining(5), "it moves back")
        commit_while_it_is_not_known(owner, owner._commits._loop._lane, tp, monkeypatch)
    finally:
        owner.close(timeout_ms=1_000)
