"""OpenBatches: the batches that Spark was given, and what proves them. Pure.

A batch is proven when it is done and Spark has logged where it ends. After that, no kill can make
Spark reread its ranges as part of another batch. Two of Spark's calls say so:

* ``latestOffset(start)`` comes when the batch ending at ``start`` is done.
* ``commit(end)`` proves the batch that ends there. Spark calls it for the batch before the one that
  it is building, right after logging the end of the latter. With async progress tracking, it calls
  it for a logged batch when a later one is logged (``AsyncProgressTrackingMicroBatchExecution``).
  In both cases, a call with the start of the batch planned last shows that this batch's own end is
  in the log.

So ``latestOffset(start)`` proves a batch if that ``commit`` came before. Otherwise Spark tracks its
progress asynchronously, and only ``commit`` proves. (The first batch has no earlier one to commit.)

Not thread-safe: the owner holds one lock around every call.

How long a batch may take before its partitions are given up, and the advice to log. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from kafka.structs import TopicPartition

from ....errors import KafkaRebalanceError, names_of
from ....fetch.offset_range import OffsetRange
from ...offsets.offset_json import offset_to_json
from ...offsets.stream_offset import INITIAL_OFFSET


class BatchTime:
    """Times the oldest unproven batch, by the caller's clock.

    Parameters
    ----------
    limit_s : float or None
        ``maxBatchDurationMs`` in seconds; None for no limit.
    """

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._batch: int | None = None
        self._began_at = 0.0

    def is_over(self, batch: int | None, now: float) -> bool:
        """Whether the batch has exceeded the limit.

        Parameters
        ----------
        batch : int or None
            The number of the oldest unproven batch with ranges; None if there is none.
        now : float
            Seconds.
        """
        if batch != self._batch:
            self._batch, self._began_at = batch, now
        return (
            batch is not None and self._limit_s is not None and now - self._began_at > self._limit_s
        )


def advice_on_overdue(overdue: Collection[TopicPartition], has_commit_log: bool) -> str:
    """The advice to log for partitions whose revoke has waited too long for its batch.

    Parameters
    ----------
    overdue : collection of TopicPartition
        Lost partitions, handed out in a batch that is not known to be committed by Spark.
    has_commit_log : bool
        Whether the source looks into the query's commit log.
    """
    text = (
        "lost after revokeTimeoutMs, before their batch was known to be committed: "
        f"{names_of(overdue)}. The next owner delivers these records again, even if Spark "
        "committed the batch in time. "
    )
    if has_commit_log:
        return f"{text}What helps: shorter batches, or a larger revokeTimeoutMs"
    return (
        f"{text}What helps: the option checkpointLocation, with which the source need not wait for "
        "the next trigger; a shorter trigger interval; shorter batches; a larger revokeTimeoutMs"
    )


#: What a batch reads of the partitions' gaps.
CaughtUp: TypeAlias = Mapping[TopicPartition, Sequence[OffsetRange]]

NOTHING: CaughtUp = {}


class UnprovenBatches:
    """What the unproven batches read.

    There is more than one only with async progress tracking.

    Attributes
    ----------
    number : int
        The number of the batch planned last; 0 before the first.
    """

    def __init__(self) -> None:
        self.number = 0
        self._ranges: dict[int, dict[TopicPartition, OffsetRange]] = {}  # by number, in order
        self._caught_up: dict[int, CaughtUp] = {}  # by number, of batches that read gaps
        # The ends of the ranges of the last proven batch that had any.
        self._last_read: dict[TopicPartition, int] = {}
        self._last_caught_up: frozenset[TopicPartition] = frozenset()  # likewise for gaps

    def add(
        self, ranges: Mapping[TopicPartition, OffsetRange], catch_up: CaughtUp = NOTHING
    ) -> None:
        """Record a planned batch that reads these: the live ranges, and parts of gaps."""
        self.number += 1
        if ranges or catch_up:
            self._ranges[self.number] = dict(ranges)
        if catch_up:
            self._caught_up[self.number] = dict(catch_up)

    def prove(self, last: int) -> list[tuple[Mapping[TopicPartition, OffsetRange], CaughtUp]]:
        """Prove this batch and all before it; returns the live ranges and parts of gaps of each."""
        proven: list[tuple[Mapping[TopicPartition, OffsetRange], CaughtUp]] = []
        for number in [number for number in self._ranges if number <= last]:
            ranges = self._ranges.pop(number)
            caught_up = self._caught_up.pop(number, NOTHING)
            self._last_read = {p: handed.end for p, handed in ranges.items()} or self._last_read
            self._last_caught_up = frozenset(caught_up) or self._last_caught_up
            proven.append((ranges, caught_up))
        return proven

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition whose log is gone: a later proof must not set its old end."""
        self._last_read.pop(partition, None)
        self._last_caught_up -= {partition}
        for number, ranges in self._ranges.items():
            ranges.pop(partition, None)
            if number in self._caught_up:
                kept = {p: read for p, read in self._caught_up[number].items() if p != partition}
                self._caught_up[number] = kept

    def have(self, partition: TopicPartition) -> bool:
        """Whether an unproven batch reads this partition."""
        return any(
            partition in ranges
            for batches in (self._ranges, self._caught_up)
            for ranges in batches.values()
        )

    def any(self) -> bool:
        """Whether there is an unproven batch."""
        return bool(self._ranges)

    def oldest(self) -> int | None:
        """The number of the oldest unproven batch; None if there is none."""
        return next(iter(self._ranges), None)

    def ranges(self, of: Container[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """The live ranges that they read of these partitions, merged into one for each."""
        found: dict[TopicPartition, OffsetRange] = {}
        for ranges in self._ranges.values():
            for partition, handed in ranges.items():
                before = found.get(partition)
                if before is not None and before.end == handed.start:
                    handed = replace(handed, start=before.start)
                if partition in of:
                    found[partition] = handed
        return found

    def caught_up(self) -> CaughtUp:
        """The parts of gaps that the batch planned last reads."""
        return self._caught_up.get(self.number, NOTHING)

    def with_caught_up(self) -> set[TopicPartition]:
        """Partitions whose gaps were read by them, or by the last proven batch with gaps."""
        return {*self._last_caught_up, *(p for read in self._caught_up.values() for p in read)}

    def read_to(self) -> dict[TopicPartition, int]:
        """Where their ranges end, and those of the last proven batch that had any."""
        ends = dict(self._last_read)
        for ranges in self._ranges.values():
            ends.update({p: handed.end for p, handed in ranges.items()})
        return ends


#: The start of a query's first batch.
_INITIAL = offset_to_json(INITIAL_OFFSET)


@dataclass
class OpenBatch:
    """A batch that Spark was given and that is not proven.

    Attributes
    ----------
    start : dict or None
        Where it starts; None if unknown, as for a warm-up.
    end : dict
        The offset that Spark was given.
    number : int
        The batch number in QueryAssignment.
    logged : bool
        Whether its end is known to be in Spark's log.
    """

    start: dict[str, Any] | None
    end: dict[str, Any]
    number: int
    logged: bool


class OpenBatches:
    """The open batches in order; more than one only with async progress tracking."""

    def __init__(self) -> None:
        self._open: list[OpenBatch] = []
        self._start: dict[str, Any] | None = None  # of this trigger
        # How Spark tracks its progress, once known.
        self._synchronous = False
        self._asynchronous = False

    def progress_is_synchronous(self) -> None:
        """Spark does not track progress asynchronously with this query's trigger."""
        self._synchronous = True

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether some batch was done before Spark had said that its end is logged."""
        return self._asynchronous

    @property
    def last_end(self) -> dict[str, Any] | None:
        """Where the batch planned last ends, if it is not proven."""
        return self._open[-1].end if self._open else None

    def add(self, end: dict[str, Any], number: int) -> None:
        """Spark gets the end of the next batch."""
        self._open.append(OpenBatch(self._start, end, number, logged=self._synchronous))

    def resume(self, end: dict[str, Any], number: int) -> None:
        """Spark reruns a batch of its log; this process has not planned any yet."""
        self._open.append(OpenBatch(None, end, number, logged=True))

    def prove(self, end: dict[str, Any]) -> int | None:
        """The batch that ends here and all before it are proven.

        Returns
        -------
        int or None
            Its number; None if no open batch ends here, because it was proven before.
        """
        for index, batch in enumerate(self._open):
            if batch.end == end:
                del self._open[: index + 1]
                return batch.number
        return None

    def commit(self, end: dict[str, Any]) -> int | None:
        """Spark's ``commit``; returns as :meth:`prove`."""
        number = self.prove(end)
        if self._open and self._open[-1].start == end:
            # Once async, always async: with several sources the same commit can come twice.
            self._open[-1].logged = not self._asynchronous
        return number

    def begin_trigger(self, start: dict[str, Any]) -> int | None:
        """Spark's ``latestOffset(start)``; returns as :meth:`prove`.

        Raises
        ------
        KafkaRebalanceError
            Spark goes on from another offset than the end of the batch planned last. This does not
            happen, since Spark logs every batch that it plans; a restart would fix it.
        """
        self._start = start
        last = self._open[-1] if self._open else None
        if last is None:
            return None
        if last.end != start:
            raise KafkaRebalanceError(
                "Spark continues from an offset that is not the end of the last planned batch; "
                "restart the query from its checkpoint"
            )
        if last.logged:
            return self.prove(start)
        self._asynchronous |= last.start not in (None, _INITIAL)
        return None
