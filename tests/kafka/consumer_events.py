"""Judges of the events of verifiable consumers, ours and Java's. Pure.

The invariants are those of Kafka's system tests (``kafkatest``: ``verifiable_consumer.py``,
``verifiable_consumer_test.py``), and one that those only log: between members, too, a partition
goes on exactly where the group's committed offset says.

* :class:`MemberState` follows one member and refuses what it may never do.
* :func:`judge` looks at the whole group afterwards, in the order of time.

Events are those of ``verifiable_events.py``, and ``killed``, which the tests add when they kill.
"""

from __future__ import annotations

import enum
import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kafka.structs import TopicPartition

Event = Mapping[str, Any]


class MemberError(AssertionError):
    """A member did what no member may ever do."""


class Phase(enum.Enum):
    """Where a member stands, by the names of Kafka's handlers."""

    STARTED = "started"
    JOINED = "joined"
    REBALANCING = "rebalancing"
    DEAD = "dead"


def partitions_of(event: Event) -> list[TopicPartition]:
    """The partitions that an event names."""
    named = event.get("partitions", event.get("offsets", ()))
    return [TopicPartition(one["topic"], one["partition"]) for one in named]


@dataclass
class MemberState:
    """One member as its own events tell it; a new one for each process.

    Parameters
    ----------
    consumer_protocol : bool
        Java's member of that protocol reads on while a rebalance goes on, and one that is stopped
        in the midst of a revoke may tell of it twice. Kafka's handler lets it, too.

    Raises
    ------
    MemberError
        From :meth:`apply`.
    """

    consumer_protocol: bool = False
    phase: Phase = Phase.STARTED
    assignment: set[TopicPartition] = field(default_factory=set)
    position: dict[TopicPartition, int] = field(default_factory=dict)
    assignments: int = 0  # how many were told
    revocations: int = 0
    lost: set[TopicPartition] = field(default_factory=set)

    def apply(self, event: Event) -> None:
        """Follow the next event of this member."""
        name = event["name"]
        if self.phase is Phase.DEAD and name != "shutdown_requested":
            # Java's shutdown hook may print that one behind its last line.
            raise MemberError(f"{name} after the end")
        handle = getattr(self, f"_{name}", None)
        if handle is not None:  # names that it does not know mean nothing, as in Kafka's
            handle(event)

    def _partitions_assigned(self, event: Event) -> None:
        partitions = partitions_of(event)
        self._check(not self.assignment & set(partitions), "assigned twice", event)
        self.assignments += 1
        self.assignment |= set(partitions)
        self.phase = Phase.JOINED

    def _partitions_revoked(self, event: Event) -> None:
        partitions = partitions_of(event)
        if not self.consumer_protocol:
            self._check(self.assignment >= set(partitions), "revoked without being owned", event)
            self.phase = Phase.REBALANCING
        self.revocations += 1
        self.assignment -= set(partitions)
        for partition in partitions:
            self.position.pop(partition, None)

    def _partitions_lost(self, event: Event) -> None:
        self.lost |= set(partitions_of(event))

    def _records_consumed(self, event: Event) -> None:
        self._check(self.phase is Phase.JOINED, f"records while {self.phase.value}", event)
        self._check(self.assignment >= set(partitions_of(event)), "not owned", event)
        for partition, batch in zip(partitions_of(event), event["partitions"], strict=True):
            expected = self.position.get(partition, batch["minOffset"])
            self._check(expected == batch["minOffset"], f"expected offset {expected}", event)
            self.position[partition] = batch["maxOffset"] + 1

    def _offsets_committed(self, event: Event) -> None:
        if not event["success"]:
            return
        self._check(self.assignment >= set(partitions_of(event)), "not owned", event)
        for partition, commit in zip(partitions_of(event), event["offsets"], strict=True):
            self._check(
                commit["offset"] <= self.position.get(partition, -1), "ahead of its position", event
            )

    def _shutdown_complete(self, event: Event) -> None:
        self.phase = Phase.DEAD
        self.assignment = set()

    _killed = _shutdown_complete

    @staticmethod
    def _check(holds: bool, what: str, event: Event) -> None:
        if not holds:
            raise MemberError(f"{what}: {event}")


