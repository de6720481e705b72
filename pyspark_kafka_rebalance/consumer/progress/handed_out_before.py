"""HandedOutBefore: what was handed out of partitions that have begun anew since.

A worker may still process a record of an assignment that is over, or of a log that was truncated.
It does not know that, and what it reports must not count for what was handed out since.

Invariant: a next offset means what it meant when it was handed out. Live records that were being
processed next to a gap when their assignment ended (KIP-333) may lie in a gap now, and one of their
workers is still to report. The first that names a next offset among them reports only them, and
nothing below. A worker that reports again, or was refused before, has been heard.

Pure. Not thread-safe; the owner holds a lock.
"""

from __future__ import annotations

from collections.abc import Sequence

from kafka.structs import TopicPartition

from ...errors import PartitionsLostError
from ..offsets.gaps import Gap, holding, less, without
from .set_aside import SetAside


class HandedOutBefore:
    """How far ended assignments and truncated logs were handed out, and their live records."""

    def __init__(self) -> None:
        self._over: dict[TopicPartition, int] = {}
        # Live records whose workers are still to be heard; in order and disjoint.
        self._live: dict[TopicPartition, list[Gap]] = {}
        # Up to where workers were refused, in partitions that are lost but not over yet.
        self._refused: dict[TopicPartition, int] = {}

    def note(
        self, partition: TopicPartition, next_offset: int | None, live: Gap | None = None
    ) -> None:
        """The partition begins anew; it was handed out up to here (exclusive), or not at all.

        ``live`` are its live records that were in processing next to a gap.
        """
        if next_offset is not None:
            self._over[partition] = max(next_offset, self._over.get(partition, 0))
        refused = self._refused.pop(partition, 0)
        if live is not None and refused < live.end:
            live = Gap(max(live.start, refused), live.end)
            self._live[partition] = sorted([*without(self._live.get(partition, ()), *live), live])

    def refused(self, partition: TopicPartition, offset: int, is_over: bool = True) -> None:
        """This next offset of a worker is refused; that worker has been heard.

        Without ``is_over``, the partition is lost, but its assignment is not over yet.
        """
        live = holding(self._live.get(partition, ()), offset - 1)
        if live is not None:
            self.hear(partition, [Gap(live.start, offset)])
        elif not is_over:
            self._refused[partition] = max(offset, self._refused.get(partition, 0))

    def hear(self, partition: TopicPartition, records: Sequence[Gap]) -> None:
        """Workers have reported the records in these ranges, which are in order."""
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
        """Whether a worker of those live records, still to be heard, may name this next offset."""
        return holding(self._live.get(partition, ()), offset - 1) is not None

    def refuse(self, partition: TopicPartition, offset: int, handed_out: int) -> None:
        """Raise PartitionsLostError if this next offset is that of a record that is gone.

        If it is beyond what was handed out since, committing it would hide every record that is
        written there.

        Parameters
        ----------
        partition : TopicPartition
        offset : int
            The offset to commit, exclusive.
        handed_out : int
            How far (exclusive) polls went since; 0 if they went nowhere below the offset.
        """
        if handed_out < offset <= self._over.get(partition, -1):
            self.refused(partition, offset)
            raise PartitionsLostError(
                f"nothing committed: {partition.topic}-{partition.partition} at {offset} is past "
                f"{handed_out}, the offset that polls have reached since it was assigned again, or "
                "since its log was truncated or read again"
            )

    def why_not(self, partition: TopicPartition, offset: int) -> Exception:
        """The error to raise for an offset that was not handed out since.

        Returns
        -------
        PartitionsLostError or ValueError
            The latter if nobody can have processed it.
        """
        name = f"{partition.topic}-{partition.partition}"
        if offset < self._over.get(partition, offset):
            return PartitionsLostError(
                f"nothing committed: {name} was lost or revoked after offset {offset} was handed "
                "out, and assigned again, or its log was truncated"
            )
        return ValueError(f"{name}: offset {offset} was not handed out")
