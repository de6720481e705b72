"""Since when members are to give up what they hold, as far as looks at the group tell. Pure.

Brokers tell what is to be revoked, and not since when: a revoke whose beginning falls between two
looks of ours begins with the second one.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from ..consumer.group_description import CLASSIC, GroupDescription

#: By member id and partition; None: it had begun before the first look.
Revokes = Mapping[tuple[str, TopicPartition], float | None]

#: States of a classic group in which the coordinator tells no member's partitions.
_NOTHING_TOLD = ("PreparingRebalance", "CompletingRebalance")


def follow(before: Revokes | None, group: GroupDescription, at: float) -> Revokes | None:
    """What is being revoked now.

    Parameters
    ----------
    before : Revokes or None
        As of the look before; None if no look has told any yet.
    group : GroupDescription
        What this look found.
    at : float
        When.
    """
    if group.protocol == CLASSIC and group.state in _NOTHING_TOLD:
        return before
    now = [(member.member_id, p) for member in group.members for p in member.revoking]
    if before is None:
        return dict.fromkeys(now)
    return {revoke: before.get(revoke, at) for revoke in now}
