"""Since when members have had to give up partitions, as successive reports show. Pure.

Brokers report requested revokes, but not since when. A revoke that starts between two reports is
dated by the second one.
"""

from __future__ import annotations

from collections.abc import Mapping

from kafka.structs import TopicPartition

from ..consumer.group_description import CLASSIC, GroupDescription

#: By member id and partition; None: it had started before the first report.
Revokes = Mapping[tuple[str, TopicPartition], float | None]

#: States of a classic group in which the coordinator does not return the members' partitions.
_NOTHING_TOLD = ("PreparingRebalance", "CompletingRebalance")


def follow(before: Revokes | None, group: GroupDescription, at: float) -> Revokes | None:
    """The partitions being revoked now, and since when (``at``, seconds since 1970).

    ``before`` is the previous report's result; None if none has shown the members' partitions yet.
    """
    if group.protocol == CLASSIC and group.state in _NOTHING_TOLD:
        return before
    now = [(member.member_id, p) for member in group.members for p in member.revoking]
    if before is None:
        return dict.fromkeys(now)
    return {revoke: before.get(revoke, at) for revoke in now}
