"""What the other, live members of a group own, for a run that ends. Pure.

A run with an end may leave to another member what that one owns, if it is alive: a member that was
killed goes on owning its partitions until its session ends. A member is alive after the run began

* in the classic protocol, if the group has completed a join of ours: that takes a join of every
  member, or the end of its session;
* in the consumer protocol, if its epoch is one that began with our join or later;
* in either, if it is still there when a session has passed since our join.

The first two do not hold of static members of ours: a restarted one takes its place again without a
rebalance.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition

from ...consumer.group_description import GroupDescription, GroupMember


def owned_by_live_others(
    group: GroupDescription,
    own_ids: Collection[str],
    joined_epoch: int | None,
    session_passed: bool,
) -> frozenset[TopicPartition]:
    """Find what other members own that were alive after ours joined.

    Parameters
    ----------
    group : GroupDescription
        As described after our members joined.
    own_ids : collection of str
        The member ids of our own members.
    joined_epoch : int or None
        A group epoch no older than our join, which rebalanced the group; 0 in the classic protocol.
        None if our join rebalanced nothing.
    session_passed : bool
        Whether a session has passed since.

    Returns
    -------
    frozenset of TopicPartition
        Without what is on its way from one member to another.
    """
    return frozenset(
        partition
        for member in group.members
        if member.member_id not in own_ids and (session_passed or _rejoined(member, joined_epoch))
        for partition in member.assigned & member.target
    )


def _rejoined(member: GroupMember, joined_epoch: int | None) -> bool:
    if joined_epoch is None:
        return False
    return member.epoch is None or member.epoch >= joined_epoch
