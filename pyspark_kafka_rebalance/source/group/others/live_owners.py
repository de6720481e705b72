"""What the other live members of a group own, for a run with an end. Pure.

A run with an end can leave a partition to the member that owns it, but only if that member is
alive: a killed member goes on owning its partitions until its session expires. A member was alive
after the run began

* in the classic protocol, if the group has completed a join of ours: for that, every other member
  must rejoin, or its session must expire;
* in the consumer protocol, if its member epoch is that of our join or later;
* in either protocol, if it is still in the group one session timeout after our join.

The first two do not apply if our members are static: a restarted static member takes its place
again without a rebalance.
"""

from __future__ import annotations

from collections.abc import Collection

from kafka.structs import TopicPartition

from ....consumer.group_description import GroupDescription, GroupMember


def owned_by_live_others(
    group: GroupDescription,
    own_ids: Collection[str],
    joined_epoch: int | None,
    session_passed: bool,
) -> frozenset[TopicPartition]:
    """Find what those other members own that were alive after ours joined.

    Parameters
    ----------
    group : GroupDescription
        As described after our members joined.
    own_ids : collection of str
        The member ids of our own members.
    joined_epoch : int or None
        A group epoch no older than our join, which rebalanced the group; 0 in the classic protocol.
        None if our join caused no rebalance.
    session_passed : bool
        Whether a session timeout has passed since our join.

    Returns
    -------
    frozenset of TopicPartition
        Without partitions on their way from one member to another.
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
