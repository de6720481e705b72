"""What a batch reads of the gaps below the live positions (KIP-333), and how much of them. Pure.

Live records come first: of the gaps a batch gets so much that it stays near ``catchUpBatchMs``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...consumer.gaps import Gap, without
from ...fetch.offset_range import OffsetRange
from .batch_planner import shares_of

#: The first batch's share. A second of a slow sink is not much more, and 1 % of a fast one.
_START = 10_000

#: As little as this costs no batch anything, so gaps close however slow the rest of it is.
_LEAST = 1_000

#: How much the share may change from one batch to the next.
_GROWTH, _SHRINKAGE = 2.0, 0.25

#: From which change of the share on the durations of two batches say something about it, and what
#: change of theirs says that it mattered.
_COMPARABLE, _NOTICEABLE = 1.5, 1.1


def plan_catch_up(
    gaps: Mapping[TopicPartition, Sequence[Gap]], max_offsets: int | None
) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
    """Decide what the next batch reads of gaps: of each partition its lowest offsets.

    Parameters
    ----------
    gaps : mapping
        What nobody has read, in order, of partitions that may be read.
    max_offsets : int or None
        For the whole batch, None for all; shared as :func:`shares_of` does.
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
    """What of gaps lies before these ends, nothing of a partition that has none."""
    cut = {p: without(found, ends.get(p, 0)) for p, found in gaps.items()}
    return {p: found for p, found in cut.items() if found}


def _lowest(partition: TopicPartition, gaps: Sequence[Gap], offsets: int) -> Iterator[OffsetRange]:
    for gap in gaps:
        if offsets <= 0:
            return
        end = min(gap.end, gap.start + offsets)
        yield OffsetRange(partition.topic, partition.partition, gap.start, end)
        offsets -= end - gap.start


class _Measured(NamedTuple):
    offsets: int
    duration_s: float


class CatchUpPace:
    """How many offsets of gaps a batch reads, by how long the batches before it took.

    A batch that takes too long need not do so because of them: live records, or a trigger's
    interval where nothing tells sooner that a batch is done. They are to blame only where their
    number matters: more of them made a batch longer, or fewer of them one shorter.

    Parameters
    ----------
    target_s : float
        How long a batch may take.
    """

    def __init__(self, target_s: float) -> None:
        self._target_s = target_s
        self._allowance = _START
        self._planned: dict[int, tuple[int, int, float]] = {}
        self._before: _Measured | None = None

    @property
    def allowance(self) -> int:
        """For the next batch."""
        return self._allowance

    @property
    def measures(self) -> bool:
        """Whether it is to be told when a batch is done."""
        return bool(self._planned)

    def planned(self, batch: int, offsets: int, now: float) -> None:
        """A batch of this number reads so many offsets of gaps; it begins now."""
        self._planned[batch] = offsets, self._allowance, now

    def done(self, batch: int, now: float) -> None:
        """This batch is done, and all before it; again says nothing."""
        for number in [number for number in self._planned if number <= batch]:
            offsets, allowed, began_at = self._planned.pop(number)
            # Less than allowed, it tells too little of what is allowed.
            if 2 * offsets > allowed:
                self._learn(_Measured(offsets, max(1e-6, now - began_at)))

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
