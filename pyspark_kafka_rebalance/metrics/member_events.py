"""Which instrument each event of a group member adds to; pure.

Called on the polling thread. Any thread may call ``revoking_since``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from kafka.structs import TopicPartition

from ..consumer.fetch_metadata import FetchMetadata
from . import catalogue
from .catalogue import Attributes, Measured

WITH_MEMBERSHIP = "membership"
UNDRAINED = "undrained"


class MemberEvents:
    """Counts the events of one member."""

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes  # of all its metrics
        self._topics: set[str] = set()
        self._requested: dict[TopicPartition, float] = {}
        #: When each partition that has brought no record yet was assigned.
        self.awaiting: dict[TopicPartition, float] = {}

    def assigned(
        self, added: Collection[TopicPartition], gated: Collection[TopicPartition], now: float
    ) -> list[Measured]:
        """An assignment is applied: the added partitions, and all that are being revoked."""
        taken_back = self._requested.keys() - set(gated)
        for p in taken_back:
            del self._requested[p]
        for p in gated:
            self._requested.setdefault(p, now)
            self.awaiting.pop(p, None)
        self.awaiting |= dict.fromkeys(added, now)
        topics = {p.topic for p in added} - self._topics
        self._topics |= topics
        return [Measured(catalogue.REBALANCES, 1, self._attributes), *self._begun(topics)]

    def lost(self, partitions: Collection[TopicPartition], undrained: bool) -> list[Measured]:
        """Partitions are lost; undrained ones are still released to the group afterwards."""
        for p in partitions:
            self.awaiting.pop(p, None)
            if not undrained:
                self._requested.pop(p, None)
        why = {catalogue.REASON: UNDRAINED if undrained else WITH_MEMBERSHIP}
        return [Measured(catalogue.LOST, n, {**of, **why}) for n, of in self._by_topic(partitions)]

    def released(self, partitions: Collection[TopicPartition], now: float) -> list[Measured]:
        """Partitions were released: their revokes have ended."""
        took = [(p, self._requested.pop(p, None)) for p in partitions]
        return [
            Measured(catalogue.REVOKES, now - at, {**self._attributes, catalogue.TOPIC: p.topic})
            for p, at in took
            if at is not None
        ]

    def brought(
        self,
        first_at: Mapping[TopicPartition, float | None],
        metadata: Mapping[TopicPartition, FetchMetadata],
        now: float,
    ) -> list[Measured]:
        """A poll brought records; stop awaiting partitions that had none when they were assigned.

        ``first_at`` has the timestamp of each partition's first record, on the clock of ``now``;
        None if it has none, or is known to have had a record before. A broker may hold its first
        answer back until there is a record, so that no empty one comes before. ``metadata`` are of
        the partitions whose fetches were answered.
        """
        measured = []
        for p, first in first_at.items():
            at = self.awaiting.pop(p, None)
            if at is not None and (first is None or first <= at):
                measured.append(
                    Measured(
                        catalogue.HAND_OVERS,
                        now - at,
                        {**self._attributes, catalogue.TOPIC: p.topic},
                    )
                )
        for p in [p for p in self.awaiting if p in metadata and not metadata[p].lag]:
            del self.awaiting[p]
        return measured

    def revoking_since(self, partition: TopicPartition) -> float | None:
        """Return when the partition's revoke was requested; None if that was not seen."""
        return self._requested.get(partition)

    def _begun(self, topics: Iterable[str]) -> list[Measured]:
        """Start the counters at 0: an increase that is a counter's first value is not seen."""
        return [
            Measured(
                catalogue.LOST,
                0,
                {**self._attributes, catalogue.TOPIC: topic, catalogue.REASON: reason},
            )
            for topic in sorted(topics)
            for reason in (WITH_MEMBERSHIP, UNDRAINED)
        ]

    def _by_topic(self, partitions: Iterable[TopicPartition]) -> list[tuple[int, Attributes]]:
        found = Counter(p.topic for p in partitions)
        return [
            (n, {**self._attributes, catalogue.TOPIC: topic}) for topic, n in sorted(found.items())
        ]


def commit_answered(
    attributes: Attributes, refused: Mapping[TopicPartition, type[Exception]], took_s: float
) -> Measured:
    """A commit was answered; it has failed if any of its partitions has."""
    named = {**attributes, catalogue.OPERATION: "commit", catalogue.OPERATION_TYPE: "settle"}
    if refused:
        named[catalogue.ERROR] = next(iter(refused.values())).__name__
    return Measured(catalogue.OPERATIONS, took_s, named)