class Redelivery(NamedTuple):
    """Records that a new owner consumed again, because the one before it left them uncommitted."""

    partition: TopicPartition
    count: int
    left_by: str
    last_commit_failed: bool  # that is, that member knew


@dataclass
class Verdict:
    """What the group did, over all its members.

    Attributes
    ----------
    overlaps : list of str
        A partition had two owners at once.
    jumps : list of str
        A new owner began elsewhere than between the group's committed offset and the position of
        the owner before it.
    redelivered : list of Redelivery
        Records that were consumed again.
    position : dict
        The offset behind the last record consumed.
    committed : dict
        As the members were told.
    """

    overlaps: list[str] = field(default_factory=list)
    jumps: list[str] = field(default_factory=list)
    redelivered: list[Redelivery] = field(default_factory=list)
    position: dict[TopicPartition, int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=dict)


def judge(histories: Mapping[str, Sequence[Event]]) -> Verdict:
    """Judge the group.

    Parameters
    ----------
    histories : mapping
        The events of each member, in its order. Their timestamps are of one clock. A member tells
        of a revoke before it lets go, so that of one millisecond the assignments come last.
    """
    verdict = Verdict()
    owners: dict[TopicPartition, str] = {}
    at: dict[tuple[str, TopicPartition], int] = {}
    readers: dict[TopicPartition, str] = {}  # the last one
    failed: set[tuple[str, TopicPartition]] = set()
    for member, event in _in_order_of_time(histories):
        name = event["name"]
        if name == "partitions_assigned":
            for partition in partitions_of(event):
                if partition in owners:
                    told = f"{partition} of {owners[partition]} is {member}'s, too: {event}"
                    verdict.overlaps.append(told)
                owners[partition] = member
        elif name in ("partitions_revoked", "shutdown_complete", "killed"):
            mine = {partition for partition, owner in owners.items() if owner == member}
            gone = set(partitions_of(event)) if name == "partitions_revoked" else mine
            for partition in gone:
                at.pop((member, partition), None)
            for partition in gone & mine:
                del owners[partition]
        elif name == "records_consumed":
            for partition, batch in zip(partitions_of(event), event["partitions"], strict=True):
                if (member, partition) not in at:
                    left_by = readers.get(partition, "")
                    before = verdict.position.get(partition, 0)
                    committed = verdict.committed.get(partition, 0)
                    begins = batch["minOffset"]
                    if not committed <= begins <= before:
                        told = f"{partition} at {begins}, not in {committed} to {before}"
                        verdict.jumps.append(f"{member} begins {told}")
                    if begins < before:
                        again = (left_by, (left_by, partition) in failed)
                        verdict.redelivered.append(Redelivery(partition, before - begins, *again))
                readers[partition] = member
                at[member, partition] = batch["maxOffset"] + 1
                reached = verdict.position.get(partition, 0)
                verdict.position[partition] = max(reached, batch["maxOffset"] + 1)
        elif name == "offsets_committed":
            for partition, commit in zip(partitions_of(event), event["offsets"], strict=True):
                if event["success"]:
                    verdict.committed[partition] = commit["offset"]
                    failed.discard((member, partition))
                else:
                    failed.add((member, partition))
    return verdict


def _in_order_of_time(
    histories: Mapping[str, Sequence[Event]],
) -> Iterable[tuple[str, Event]]:
    streams = [[(member, event) for event in events] for member, events in histories.items()]
    return heapq.merge(
        *streams, key=lambda told: (told[1]["timestamp"], told[1]["name"] == "partitions_assigned")
    )


def is_valid_assignment(
    assignments: Iterable[Iterable[TopicPartition]], wanted: Iterable[TopicPartition]
) -> bool:
    """Whether each of the partitions has exactly one owner."""
    owned = [partition for assignment in assignments for partition in assignment]
    return sorted(owned) == sorted(wanted)
