"""How much of which partition goes into the next batch. Pure, but for the questions of its cuts.

A batch begins as all there is of every partition that may be read. One cut after the other
(``cuts``) takes from it, each for one reason; what is left is shared by ``maxOffsetsPerTrigger``
and ``maxBytesPerTrigger``. Everything here is linear in the number of partitions, up to sorting.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange
from ..spark_versions import ReadLimit, ReadMaxRows
from .data_loss import BeyondEnd

#: Spark knows no limit as a ``long``; it tells an unlimited trigger from ``Once``, for which Spark
#: asks with ReadAllAvailable whatever our default is.
NO_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Planned:
    """What the batch reads.

    Attributes
    ----------
    ranges : dict
        By partition; there may be none.
    postponed : frozenset of TopicPartition
        What a run with an end still has to read and this batch does not, since something that
        brokers tell is not known.
    """

    ranges: dict[TopicPartition, OffsetRange]
    postponed: frozenset[TopicPartition]


@dataclass(frozen=True)
class Postponed:
    """There is no batch now.

    Attributes
    ----------
    partitions : frozenset of TopicPartition
        What there may be to read, later; none if nothing is known of.
    """

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class Gone:
    """There is no batch before it is decided what to make of these.

    Attributes
    ----------
    lost : sequence of BeyondEnd
        Whose positions lie past the end of their logs.
    shortened : sequence of BeyondEnd
        Which end before the run does that was to read them.
    """

    lost: Sequence[BeyondEnd] = ()
    shortened: Sequence[BeyondEnd] = ()


class Draft:
    """A batch from which cuts take.

    Parameters
    ----------
    positions : Mapping[TopicPartition, int]
        Next offset to read, of all partitions that may be read.
    ends : Mapping[TopicPartition, int]
        Where their logs end, exclusive; without those for which it is not known now.
    limit : ReadLimit
        Spark's.

    Attributes
    ----------
    until : dict
        Up to where the batch reads at most; a partition that is taken out has none.
    max_bytes, bytes_per_offset
        As those of :func:`plan_batch`.
    """

    def __init__(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        limit: ReadLimit,
    ) -> None:
        self.positions = positions
        self.ends = ends
        self.limit = limit
        self.until: Mapping[TopicPartition, int] = ends
        self.max_bytes: int | None = None
        self.bytes_per_offset: Mapping[TopicPartition, float] = {}
        self._in_doubt: set[TopicPartition] = set()
        self._postponed: set[TopicPartition] = set()

    @property
    def postponed(self) -> frozenset[TopicPartition]:
        """All that is."""
        return frozenset(self._postponed | self._in_doubt)

    def postpone(self, partitions: Iterable[TopicPartition]) -> None:
        """There may be something to read of these, which cannot be planned now."""
        self._postponed.update(partitions)

    def postpone_only(self, partitions: Collection[TopicPartition]) -> None:
        """Of all but these, nothing more is to be read."""
        self._postponed.intersection_update(partitions)

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Postponed, whether or not anything is to be read: records of these may be gone."""
        self._in_doubt.update(partitions)


class Cut(Protocol):
    """One reason to read less."""

    def cut(self, draft: Draft) -> Postponed | Gone | None:
        """Take from the draft; another answer than None is the plan."""
        ...

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """The batch reads these: what was planned, or less."""
        ...


class BatchPlanner:
    """Plans the batches of one run.

    Parameters
    ----------
    cuts : sequence of Cut
        In the order in which they take from a batch.
    """

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts = cuts

    def plan(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        limit: ReadLimit,
    ) -> Planned | Postponed | Gone:
        """Decide how far each partition advances in the next micro-batch; as :class:`Draft`."""
        draft = Draft(positions, ends, limit)
        for cut in self._cuts:
            if (outcome := cut.cut(draft)) is not None:
                return outcome
        max_rows = None
        if isinstance(limit, ReadMaxRows) and limit.max_rows != NO_LIMIT:
            max_rows = limit.max_rows
        ranges = plan_batch(
            positions, draft.until, max_rows, draft.max_bytes, draft.bytes_per_offset
        )
        return Planned(ranges, draft.postponed)

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Say what became of the plan: the batch reads these."""
        for cut in self._cuts:
            cut.handed_out(ranges)


def plan_batch(
    positions: Mapping[TopicPartition, int],
    end_offsets: Mapping[TopicPartition, int],
    max_rows: int | None,
    max_bytes: int | None = None,
    bytes_per_offset: Mapping[TopicPartition, float] | None = None,
) -> dict[TopicPartition, OffsetRange]:
    """Decide how far each partition advances in the next micro-batch.

    Parameters
    ----------
    positions : Mapping[TopicPartition, int]
        Next offset to read, inclusive.
    end_offsets : Mapping[TopicPartition, int]
        High watermark, or last stable offset under read_committed; exclusive. Partitions without
        one, and those that :func:`find_beyond_end` finds, are left out.
    max_rows : int or None
        Offsets for the whole batch, None for all there are; shared pro rata to each backlog, at
        least one to every partition that has one, as Spark's ``maxOffsetsPerTrigger`` does. The sum
        exceeds it only when there are more partitions with a backlog: then each gets one.
    max_bytes : int or None
        Bytes for the whole batch, as the broker stores them, None for no limit. What the rows come
        to beyond it is taken off every partition alike, down to one row.
    bytes_per_offset : Mapping[TopicPartition, float], optional
        What an offset of each partition takes, with ``max_bytes``. Nothing, where it is not known.

    Returns
    -------
    dict[TopicPartition, OffsetRange]
        Only partitions with something to read.
    """
    # Sorted as they come: they are in order already, or nearly, which a set would forget.
    behind = [p for p, at in positions.items() if end_offsets.get(p, at) > at]
    shares = shares_of({p: end_offsets[p] - positions[p] for p in sorted(behind)}, max_rows)
    if max_bytes is not None:
        each = bytes_per_offset or {}
        expected = sum(share * each.get(p, 0.0) for p, share in shares.items())
        if expected > max_bytes:
            kept = max_bytes / expected
            shares = {p: max(1, int(share * kept)) for p, share in shares.items()}
    return {
        p: OffsetRange(p.topic, p.partition, positions[p], positions[p] + share)
        for p, share in shares.items()
    }


def shares_of(
    backlogs: Mapping[TopicPartition, int], max_rows: int | None
) -> Mapping[TopicPartition, int]:
    """Share what a batch may read: pro rata to each backlog, at least one to each.

    Parameters
    ----------
    backlogs : mapping
        How many offsets there are to read of each partition, none without any.
    max_rows : int or None
        As :func:`plan_batch`.
    """
    if max_rows is not None and max_rows < 1:
        raise ValueError(f"max_rows must be at least 1, not {max_rows}")
    total, count = sum(backlogs.values()), len(backlogs)
    if max_rows is None or total <= max_rows:
        return backlogs
    if count >= max_rows:
        return dict.fromkeys(backlogs, 1)
    # One for each, then the rest by what is left of the backlogs. Rounded down: a partition never
    # loses by a greater limit, and what is left over is less than one a partition.
    rest, left = max_rows - count, total - count
    return {p: 1 + rest * (backlog - 1) // left for p, backlog in backlogs.items()}


def backlog(
    positions: Mapping[TopicPartition, int], end_offsets: Mapping[TopicPartition, int]
) -> int:
    """Return how many offsets there are to read, of the partitions whose end is known."""
    return sum(
        max(0, end_offsets[partition] - position)
        for partition, position in positions.items()
        if partition in end_offsets
    )
