"""ToldRemaining: what is left of partitions, as told by who keeps count of it without polls.

A query's batches are read by others than the member that commits for them: nothing is handed out
here, and what is unprocessed comes with each commit, as a whole.

Not thread-safe but for :meth:`metadata`, which only looks up what others replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kafka.structs import TopicPartition

from .remaining import Remaining


def bound_to(topic_id: UUID | None, partition: TopicPartition) -> str:
    """What a commit's metadata are bound to: the same offsets elsewhere are other records."""
    return f"{topic_id or partition.topic}-{partition.partition}"


class ToldRemaining:
    """What was told last of each partition, and what that is bound to."""

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[Remaining, str]] = {}

    def news(
        self, remaining: Mapping[TopicPartition, Remaining]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The offsets to commit: where they are further than told last, and where only gaps change.

        An offset that is lower than told last is neither.
        """
        further, beyond = {}, {}
        for partition, left in remaining.items():
            before = self.of(partition)
            offset = left.committed()
            if before is None or offset > before.committed():
                further[partition] = offset
            elif offset == before.committed() and left != before:
                beyond[partition] = offset
        return further, beyond

    def tell(self, told: Mapping[TopicPartition, tuple[Remaining, str]]) -> None:
        """Note what is told of partitions now, and what that is bound to."""
        self._told.update(told)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Of these, something else may be told next."""
        for partition in partitions:
            self._told.pop(partition, None)

    def forget_all(self) -> None:
        """Of whatever partition."""
        self._told.clear()

    def of(self, partition: TopicPartition) -> Remaining | None:
        """What was told last."""
        told = self._told.get(partition)
        return None if told is None else told[0]

    def metadata(
        self, partition: TopicPartition, offset: int, limit: int, bound: str
    ) -> str | None:
        """The metadata of a commit of this offset; None if nothing was told of the partition.

        Nothing but the offset where that is bound to something else by now.
        """
        told = self._told.get(partition)
        if told is None:
            return None
        remaining, bound_then = told
        if not remaining.gaps or bound_then != bound or offset > remaining.committed():
            return ""
        if offset < remaining.committed():  # sent before more was told
            before = offset, remaining.committed()
            remaining = Remaining.of([before, *remaining.gaps], remaining.live)
        return remaining.encode(limit, bound)
