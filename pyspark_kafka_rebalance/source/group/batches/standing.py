"""What the group says of the ranges of a batch that the sink is about to decide. Pure.

A batch and its offsets are one transaction. So the group has all of the batch or nothing of it, as
far as this query has delivered; and what others have delivered of it must not come again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from kafka.structs import TopicPartition

from ....consumer.offsets.commit_metadata import GroupCommit
from ....consumer.offsets.offset_set import Gap, less
from ....fetch.offset_range import OffsetRange

Standing: TypeAlias = Literal["free", "taken", "decided"]


def standing(reads: Sequence[OffsetRange], commit: GroupCommit | None, query: str) -> Standing:
    """Return what the group has of these ranges of one partition.

    free: nothing. decided: everything, delivered by this query. taken: some or all of it, delivered
    by others.
    """
    if commit is None:
        return "free"
    left, origin = commit
    pieces = [Gap(r.start, r.end) for r in reads if r.start < r.end]
    unread = [gap for piece in pieces for gap in left.between(*piece)]
    if unread == pieces:
        return "free"
    if unread or origin is None:
        return "taken"
    own = [Gap(*found) for found in origin.delivered_by(query, left.live)]
    return "taken" if less(pieces, own) else "decided"


def taken(standings: Mapping[TopicPartition, Standing]) -> frozenset[TopicPartition]:
    """The partitions of a batch that others have delivered; none if the batch is decided."""
    if "decided" in standings.values():
        return frozenset()
    return frozenset(p for p, found in standings.items() if found == "taken")
