"""The coordinator moves while a group joins: its successor may know an older generation.

A coordinator writes down a generation when the leader's assignment has come. Until then its end
takes the generation with it, whoever has joined that: to the successor the group is in the one
before, and every member has what it had.
"""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from group_members import held, lost, move_coordinators, owns, poll_until, share
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, SyncGroupRequest

from pyspark_kafka_rebalance.consumer.messages import ConsumerGroupHeartbeatRequest

pytestmark = pytest.mark.each_protocol

#: Where a join is when the coordinator moves: the request, and whether it was answered.
STEPS = {
    "a JoinGroup is not sent": ("classic", JoinGroupRequest, False),
    "a JoinGroup is answered": ("classic", JoinGroupRequest, True),
    "a SyncGroup is not sent": ("classic", SyncGroupRequest, False),
    "a SyncGroup is answered": ("classic", SyncGroupRequest, True),
    "a Heartbeat is not sent": ("classic", HeartbeatRequest, False),
    "a member's heartbeat is not sent": ("consumer", ConsumerGroupHeartbeatRequest, False),
    "a member's heartbeat is answered": ("consumer", ConsumerGroupHeartbeatRequest, True),
}


#: Nobody may be thought dead because of a move.
outlive_moves = pytest.mark.parametrize("session_timeout_ms", [60_000])


@outlive_moves
@pytest.mark.parametrize(
    ("protocol", "request_type", "answer"), STEPS.values(), indirect=["protocol"], ids=STEPS
)
def test_the_coordinator_moves_in_a_join_when(
    quorum, topic_name, quorum_members, network, request_type, answer
):
    """... nobody loses what it owns, and no partition goes to another before it is released."""
    quorum.create_topic(topic_name, partitions=6)
    # Time for a heartbeat between the join that failed and the next: it names a generation that
    # the successor does not know.
    severed = {"proxy_url": network.url, "retry_backoff_ms": 1_000}
    first = quorum_members(topic_name, **severed)
    poll_until(owns(first, 6), first)
    second = quorum_members(topic_name, **severed)
    poll_until(share(first, second, partitions=6), first, second)
    stopped = network.stop_at(request_type, answer=answer)
    members = (first, second, quorum_members(topic_name))
    polled = {}
    poll_until(stopped.is_set, *members, results=polled)
    network.cut()
    move_coordinators(quorum)
    network.mend()
    poll_until(share(*members, partitions=6), *members, results=polled)
    assert not any(map(lost, polled.values()))


@outlive_moves
@pytest.mark.parametrize("protocol", ["classic"], indirect=True)
def test_a_join_is_answered_by_one_coordinator_and_synced_with_the_next(
    quorum, topic_name, quorum_members
):
    """ILLEGAL_GENERATION was taken for a loss of all, although nobody else had got any of it."""
    quorum.create_topic(topic_name, partitions=6)
    first = quorum_members(topic_name)
    poll_until(owns(first, 6), first)
    second = quorum_members(topic_name)
    poll_until(share(first, second, partitions=6), first, second)
    members, polled = (first, second), {}
    with ExitStack() as answers:
        joined = [
            answers.enter_context(held(member, JoinGroupRequest, answer=True)) for member in members
        ]
        third = quorum_members(topic_name)
        poll_until(lambda: all(j.is_set() for j in joined), *members, third, results=polled)
        before = {member._io.join_node for member in members}
        move_coordinators(quorum)
        poll_until(
            lambda: before.isdisjoint(m._io.join_node for m in members),
            *members,
            third,
            results=polled,
        )
    members = (*members, third)
    poll_until(share(*members, partitions=6), *members, results=polled)
    assert not any(map(lost, polled.values()))
