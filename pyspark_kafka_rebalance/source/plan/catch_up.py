"""Which ranges of the gaps below the live positions a batch reads (KIP-333). Pure.

Live records come first: a batch gets as much of the gaps as keeps it near ``catchUpBatchMs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...consumer.offsets.offset_set import Gap, without
from ...fetch.offset_range import OffsetRange
from .partition_shares import shares_of

#: The first batch's share: nearly a second's work of a slow sink, and 1 % of a fast one's.
_START = 10_000

#: This little costs no batch anything, so gaps close however slow the rest of the batch is.
_LEAST = 1_000

#: How much the share may change from one batch to the next.
_GROWTH, _SHRINKAGE = 2.0, 0.25

#: By which factor the shares of two batches must differ for their durations to say anything about
#: the share, and by which factor the durations must then differ to show that the share mattered.
_COMPARABLE, _NOTICEABLE = 1.5, 1.1


def plan_catch_up(
    gaps: Mapping[TopicPartition, Sequence[Gap]], max_offsets: int | None
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Decide which ranges of gaps the next batch reads: the lowest offsets of each partition.

    ``max_offsets`` is for the whole batch, None for all; shared as :func:`shares_of` does.
    """
    backlogs = {
        p: sum(gap.end - gap.start for gap in found) for p, found in sorted(gaps.items()) if found
    }
    return {
        p: tuple(_lowest(p, gaps[p], share))
        for p, share in shares_of(backlogs, max_offsets).items()
    }


def within(
    ends: Mapping[TopicPartition, int], gaps: Mapping[TopicPartition, Sequence[Gap]]
) -> dict[TopicPartition, Sequence[Gap]]:
    """Return the parts of gaps before these ends; nothing of a partition that has no end."""
    cut = {p: without(found, ends.get(p, 0)) for p, found in gaps.items()}
    return {p: found for p, found in cut.items() if found}


def _lowest(partition: TopicPartition, gaps: Sequence[Gap], offsets: int) -> Iterator[OffsetRange]:
    for gap in gaps:
        if offsets <= 0:
            return
        end = min(gap.end, gap.start + offsets)
        yield OffsetRange(partition.topic, partition.partition, gap.start, end)
        offsets -= end - gap.start


class Share(NamedTuple):
    """How much a batch reads of gaps, and how much it was allowed to; both in offsets."""

    offsets: int
    allowed: int


class _Measured(NamedTuple):
    offsets: int
    duration_s: float


class CatchUpPace:
    """How many offsets of gaps a batch reads, from how long the earlier batches took.

    A batch that takes longer than ``target_s`` need not do so because of the gaps. Live records, or
    the trigger's interval if nothing reports earlier that a batch is done, may cause it. The gaps
    are to blame only if their number of offsets matters: more of them made a batch longer, or fewer
    made one shorter.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._allowance = _START
        self._before: _Measured | None = None

    @property
    def allowance(self) -> int:
        """How many offsets of gaps the next batch may read."""
        return self._allowance

    def learn(self, share: Share, duration_s: float) -> None:
        """Learn from a batch with this share, once it is done."""
        # A batch that read much less than allowed says too little about the allowance.
        if 2 * share.offsets > share.allowed:
            self._learn(_Measured(share.offsets, max(1e-6, duration_s)))

    def _learn(self, batch: _Measured) -> None:
        before, self._before = self._before, batch
        change = self._target_s / batch.duration_s
        if change < 1 and (batch.offsets <= _LEAST or not _mattered(before, batch)):
            change = _GROWTH
        change = min(_GROWTH, max(_SHRINKAGE, change))
        self._allowance = max(_LEAST, int(batch.offsets * change))


def _mattered(one: _Measured | None, other: _Measured) -> bool:
    """Whether the number of offsets made a difference between two batches, or may have made one."""
    if one is None:
        return True
    less, more = sorted((one, other))
    comparable = more.offsets >= _COMPARABLE * less.offsets
    return not comparable or more.duration_s > _NOTICEABLE * less.duration_s
