"""Which partitions a run with an end may leave to others: those of members that are alive."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.consumer.group_description import GroupDescription, GroupMember
from pyspark_kafka_rebalance.source.group.others.live_owners import owned_by_live_others

FIRST, SECOND = (frozenset({TopicPartition("orders", n)}) for n in range(2))
JOINED_EPOCH = 7


def owned(member: GroupMember, joined_epoch: int | None, session_passed: bool = False):
    group = GroupDescription("Stable", (member, GroupMember("q", SECOND, None, "mine", SECOND)))
    return owned_by_live_others(group, {"mine"}, joined_epoch, session_passed)


def other(epoch: int | None = None, target: frozenset[TopicPartition] = FIRST) -> GroupMember:
    return GroupMember("o", FIRST, None, "other", target, epoch)


@pytest.mark.parametrize("session_passed", [False, True])
def test_a_member_whose_epoch_is_older_than_the_join_may_be_dead(session_passed):
    """Until it has been in the group for a session since then."""
    left = owned(other(JOINED_EPOCH - 1), JOINED_EPOCH, session_passed)
    assert left == (FIRST if session_passed else frozenset())
    assert owned(other(JOINED_EPOCH), JOINED_EPOCH, session_passed) == FIRST


@pytest.mark.parametrize("session_passed", [False, True])
def test_without_a_rebalance_of_our_own_nobody_is_known_to_be_alive(session_passed):
    """A restarted static member takes its place again."""
    for epoch in (None, JOINED_EPOCH):
        left = owned(other(epoch), None, session_passed)
        assert left == (FIRST if session_passed else frozenset())


def test_a_classic_member_has_rejoined_with_ours():
    assert owned(other(), 0) == FIRST


def test_what_is_on_its_way_is_left_to_nobody():
    assert owned(other(JOINED_EPOCH, target=SECOND), JOINED_EPOCH, True) == frozenset()
