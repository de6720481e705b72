"""Snapshot: what a planner knows of one batch and of who owns its partitions. Pure.

The text is one line of JSON, versioned: planner and sink are processes of one driver, but a driver
may be restarted with a newer release while a worker of the older one still runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange
from ..offsets.offset_json import by_topic

State: TypeAlias = Literal["held", "lost", "decided"]
Outcome: TypeAlias = Literal["committed", "dropped"]


class UnknownBatchError(Exception):
    """The batch is none of this run's."""


@dataclass(frozen=True)
class MemberOffsets:
    """The offsets that one member of the group commits with the batch.

    Attributes
    ----------
    member_id, generation, instance_id
        As TxnOffsetCommit takes them (KIP-447): the coordinator refuses another generation, or
        member epoch. ``instance_id`` is None for a dynamic member.
    offsets : mapping of TopicPartition to (int, str)
        The next offset, and the metadata of the commit: its ``Origin``, then the gaps (KIP-333).
    """

    member_id: str
    generation: int
    instance_id: str | None
    offsets: Mapping[TopicPartition, tuple[int, str]]


@dataclass(frozen=True)
class Snapshot:
    """One batch of one source, at one moment.

    Attributes
    ----------
    run : str
        The run that answers: the one that planned the batch, or the one that replays it.
    group_id, cluster_id
        Where its offsets are committed; ``cluster_id`` is None if no broker has told it.
    state : {"held", "lost", "decided"}
        held: the members own all of the batch's partitions, and the group has none of its records.
        lost: not so for some partitions, which are in ``lost``. decided: the group has the batch,
        by a commit of this query in a transaction.
    members : tuple of MemberOffsets
        If held: who owns the partitions. Empty if the batch reads nothing, and with ``assign``.
    ranges : mapping
        What the batch reads of each partition, in order; without what the replay leaves out.
    lost : frozenset of TopicPartition
    fenced : bool
        Whether the group checks who commits. False with ``assign``: its offsets are not part of the
        transaction, and the planner commits them itself.
    """

    run: str
    group_id: str
    cluster_id: str | None
    state: State
    members: tuple[MemberOffsets, ...]
    ranges: Mapping[TopicPartition, tuple[OffsetRange, ...]]
    lost: frozenset[TopicPartition]
    fenced: bool


def snapshot_to_json(snapshot: Snapshot) -> dict[str, Any]:
    """Return the snapshot as JSON values."""
    return {
        "run": snapshot.run,
        "group_id": snapshot.group_id,
        "cluster_id": snapshot.cluster_id,
        "state": snapshot.state,
        "members": [
            {
                "member_id": member.member_id,
                "generation": member.generation,
                "instance_id": member.instance_id,
                "offsets": by_topic({p: list(at) for p, at in member.offsets.items()}),
            }
            for member in snapshot.members
        ],
        "ranges": by_topic(
            {p: [[one.start, one.end] for one in found] for p, found in snapshot.ranges.items()}
        ),
        "lost": [list(partition) for partition in sorted(snapshot.lost)],
        "fenced": snapshot.fenced,
    }


def parse_snapshot(value: Mapping[str, Any]) -> Snapshot:
    """Parse a result of :func:`snapshot_to_json`; unknown fields are ignored."""
    return Snapshot(
        run=value["run"],
        group_id=value["group_id"],
        cluster_id=value["cluster_id"],
        state=value["state"],
        members=tuple(
            MemberOffsets(
                one["member_id"],
                one["generation"],
                one["instance_id"],
                {p: (offset, text) for p, (offset, text) in _by_partition(one["offsets"]).items()},
            )
            for one in value["members"]
        ),
        ranges={
            p: tuple(OffsetRange(p.topic, p.partition, *bounds) for bounds in found)
            for p, found in _by_partition(value["ranges"]).items()
        },
        lost=frozenset(TopicPartition(*partition) for partition in value["lost"]),
        fenced=value["fenced"],
    )


def _by_partition(nested: Mapping[str, Mapping[str, Any]]) -> dict[TopicPartition, Any]:
    return {
        TopicPartition(topic, int(number)): value
        for topic, by_number in nested.items()
        for number, value in by_number.items()
    }
