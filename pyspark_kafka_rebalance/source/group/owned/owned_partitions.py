"""OwnedPartitions: which partitions the members of a query own, and may hand out. Pure.

Two classes follow its changes: the rows that the next batch reports (:class:`EventRows`), and
whether partitions may be on their way from one member to another (:class:`LastChange`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from kafka.structs import TopicPartition

from ...offsets.stream_offset import RebalanceEvent


class EventRows:
    """The rebalance events that the next batch reports.

    They are the rows of ``includeRebalanceEvents``, if that is set, and the lost partitions.
    """

    def __init__(self, included: bool) -> None:
        self._included = included
        self._events: list[RebalanceEvent] = []  # not in a batch yet
        self._lost: set[TopicPartition] = set()  # since the last batch was planned

    def add(self, event: str, partition: TopicPartition, generation: int) -> None:
        """Record an event of a partition."""
        if event == "lost":
            self._lost.add(partition)
        elif event == "assigned":
            self._lost.discard(partition)
        if self._included:
            self._events.append(RebalanceEvent(event, partition, generation))

    def wait(self) -> bool:
        """Whether rows wait for a batch."""
        return bool(self._events)

    def untold(self) -> list[RebalanceEvent]:
        """The rows that are in no batch yet; empty if event rows are disabled."""
        return list(self._events)

    def take(self) -> list[RebalanceEvent]:
        """Take the rows for the batch that is being planned."""
        events, self._events = self._events, []
        return events

    def take_lost(self) -> set[TopicPartition]:
        """Take the partitions lost since the last batch was planned."""
        lost, self._lost = self._lost, set()
        return lost

    def requests(self) -> set[TopicPartition]:
        """Partitions whose ``revoke_requested`` row is in no batch yet."""
        return {e.partition for e in self._events if e.event == "revoke_requested"}


#: Default of ``group.consumer.assignment.interval.ms`` (Kafka 4.3): the coordinator may delay a new
#: assignment by this long. In the classic protocol there is no delay: all members rejoin.
_ASSIGNED_WITHIN_S = 1.0


class LastChange:
    """When the members of a query last changed, and whether all know the outcome.

    A partition that one member has released is on its way unseen: the coordinator gives it to
    another member in a heartbeat's answer. So nothing is on its way once every member has had two
    answers: one to a heartbeat after the change, by which the coordinator knows of the release, and
    one to a heartbeat after the coordinator has had time to assign the partition.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.at = 0.0
        self.all_told = False  #: whether every member knows its partitions after the change
        self._known_at: float | None = None  # to the coordinator
        self.note()

    def note(self) -> None:
        """Something changes now."""
        self.at, self.all_told, self._known_at = self._clock(), False, None

    def heard(self, sent_at: float) -> None:
        """Every member has had the answer to a heartbeat that it sent at ``sent_at`` or later."""
        if self._known_at is None:
            if sent_at >= self.at:
                self._known_at = self._clock()
        elif sent_at >= self._known_at + _ASSIGNED_WITHIN_S:
            self.all_told = True

    def unchanged_s(self) -> float:
        """Seconds since it was."""
        return self._clock() - self.at


@dataclass(slots=True)
class OwnedPartition:
    """A partition that one of the query's members owns."""

    member: int
    generation: int
    position: int | None = None  # next offset to hand out; None until its start is known
    read: bool = False  # handed out since it was assigned, so there may be something to flush
    is_new: bool = False  # created while owned here: the group's offset is of the old partition


class OwnedPartitions:
    """The partitions of all members of one query; each has one owner, which got it last.

    Newly assigned partitions without a known start, and those whose revoke is requested, are kept
    separately: the pump asks for them all the time, and of thousands of partitions nearly all are
    neither.
    """

    def __init__(self) -> None:
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        # In insertion order.
        self._unpositioned: dict[TopicPartition, None] = {}
        self._revoking: dict[TopicPartition, None] = {}

    # -- changes ----------------------------------------------------------------------------------

    def add(self, partition: TopicPartition, owned: OwnedPartition) -> None:
        """Add a partition that was assigned to a member; it has no position yet."""
        self._owned[partition] = owned
        self._unpositioned[partition] = None
        self._revoking.pop(partition, None)

    def new_generation(self, member: int, generation: int) -> None:
        """A member joined a new generation and keeps its partitions."""
        for owned in self._owned.values():
            if owned.member == member:
                owned.generation = generation

    def start_at(self, partition: TopicPartition, position: int) -> None:
        """The start of an owned partition is known."""
        self._owned[partition].position = position
        self._owned[partition].is_new = False
        self._unpositioned.pop(partition, None)

    def look_up_again(self, partition: TopicPartition) -> None:
        """The position of an owned partition is not known any more: its start is looked up."""
        if partition in self._owned:
            self._owned[partition].position = None
            self._unpositioned[partition] = None

    def delete(self, partition: TopicPartition) -> None:
        """The partition was deleted: no position until it exists again; owned until revoked."""
        if partition in self._owned:
            self._owned[partition].position = None
        self._unpositioned.pop(partition, None)

    def start_anew(self, partitions: Iterable[TopicPartition]) -> None:
        """Deleted partitions exist again; their start must be looked up."""
        for partition in partitions:
            if partition in self._owned and self._owned[partition].position is None:
                self._unpositioned[partition] = None

    def created_while_owned(self, partitions: Collection[TopicPartition]) -> None:
        """As :meth:`start_anew`; this query itself committed the offsets the group has of them."""
        for partition in partitions:
            if partition in self._owned:
                self._owned[partition].is_new = True
        self.start_anew(partitions)

    def request_revoke(self, partition: TopicPartition) -> OwnedPartition | None:
        """Hand out no new range from now on; returns None if requested before, or not owned."""
        owned = self._owned.get(partition)
        if owned is None or partition in self._revoking:
            return None
        self._revoking[partition] = None
        return owned

    def keep(
        self, member: int, to_be_revoked: Collection[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        """Cancel the requested revokes of this member, except for ``to_be_revoked``."""
        for partition in list(self._revoking):
            owned = self._owned[partition]
            if owned.member == member and partition not in to_be_revoked:
                del self._revoking[partition]
                yield partition, owned

    def pop(
        self, member: int, partitions: Iterable[TopicPartition]
    ) -> Iterator[tuple[TopicPartition, OwnedPartition]]:
        """Remove those that this member owns; another of our members may own some by now."""
        for partition in partitions:
            owned = self._owned.get(partition)
            if owned is not None and owned.member == member:
                self._unpositioned.pop(partition, None)
                self._revoking.pop(partition, None)
                yield partition, self._owned.pop(partition)

    # -- queries ----------------------------------------------------------------------------------

    def all(self) -> dict[TopicPartition, OwnedPartition]:
        """The partitions owned now; not to be changed."""
        return self._owned

    def revoking(self) -> frozenset[TopicPartition]:
        """The owned partitions whose revoke is requested."""
        return frozenset(self._revoking)

    def plannable(self) -> dict[TopicPartition, int]:
        """The positions of the partitions that may get a new range."""
        plannable = {
            partition: owned.position
            for partition, owned in self._owned.items()
            if owned.position is not None
        }
        for partition in self._revoking:
            plannable.pop(partition, None)
        return plannable

    def unpositioned(self) -> dict[int, list[TopicPartition]]:
        """Newly assigned partitions whose start is not known yet, by member."""
        by_member: dict[int, list[TopicPartition]] = {}
        for partition in self._unpositioned:
            by_member.setdefault(self._owned[partition].member, []).append(partition)
        return by_member
