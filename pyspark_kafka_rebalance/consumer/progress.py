"""OffsetCommits: which offsets wait to be committed, which are under way, which are acknowledged.

Invariants:
 1. At most one commit is in flight; what is processed meanwhile is merged into the next.
 2. A partition's committed position only moves forward while it is owned.
 3. An offset counts as acknowledged only by the broker's answer to a commit that carried it.
 4. Nothing of a dropped (lost or released) partition is sent any more.

Pure: the lane sends, this class decides what. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kafka.structs import TopicPartition


class OffsetCommits:
    """In-order, aggregated commits with one in flight (KIP-983, problems 4 and 5)."""

    def __init__(self) -> None:
        self._waiting: dict[TopicPartition, int] = {}
        self._in_flight: dict[TopicPartition, int] = {}
        self._abandoned: set[TopicPartition] = set()  # in flight, but dropped meanwhile
        self._acknowledged: dict[TopicPartition, int] = {}

    def add(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Records up to these next offsets (exclusive) are processed; older ones are ignored."""
        for partition, offset in offsets.items():
            in_flight = -1 if partition in self._abandoned else self._in_flight.get(partition, -1)
            reached = max(
                self._waiting.get(partition, -1),
                in_flight,
                self._acknowledged.get(partition, -1),
            )
            if offset > reached:
                self._waiting[partition] = offset

    def take(self) -> dict[TopicPartition, int]:
        """What to send now, which is then in flight; empty while a commit is (invariant 1)."""
        if self._in_flight:
            return {}
        self._in_flight, self._waiting = self._waiting, {}
        return dict(self._in_flight)

    def acknowledge(self, partitions: Iterable[TopicPartition]) -> None:
        """The broker accepted these partitions of the commit in flight."""
        for partition in partitions:
            offset = self._in_flight.pop(partition, None)
            if offset is not None and partition not in self._abandoned:
                self._acknowledged[partition] = offset
            self._abandoned.discard(partition)

    def retry(self) -> None:
        """Whatever is still in flight was not accepted: send it again, newer offsets first."""
        for partition, offset in self._in_flight.items():
            if partition not in self._abandoned:
                self._waiting.setdefault(partition, offset)
        self._in_flight = {}
        self._abandoned = set()

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are no longer ours: forget them (invariant 4).

        A commit that is in flight cannot be recalled; ``outstanding`` still tells of it until it
        is answered, and it is not sent again.
        """
        for partition in partitions:
            self._waiting.pop(partition, None)
            self._acknowledged.pop(partition, None)
            if partition in self._in_flight:
                self._abandoned.add(partition)

    def settle(self, partitions: Iterable[TopicPartition]) -> None:
        """Give up the commit in flight of these partitions: the broker refused it for good."""
        for partition in partitions:
            self._in_flight.pop(partition, None)
            self._abandoned.discard(partition)

    def outstanding(self, partition: TopicPartition) -> bool:
        """Whether something of the partition is waiting or in flight."""
        return partition in self._waiting or partition in self._in_flight

    def any_waiting(self) -> bool:
        """Whether anything waits to be sent."""
        return bool(self._waiting)

    def any_outstanding(self) -> bool:
        """Whether anything at all is waiting or in flight."""
        return bool(self._waiting or self._in_flight)

    def acknowledged(self, partition: TopicPartition) -> int | None:
        """The next offset that the broker last acknowledged for an owned partition."""
        return self._acknowledged.get(partition)
