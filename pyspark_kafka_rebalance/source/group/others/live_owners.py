"""LiveOwnerWatch: the partitions of a group's other live members, for a run with an end.

A run with an end can leave a partition to the member that owns it, but only if that member is
alive: a killed member goes on *owning* its partitions until its session expires. A member was alive
after the run started

* in the classic protocol, if the group has completed a join of ours: for that, every other member
  must rejoin, or its session must expire;
* in the consumer protocol, if its member epoch is that of our join or later;
* in either protocol, if it is still in the group one session timeout after our join.

The first two do not apply if our members are static: a restarted static member takes its place
again without a rebalance.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from kafka.structs import TopicPartition

from ....consumer.group_description import GroupDescription, GroupMember, describe_group
from ...cluster_query import ask_cluster

if TYPE_CHECKING:
    from ...options.source_options import SourceOptions


def owned_by_live_others(
    group: GroupDescription,
    own_ids: Collection[str],
    joined_epoch: int | None,
    session_passed: bool,
) -> frozenset[TopicPartition]:
    """Find the partitions of other members that were alive after ours joined.

    Excludes partitions on their way from one member to another. ``joined_epoch`` is a group epoch
    no older than our join, which rebalanced the group: 0 in the classic protocol, None if our join
    caused no rebalance. ``session_passed``: a session timeout has passed since our join.
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


#: How old an answer may be before other members' ownership is requested again.
_LOOK_EVERY_S = 0.25


class LiveOwnerWatch:
    """Describes the group at intervals, from the time when the run's own members have joined."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._joining_rebalances = not options.consumer_config.get("group_instance_id")
        self._joined_at: float | None = None
        self._joined_epoch: int | None = None
        self._look_at = 0.0
        self._owned: frozenset[TopicPartition] = frozenset()

    def owned(
        self, own_ids: Collection[str], session_timeout_ms: float
    ) -> frozenset[TopicPartition]:
        """Request the partitions of other members that were alive after ours joined.

        Raises KafkaRebalanceError if the brokers do not answer, or refuse to.
        """
        now = time.monotonic()
        if self._joined_at is None:
            self._joined_at = now
        if now < self._look_at:
            return self._owned
        group_id = self._options.group_id
        group = ask_cluster(
            self._options,
            f"who owns the partitions of group {group_id!r}",
            lambda admin: describe_group(admin, group_id),
            is_start=False,
        )
        if self._joining_rebalances and self._joined_epoch is None:
            self._joined_epoch = group.epoch or 0
        session_passed = now - self._joined_at > session_timeout_ms / 1000
        self._owned = owned_by_live_others(group, own_ids, self._joined_epoch, session_passed)
        self._look_at = time.monotonic() + _LOOK_EVERY_S
        return self._owned
