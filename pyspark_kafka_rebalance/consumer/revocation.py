"""Revocations: the lists of KIP-983, pure.

Invariants:
 1. A partition is in at most one of ``next``, ``thereafter`` and ``lost``.
 2. What :meth:`Revocations.begin_poll` returns to be completed is in none of them.
 3. Only partitions of a request are ever returned to be completed, each once for each request.
"""

from __future__ import annotations

from collections.abc import Iterable

from kafka.structs import TopicPartition


class Revocations:
    """Which partitions are to be revoked, when, and which were lost (KIP-983, "Proposed changes").

    The caller keeps the assignment; this class only knows what is being taken from it. The lists
    are replaced, never changed in place: another thread may read them.
    """

    def __init__(self) -> None:
        self._next: frozenset[TopicPartition] = frozenset()
        self._thereafter: frozenset[TopicPartition] = frozenset()
        self._lost: frozenset[TopicPartition] = frozenset()

    @property
    def to_be_revoked(self) -> frozenset[TopicPartition]:
        """The revoke-next list: completed at the start of the next poll unless delayed."""
        return self._next

    @property
    def lost(self) -> frozenset[TopicPartition]:
        """Lost during the last poll."""
        return self._lost

    @property
    def revoking(self) -> frozenset[TopicPartition]:
        """Requested and neither completed nor lost: revoke-next and revoke-thereafter."""
        return self._next | self._thereafter

    def begin_poll(self, already_lost: Iterable[TopicPartition] = ()) -> frozenset[TopicPartition]:
        """Start a poll: the KIP's three steps, in its order.

        Parameters
        ----------
        already_lost : iterable of TopicPartition
            Lost since the last poll ended. They are taken out before step 1, because what is lost
            cannot be completed, and are this poll's lost list.

        Returns
        -------
        frozenset of TopicPartition
            The revokes to complete now (invariant 2).
        """
        gone = frozenset(already_lost)
        completed = self._next - gone
        self._next = self._thereafter - gone
        self._thereafter = frozenset()
        self._lost = gone
        return completed

    def request(self, partitions: Iterable[TopicPartition]) -> None:
        """A revoke is requested: revoke-next, unless one is already under way."""
        self._next |= frozenset(partitions) - self._thereafter - self._lost

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """The partitions are lost: out of both lists, into the lost list (invariant 1)."""
        gone = frozenset(partitions)
        self._next -= gone
        self._thereafter -= gone
        self._lost |= gone

    def take_back(self, partitions: Iterable[TopicPartition]) -> None:
        """The group wants these partitions to stay after all."""
        kept = frozenset(partitions)
        self._next -= kept
        self._thereafter -= kept

    def delay(self, partitions: Iterable[TopicPartition]) -> None:
        """Move from revoke-next to revoke-thereafter; others are left where they are."""
        delayed = self._next & frozenset(partitions)
        self._next -= delayed
        self._thereafter |= delayed
