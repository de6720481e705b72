"""HandedOutBefore: how far partitions were handed out that have begun anew since.

A worker may still be at a record of an assignment that is over, or of a log that was truncated. It
does not know, and what it says must not count for what was handed out since.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from kafka.structs import TopicPartition

from ..errors import PartitionsLostError


class HandedOutBefore:
    """The offsets after the highest that were handed out, of what is over."""

    def __init__(self) -> None:
        self._over: dict[TopicPartition, int] = {}

    def note(self, partition: TopicPartition, next_offset: int | None) -> None:
        """The partition begins anew; it was handed out up to here (exclusive), or not at all."""
        if next_offset is not None:
            self._over[partition] = max(next_offset, self._over.get(partition, 0))

    def refuse(self, partition: TopicPartition, offset: int, handed_out: int) -> None:
        """Raise PartitionsLostError when this next offset is that of a record that is gone.

        Beyond what was handed out since it would, committed, hide every record that is written
        there.

        Parameters
        ----------
        partition : TopicPartition
        offset : int
            To be committed, exclusive.
        handed_out : int
            Up to where (exclusive) it was handed out since, left out, or sought past; 0 before the
            first.
        """
        if handed_out < offset <= self._over.get(partition, -1):
            raise PartitionsLostError(
                f"nothing committed: {partition.topic}-{partition.partition} at {offset} is "
                f"past {handed_out}, where its log was truncated or read anew since, or where "
                "it is handed out since it is assigned anew"
            )

    def why_not(self, partition: TopicPartition, offset: int) -> Exception:
        """What to raise of an offset that was not handed out since.

        Returns
        -------
        PartitionsLostError or ValueError
            The latter where nobody can have processed it.
        """
        name = f"{partition.topic}-{partition.partition}"
        if offset < self._over.get(partition, offset):
            return PartitionsLostError(
                f"nothing committed: {name} was lost or revoked after offset {offset} was handed "
                "out, and is assigned anew, or its log was truncated"
            )
        return ValueError(f"{name}: offset {offset} was not handed out")
