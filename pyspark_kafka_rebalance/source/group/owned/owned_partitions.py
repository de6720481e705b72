"""OwnedPartitions: which partitions the members of a query own, and may hand out. Pure.

Newly assigned partitions without a known start, and those whose revoke is requested, are kept
separately: the pump asks for them all the time, and of thousands of partitions nearly all are
neither.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from kafka.structs import TopicPartition


@dataclass(slots=True)
class OwnedPartition:
    """A partition that one of the query's members owns."""

    member: int
    generation: int
    position: int | None = None  # next offset to hand out; None until its start is known
    read: bool = False  # handed out since it was assigned, so there may be something to flush
    is_new: bool = False  # created while owned here: the group's offset is of the old partition


class OwnedPartitions:
    """The owned partitions of all members of one query."""

    def __init__(self) -> None:
        self._owned: dict[TopicPartition, OwnedPartition] = {}
        # In insertion order.
        self._unpositioned: dict[TopicPartition, None] = {}
        self._revoking: dict[TopicPartition, None] = {}

    # -- what happens to them ---------------------------------------------------------------------

    def add(self, partition: TopicPartition, owned: OwnedPartition) -> None:
        """Add a partition that was assigned to a member; it has no position yet."""
        self._owned[partition] = owned
        self._unpositioned[partition] = None
        self._revoking.pop(partition, None)

    def new_generation(self, member: int, generation: int) -> None:
        """A member joined a new generation and keeps what it has."""
        for owned in self._owned.values():
            if owned.member == member:
                owned.generation = generation

    def start_at(self, partition: TopicPartition, position: int) -> None:
        """The start of an owned partition is known."""
        self._owned[partition].position = position
        self._owned[partition].is_new = False
        self._unpositioned.pop(partition, None)

    def delete(self, partition: TopicPartition) -> None:
        """The partition is gone: no position until it exists again; owned until revoked."""
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

    # -- what there is to see ---------------------------------------------------------------------

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
