"""OpenBatches: the query's unproven batches, and the calls that prove them. Pure.

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

A batch that our own sink decides (``Batch.by_sink``) is proven by that decision, which Kafka holds,
and before Spark's calls. If they come first, the news of the decision was lost; then they prove
nothing, and the batch is dropped: the group says how far the partitions were read.

``BatchTime`` and ``advice_on_overdue`` are for a batch that takes too long for any of that.

Not thread-safe: the owner holds one lock around every call.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from dataclasses import replace
from typing import Any

from kafka.structs import TopicPartition

from ....errors import KafkaRebalanceError, names_of
from ....fetch.offset_range import OffsetRange
from ...offsets.offset_json import offset_to_json
from ...offsets.stream_offset import INITIAL_OFFSET
from ...plan.catch_up import CatchUpPace
from .batch import NOTHING, Batch, CaughtUp

#: The start of a query's first batch.
_INITIAL = offset_to_json(INITIAL_OFFSET)


class OpenBatches:
    """The batches in the order in which they were planned; the last one may not be Spark's yet.

    Holds batches with ranges, and batches whose end Spark was given. Only async progress tracking
    has more than one with ranges. A proof removes a batch, and all before it.
    """

    def __init__(self) -> None:
        self.number = 0  #: of batches handed out, also of those that read nothing after all
        self._open: list[Batch] = []
        # The ends of the ranges of the last proven batch that had any.
        self._last_read: dict[TopicPartition, int] = {}
        self._last_caught_up: frozenset[TopicPartition] = frozenset()  # likewise for gaps
        self._start: dict[str, Any] | None = None  # of this trigger
        # How Spark tracks its progress, once known.
        self._synchronous = False
        self._asynchronous = False

    # -- planning ---------------------------------------------------------------------------------

    def add(
        self, ranges: Mapping[TopicPartition, OffsetRange], catch_up: CaughtUp = NOTHING
    ) -> None:
        """Record a planned batch that reads these: the live ranges, and parts of gaps."""
        self.number += 1
        if ranges or catch_up:
            self._open.append(Batch(self.number, dict(ranges), dict(catch_up), has_ranges=True))

    def request_revokes(self, partitions: Collection[TopicPartition]) -> None:
        """The batch planned last has the ``revoke_requested`` rows of these partitions."""
        if partitions:
            self._planned_last().requests.update(partitions)

    def give_to_spark(self, end: dict[str, Any], now: float) -> Batch:
        """Spark gets the end of the batch planned last, or of one that reads nothing."""
        batch = self._planned_last()
        batch.start, batch.end, batch.opened_at = self._start, end, now
        batch.is_logged = self._synchronous
        return batch

    def resume(self, end: dict[str, Any]) -> None:
        """Spark reruns the batch planned last, or one without ranges: its end is in Spark's log."""
        batch = self._planned_last()
        batch.end, batch.is_logged, batch.is_rerun = end, True, True

    def _planned_last(self) -> Batch:
        """The batch planned last; a new one without ranges if Spark has had that already."""
        last = self._open[-1] if self._open else None
        if last is None or last.end is not None or last.number != self.number:
            last = Batch(self.number)
            self._open.append(last)
        return last

    # -- Spark's calls ----------------------------------------------------------------------------

    def progress_is_synchronous(self) -> None:
        """Spark does not track progress asynchronously with this query's trigger."""
        self._synchronous = True

    @property
    def progress_is_asynchronous(self) -> bool:
        """Whether some batch was done before Spark had said that its end is logged."""
        return self._asynchronous

    @property
    def last_end(self) -> dict[str, Any] | None:
        """Where the last batch ends that Spark was given, if it is not proven."""
        last = self._given_last()
        return None if last is None else last.end

    def prove(self, end: dict[str, Any]) -> list[Batch]:
        """The batch that ends here and all before it are proven; returns those.

        Empty if no open batch ends here, because it was proven before.
        """
        for index, batch in enumerate(self._open):
            if batch.end == end:
                return self._take(index + 1)
        return []

    def commit(self, end: dict[str, Any]) -> list[Batch]:
        """Spark's ``commit``; returns as :meth:`prove`."""
        proven = self.prove(end)
        last = self._given_last()
        if last is not None and last.start == end:
            # Once async, always async: with several sources the same commit can come twice.
            last.is_logged = not self._asynchronous
        return proven

    def begin_trigger(self, start: dict[str, Any]) -> list[Batch]:
        """Spark's ``latestOffset(start)``; returns as :meth:`prove`.

        Raises KafkaRebalanceError if ``start`` is not the end of the batch planned last. This does
        not happen, since Spark logs every batch that it plans; a restart would fix it.
        """
        self._start = start
        last = self._given_last()
        if last is None:
            return []
        if last.end != start:
            raise KafkaRebalanceError(
                "Spark continues from an offset that is not the end of the last planned batch; "
                "restart the query from its checkpoint"
            )
        if last.is_logged:
            return self.prove(start)
        self._asynchronous |= last.start not in (None, _INITIAL)
        return []

    def ending_at(self, end: dict[str, Any]) -> Batch | None:
        """The open batch that ends here."""
        return next((batch for batch in self._open if batch.end == end), None)

    def drop(self, batch: Batch) -> None:
        """This batch was not delivered, or nobody knows whether it was; it proves nothing.

        One of Spark's calls may have taken it already.
        """
        self._open = [one for one in self._open if one is not batch]

    def prove_up_to(self, number: int) -> list[Batch]:
        """All batches up to this number are proven; returns as :meth:`prove`."""
        return self._take(sum(batch.number <= number for batch in self._open))

    def done(self, pace: CatchUpPace, now: float) -> None:
        """All batches are done, whether or not that proves them; see :meth:`Batch.done`."""
        for batch in self._open:
            batch.done(pace, now)

    def _given_last(self) -> Batch | None:
        return next((batch for batch in reversed(self._open) if batch.end is not None), None)

    def _take(self, count: int) -> list[Batch]:
        taken, self._open = self._open[:count], self._open[count:]
        for batch in taken:
            self._last_read = _ends(batch) or self._last_read
            self._last_caught_up = frozenset(batch.catch_up) or self._last_caught_up
        return taken

    # -- changes of their partitions --------------------------------------------------------------

    def forget(self, partition: TopicPartition) -> None:
        """Forget a partition whose log was deleted: a later proof must not set its old end."""
        self._last_read.pop(partition, None)
        self._last_caught_up -= {partition}
        for batch in self._open:
            batch.forget(partition)

    def forget_request(self, partition: TopicPartition) -> None:
        """Forget the ``revoke_requested`` rows of a partition that is lost."""
        for batch in self._open:
            batch.requests.discard(partition)

    # -- queries ----------------------------------------------------------------------------------

    def have(self, partition: TopicPartition) -> bool:
        """Whether an unproven batch reads this partition."""
        return any(batch.reads(partition) for batch in self._open)

    def any(self) -> bool:
        """Whether there is an unproven batch with ranges."""
        return self.oldest() is not None

    def oldest(self) -> int | None:
        """The number of the oldest unproven batch with ranges; None if there is none."""
        return next((batch.number for batch in self._open if batch.has_ranges), None)

    def are_timed(self) -> bool:
        """Whether the duration of one is to set the pace of the catch-up, and is not known yet."""
        return any(batch.share is not None for batch in self._open)

    def requests(self) -> set[TopicPartition]:
        """The partitions whose ``revoke_requested`` row is in an unproven batch."""
        return {partition for batch in self._open for partition in batch.requests}

    def ranges(self, of: Container[TopicPartition]) -> dict[TopicPartition, OffsetRange]:
        """The live ranges that they read of these partitions, merged into one for each."""
        found: dict[TopicPartition, OffsetRange] = {}
        for batch in self._open:
            for partition, handed in batch.ranges.items():
                before = found.get(partition)
                if before is not None and before.end == handed.start:
                    handed = replace(handed, start=before.start)
                if partition in of:
                    found[partition] = handed
        return found

    def caught_up(self) -> CaughtUp:
        """The parts of gaps that the batch handed out last reads."""
        last = self._open[-1] if self._open else None
        return NOTHING if last is None or last.number != self.number else last.catch_up

    def with_caught_up(self) -> set[TopicPartition]:
        """Partitions whose gaps were read by them, or by the last proven batch with gaps."""
        return {*self._last_caught_up, *(p for batch in self._open for p in batch.catch_up)}

    def read_to(self) -> dict[TopicPartition, int]:
        """Where their ranges end, and the ranges of the last proven batch that had any."""
        ends = dict(self._last_read)
        for batch in self._open:
            ends.update(_ends(batch))
        return ends


def _ends(batch: Batch) -> dict[TopicPartition, int]:
    return {partition: handed.end for partition, handed in batch.ranges.items()}


class BatchTime:
    """Times the oldest unproven batch, by the caller's clock; ``limit_s`` is None for no limit."""

    def __init__(self, limit_s: float | None) -> None:
        self._limit_s = limit_s
        self._batch: int | None = None
        self._began_at = 0.0

    def is_over(self, batch: int | None, now: float) -> bool:
        """Whether the oldest unproven batch with ranges, by its number, has exceeded the limit."""
        if batch != self._batch:
            self._batch, self._began_at = batch, now
        return (
            batch is not None and self._limit_s is not None and now - self._began_at > self._limit_s
        )


def advice_on_overdue(overdue: Collection[TopicPartition], has_commit_log: bool) -> str:
    """The advice to log for partitions whose revoke has waited too long for its batch.

    They are lost, and were handed out in a batch that is not known to be committed by Spark.
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
