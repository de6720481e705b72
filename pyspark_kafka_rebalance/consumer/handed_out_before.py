"""HandedOutBefore: what was handed out of partitions that have begun anew since.

A worker may still be at a record of an assignment that is over, or of a log that was truncated. It
does not know, and what it says must not count for what was handed out since.

Invariant: a next offset speaks of what it spoke of where it was handed out. Live records that were
in processing beside a gap when their assignment ended (KIP-333) may lie in a gap now, and one of
their workers is still to be heard: the first that names a next offset among them speaks of them
alone, and not of what is below. Who says it again, or was refused before, has been heard.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka.structs import TopicPartition

from ..errors import PartitionsLostError
from .gaps import Gap, holding, less, without
from .set_aside import SetAside


class HandedOutBefore:
    """The offsets after the highest that were handed out, and live records, of what is over."""

    def __init__(self) -> None:
        self._over: dict[TopicPartition, int] = {}
        # Live records whose workers are still to be heard; in order and disjoint.
        self._live: dict[TopicPartition, list[Gap]] = {}
        # Up to where workers were refused of what is lost, and not over yet.
        self._refused: dict[TopicPartition, int] = {}

    def note(
        self, partition: TopicPartition, next_offset: int | None, live: Gap | None = None
    ) -> None:
        """The partition begins anew; it was handed out up to here (exclusive), or not at all.

        Some of it live, beside a gap, and in processing.
        """
        if next_offset is not None:
            self._over[partition] = max(next_offset, self._over.get(partition, 0))
        refused = self._refused.pop(partition, 0)
        if live is not None and refused < live.end:
            live = Gap(max(live.start, refused), live.end)
            self._live[partition] = sorted([*without(self._live.get(partition, ()), *live), live])

    def refused(self, partition: TopicPartition, offset: int, is_over: bool = True) -> None:
        """A worker is told that this next offset is not committed; of what is lost, maybe not over.

        It is heard.
        """
        live = holding(self._live.get(partition, ()), offset - 1)
        if live is not None:
            self.hear(partition, [Gap(live.start, offset)])
        elif not is_over:
            self._refused[partition] = max(offset, self._refused.get(partition, 0))

    def hear(self, partition: TopicPartition, records: Sequence[Gap]) -> None:
        """Somebody has spoken of the records in these ranges, which are in order."""
        if partition in self._live:
            self._live[partition] = less(self._live[partition], records)
            if not self._live[partition]:
                del self._live[partition]

    def claims(self, partition: TopicPartition, aside: SetAside, offset: int) -> tuple[Gap, ...]:
        """Which records a commit of this next offset says are processed; its worker is heard."""
        live = holding(self._live.get(partition, ()), offset - 1)
        claims = aside.claimed_by(offset) if live is None else aside.read_of(live.start, offset)
        self.hear(partition, claims)
        return claims

    def is_awaited(self, partition: TopicPartition, offset: int) -> bool:
        """Whether a worker that names this next offset may be one of those live records."""
        return holding(self._live.get(partition, ()), offset - 1) is not None

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
            Up to where (exclusive) polls went since; 0 if they went nowhere below the offset.
        """
        if handed_out < offset <= self._over.get(partition, -1):
            self.refused(partition, offset)
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
