"""How much of each partition goes into the next batch. Pure, except for its cuts' queries.

A batch starts with everything available in every readable partition. The cuts (``cuts``) reduce it
one after the other, each for one reason. ``partition_shares`` shares the rest among the partitions,
within ``maxOffsetsPerTrigger`` and ``maxBytesPerTrigger``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange
from ..spark.read_limits import ReadLimit, ReadMaxRows
from .available_now import BeyondEnd
from .partition_shares import plan_batch

#: "No limit" as Spark's ``long``. It distinguishes an unlimited trigger from ``Once``, for which
#: Spark passes ReadAllAvailable, even if our default has a limit.
NO_LIMIT = 2**63 - 1


@dataclass(frozen=True)
class Planned:
    """The ranges that the batch reads, and the partitions that it has to leave for later.

    Attributes
    ----------
    ranges : dict
        By partition; may be empty.
    postponed : frozenset of TopicPartition
        Partitions that a run with an end still has to read and this batch does not, because
        brokers have not answered a query about them.
    """

    ranges: dict[TopicPartition, OffsetRange]
    postponed: frozenset[TopicPartition]


@dataclass(frozen=True)
class Postponed:
    """There is no batch now.

    Attributes
    ----------
    partitions : frozenset of TopicPartition
        Partitions that may have something to read later; empty if none are known.
    """

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class Gone:
    """There is no batch until it is decided how to handle these partitions.

    Attributes
    ----------
    lost : sequence of BeyondEnd
        Partitions whose positions are past the end of their logs.
    shortened : sequence of BeyondEnd
        Partitions whose logs end before the run that was to read them.
    """

    lost: Sequence[BeyondEnd] = ()
    shortened: Sequence[BeyondEnd] = ()


class Draft:
    """A batch that the cuts reduce.

    Parameters
    ----------
    positions : Mapping[TopicPartition, int]
        Next offset to read, for every partition that may be read.
    ends : Mapping[TopicPartition, int]
        Where their logs end, exclusive; without partitions whose end is unknown now.
    limit : ReadLimit
        Spark's limit.

    Attributes
    ----------
    until : dict
        Up to where the batch reads at most; without partitions that a cut has removed.
    max_bytes, bytes_per_offset
        As in :func:`plan_batch`.
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
        """All partitions that are postponed, those in doubt included."""
        return frozenset(self._postponed | self._in_doubt)

    def postpone(self, partitions: Iterable[TopicPartition]) -> None:
        """Postpone partitions that may have something to read, but cannot be planned now."""
        self._postponed.update(partitions)

    def postpone_only(self, partitions: Collection[TopicPartition]) -> None:
        """Keep only these postponed: the others have nothing more to read."""
        self._postponed.intersection_update(partitions)

    def doubt(self, partitions: Iterable[TopicPartition]) -> None:
        """Postpone partitions even if they have nothing to read: their records may be deleted."""
        self._in_doubt.update(partitions)


class Cut(Protocol):
    """One reason to read less."""

    def cut(self, draft: Draft) -> Postponed | Gone | None:
        """Reduce the draft; a result other than None is the plan."""
        ...

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Note the batch's ranges: the plan, or less."""
        ...


class BatchPlanner:
    """Plans the batches of one run.

    Parameters
    ----------
    cuts : sequence of Cut
        In the order in which they reduce a batch.
    """

    def __init__(self, cuts: Sequence[Cut]) -> None:
        self._cuts = cuts

    def plan(
        self,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        limit: ReadLimit,
    ) -> Planned | Postponed | Gone:
        """Decide how far each partition advances in the next micro-batch; see :class:`Draft`."""
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
        """Report the outcome of the plan to the cuts: the batch reads these ranges."""
        for cut in self._cuts:
            cut.handed_out(ranges)


def backlog(
    positions: Mapping[TopicPartition, int], end_offsets: Mapping[TopicPartition, int]
) -> int:
    """Return how many offsets there are to read in the partitions whose end is known."""
    return sum(
        max(0, end_offsets[partition] - position)
        for partition, position in positions.items()
        if partition in end_offsets
    )
