"""ToldRemaining: unprocessed offsets, as reported by a caller that does not poll the partitions.

The member that commits for a query's batches does not read them: it gets the unprocessed offsets as
a whole, with each commit.

Not thread-safe, except for :meth:`metadata`, which only reads entries that others replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from kafka.structs import TopicPartition

from .commit_metadata import Remaining


def bound_to(topic_id: UUID | None, partition: TopicPartition) -> str:
    """The binding of a commit's metadata: in another topic, the same offsets are other records."""
    return f"{topic_id or partition.topic}-{partition.partition}"


class ToldRemaining:
    """Keeps each partition's last report and its binding."""

    def __init__(self) -> None:
        self._told: dict[TopicPartition, tuple[Remaining, str]] = {}

    def news(
        self, remaining: Mapping[TopicPartition, Remaining]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
        """The offsets to commit: beyond the last report, and where only gaps change.

        An offset below the last reported one is in neither.
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
        """Note the current reports about partitions, and their bindings."""
        self._told.update(told)

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget these partitions, so that any offset may be reported next."""
        for partition in partitions:
            self._told.pop(partition, None)

    def of(self, partition: TopicPartition) -> Remaining | None:
        """The last report about the partition."""
        told = self._told.get(partition)
        return None if told is None else told[0]

    def metadata(
        self, partition: TopicPartition, offset: int, limit: int, bound: str
    ) -> str | None:
        """The metadata of a commit of this offset; None if nothing was reported of the partition.

        Empty if the binding has changed by now, or the report does not cover this offset.
        """
        told = self._told.get(partition)
        if told is None:
            return None
        remaining, bound_then = told
        if not remaining.gaps or bound_then != bound or offset > remaining.committed():
            return ""
        if offset < remaining.committed():  # sent before more was reported
            before = offset, remaining.committed()
            remaining = Remaining.of([before, *remaining.gaps], remaining.live)
        return remaining.encode(limit, bound)
