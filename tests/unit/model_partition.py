"""The unprocessed offsets of one partition, as a plain set of integers.

The model of both: ``Remaining``, their form in a commit, and ``PartitionCompletion``, which keeps
them while the partition is owned. It knows no ranges and no merging.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark_kafka_rebalance.consumer.offsets.commit_metadata import Remaining


class PartitionModel:
    """Everything from ``start`` on is unprocessed; what is at the horizon or beyond, always.

    Attributes
    ----------
    owed : set of int
        The unprocessed offsets below the horizon.
    live : int
        The live position: all offsets from here on are in ``owed``.
    """

    def __init__(self, start: int, horizon: int) -> None:
        self.horizon = horizon
        self.owed = set(range(start, horizon))
        self.live = start

    # -- what happens to a partition --------------------------------------------------------------

    def hand_out(self, start: int, end: int, offsets: Collection[int] | None = None) -> None:
        """A reader passes [start, end): the records that it found there remain unprocessed.

        This holds for any reader: the live one, whose position is ``end`` then, and one that
        catches up within a gap. Offsets without a record (compaction, transaction markers) do not
        exist, and no longer remain. Without ``offsets`` any of them may exist: that alone sets a
        backlog aside (KIP-333), or leaves it out (a seek).
        """
        if offsets is not None:
            self.owed -= set(range(start, end)) - set(offsets)
        self.live = max(self.live, end)

    def process(self, start: int, end: int) -> None:
        """The records in [start, end) are processed, whether they were handed out or not."""
        self.owed -= set(range(start, end))
        if start < end:
            self.live = max(self.live, end)

    def start_over(self, offset: int) -> None:
        """Everything from this offset on is to be processed, also what was processed before."""
        if offset <= self.live:
            self.owed |= set(range(offset, self.horizon))
            self.live = offset

    def trim(self, log_start: int) -> None:
        """Records below the log's start cannot be processed."""
        if log_start > self.committed():
            self.live = max(self.live, log_start)
        self.owed -= set(range(log_start))

    # -- questions --------------------------------------------------------------------------------

    def committed(self) -> int:
        """The lowest unprocessed offset."""
        return min(self.owed, default=self.horizon)

    def remaining(self) -> Remaining:
        """The same set."""
        return Remaining.of([(o, o + 1) for o in self.owed if o < self.live], self.live)


def unprocessed(remaining: Remaining, horizon: int) -> set[int]:
    """The set, as far as the horizon, by what the two fields mean."""
    live = set(range(remaining.live, horizon))
    return live.union(*(range(gap.start, gap.end) for gap in remaining.gaps))
