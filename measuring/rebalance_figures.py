"""Compute rates, pauses and hand-overs from the ledger; pure.

All times are from the sinks' clocks (``time.time()``, one machine). A *delivery* is one batch of
one reader, as far as it has one partition; its records are delivered when the batch completes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

_Key = TypeVar("_Key")

#: A reader whose next batch comes this much later than usual was idle.
_SLACK_S = 0.25


@dataclass(frozen=True)
class Delivery:
    """One batch's records of one partition.

    Attributes
    ----------
    began_at, received_at, completed_at : float
        When the sink got the batch, had its records, and was done with them.
    """

    reader: str
    batch: int
    partition: TopicPartition
    began_at: float
    received_at: float
    completed_at: float
    rows: int


@dataclass(frozen=True)
class HandOver:
    """One partition on its way from one reader to another.

    Attributes
    ----------
    last_at : float
        When the old owner completed its last batch with records of the partition.
    first_at : float
        When the new owner had its first record, not processed yet.
    """

    partition: TopicPartition
    old: str
    new: str
    last_at: float
    first_at: float

    @property
    def seconds(self) -> float:
        """The time from the old owner's last record to the new owner's first."""
        return self.first_at - self.last_at


@dataclass(frozen=True)
class Window:
    """An interval of time."""

    since: float
    until: float

    def __contains__(self, at: float) -> bool:
        return self.since < at <= self.until


@dataclass(frozen=True)
class Rebalance:
    """The scenario's view of a change of the group.

    Attributes
    ----------
    name : str
        Such as "B joins".
    at : float
        When the group saw it start.
    before, during : Window
        A calm interval before it, and the time from its start until everything has moved.
    """

    name: str
    at: float
    before: Window
    during: Window


@dataclass(frozen=True)
class RebalanceFigures:
    """The cost of one rebalance.

    Attributes
    ----------
    kept : int
        Partitions that stayed with their owner.
    pause_before, pause_during : float or None
        The longest time without a completed batch for any one of them; None without any.
    rate_ratio : float or None
        Their rows per second during the rebalance ÷ before it.
    hand_overs : list of HandOver
        The partitions that moved.
    """

    rebalance: Rebalance
    kept: int
    pause_before: float | None
    pause_during: float | None
    rate_ratio: float | None
    hand_overs: list[HandOver]

    @property
    def median_hand_over(self) -> float | None:
        """In seconds."""
        return median(h.seconds for h in self.hand_overs) if self.hand_overs else None

    @property
    def longest_hand_over(self) -> float | None:
        """In seconds."""
        return max((h.seconds for h in self.hand_overs), default=None)


def deliveries_of(ledger: pa.Table) -> list[Delivery]:
    """Reduce the ledger's rows to deliveries, by completion."""
    if not ledger.num_rows:
        return []
    keys = ["reader", "batch", "attempt", "topic", "partition"]
    records = ledger.filter(pc.is_valid(ledger["offset"]))
    grouped = records.group_by(keys).aggregate(
        [(f"{name}_at", "min") for name in ("began", "received", "completed")]
        + [("offset", "count")]
    )
    found = [
        Delivery(
            row["reader"],
            row["batch"],
            TopicPartition(row["topic"], row["partition"]),
            row["began_at_min"],
            row["received_at_min"],
            row["completed_at_min"],
            row["offset_count"],
        )
        for row in grouped.to_pylist()
    ]
    return sorted(found, key=lambda d: (d.completed_at, d.reader, d.partition))


def spans(deliveries: Sequence[Delivery]) -> dict[Delivery, Window]:
    """Return the time over which each delivery's rows came in.

    A batch is under way from the completion of the reader's previous batch, if the reader continued
    about as quickly as usual. A longer gap is idle time: rows that waited during it are not spread
    over it, so that a stall shows as one.
    """
    batches: dict[str, dict[float, float]] = defaultdict(dict)  # by reader: completed, began
    for d in deliveries:
        batches[d.reader][d.completed_at] = d.began_at
    starts: dict[tuple[str, float], float] = {}
    for reader, began_by_completion in batches.items():
        ordered = sorted(began_by_completion.items())
        gaps = [began - done for (done, _), (_, began) in pairwise(ordered)]
        usual = median(gaps) + _SLACK_S if gaps else 0.0
        before = float("-inf")
        for completed, began in ordered:
            starts[reader, completed] = before if began - before <= usual else began
            before = completed
    return {d: Window(starts[d.reader, d.completed_at], d.completed_at) for d in deliveries}


def rates(deliveries: Sequence[Delivery], edges: Sequence[float]) -> dict[str, list[float]]:
    """Return the rows per second of each reader, in each bin between two edges."""
    return _rates(deliveries, edges, lambda delivery: delivery.reader)


def partition_rates(
    deliveries: Sequence[Delivery], edges: Sequence[float]
) -> dict[tuple[TopicPartition, str], list[float]]:
    """Return the rows per second of each partition and reader, in each bin between two edges."""
    return _rates(deliveries, edges, lambda delivery: (delivery.partition, delivery.reader))


def _rates(
    deliveries: Sequence[Delivery], edges: Sequence[float], key_of: Callable[[Delivery], _Key]
) -> dict[_Key, list[float]]:
    found: dict[_Key, list[float]] = {}
    for delivery, span in spans(deliveries).items():
        bins = found.setdefault(key_of(delivery), [0.0] * (len(edges) - 1))
        length = max(span.until - span.since, 1e-9)
        for n, (left, right) in enumerate(pairwise(edges)):
            overlap = min(right, span.until) - max(left, span.since)
            if overlap > 0:
                bins[n] += delivery.rows * overlap / length / (right - left)
    return found


def counter_rates(counts: Sequence[tuple[float, int]], edges: Sequence[float]) -> list[float]:
    """Return the rate in each bin, from readings (time, count so far) of a growing counter."""

    def count_at(at: float) -> float:
        if not counts or at <= counts[0][0]:
            return counts[0][1] if counts else 0.0
        for (left, low), (right, high) in pairwise(counts):
            if left <= at <= right:
                return low + (high - low) * (at - left) / max(right - left, 1e-9)
        return counts[-1][1]

    readings = [count_at(edge) for edge in edges]
    return [
        (high - low) / (right - left)
        for (left, right), (low, high) in zip(pairwise(edges), pairwise(readings), strict=True)
    ]


def smooth(values: Sequence[float], width: int) -> list[float]:
    """Return the centred moving average over ``width`` bins (odd), shorter at the ends."""
    half = width // 2
    return [
        sum(part) / len(part)
        for n in range(len(values))
        if (part := values[max(0, n - half) : n + half + 1])
    ]


def hand_overs(deliveries: Sequence[Delivery]) -> list[HandOver]:
    """Return every change of a partition's reader, ordered by the new reader's first record."""
    found = []
    for partition, of_partition in _by_partition(deliveries).items():
        for old, new in pairwise(of_partition):
            if old.reader != new.reader:
                found.append(
                    HandOver(partition, old.reader, new.reader, old.completed_at, new.received_at)
                )
    return sorted(found, key=lambda h: h.first_at)


def kept_partitions(
    deliveries: Sequence[Delivery], window: Window, slow: Collection[str] = ()
) -> set[TopicPartition]:
    """Return the partitions that keep their reader, not a slow one, through the whole window."""
    return {
        partition
        for partition, of_partition in _by_partition(deliveries).items()
        if len(readers := {d.reader for d in of_partition if d.completed_at in window}) == 1
        and not readers & set(slow)
    }


def longest_pause(
    deliveries: Sequence[Delivery], partitions: Collection[TopicPartition], window: Window
) -> float | None:
    """Return the longest time between two completed batches with records of one of the partitions.

    A pause belongs to the window in which it ends, however early it started.
    """
    pauses = [
        later.completed_at - earlier.completed_at
        for partition, of_partition in _by_partition(deliveries).items()
        if partition in partitions
        for earlier, later in pairwise(of_partition)
        if later.completed_at in window
    ]
    return max(pauses, default=None)


def waits(
    deliveries: Sequence[Delivery], partitions: Collection[TopicPartition], times: Sequence[float]
) -> list[float]:
    """Return, at each time, how long the partition that waits longest has had no completed batch.

    A partition counts from its first completed batch on.
    """
    completed = {
        partition: [d.completed_at for d in of_partition]
        for partition, of_partition in _by_partition(deliveries).items()
        if partition in partitions
    }
    found = []
    for at in times:
        last = [of[n - 1] for of in completed.values() if (n := bisect_right(of, at))]
        found.append(at - min(last) if last else 0.0)
    return found


def rows_per_second(
    deliveries: Sequence[Delivery], partitions: Collection[TopicPartition], window: Window
) -> float:
    """Return the partitions' rate in the window; deliveries at its edges count by their share."""
    rows = 0.0
    for delivery, span in spans(deliveries).items():
        if delivery.partition in partitions:
            overlap = min(window.until, span.until) - max(window.since, span.since)
            rows += delivery.rows * max(0.0, overlap) / max(span.until - span.since, 1e-9)
    return rows / (window.until - window.since)


def figures_of(
    deliveries: Sequence[Delivery], rebalances: Iterable[Rebalance], slow: Collection[str] = ()
) -> list[RebalanceFigures]:
    """Return the cost of each rebalance; ignores the partitions that slow readers keep."""
    moved = hand_overs(deliveries)
    found = []
    for rebalance in rebalances:
        before, during = rebalance.before, rebalance.during
        kept = kept_partitions(deliveries, Window(before.since, during.until), slow)
        rate = rows_per_second(deliveries, kept, before)
        found.append(
            RebalanceFigures(
                rebalance,
                len(kept),
                longest_pause(deliveries, kept, before),
                longest_pause(deliveries, kept, during),
                rows_per_second(deliveries, kept, during) / rate if rate else None,
                [h for h in moved if h.first_at in during],
            )
        )
    return found


def _by_partition(deliveries: Iterable[Delivery]) -> Mapping[TopicPartition, list[Delivery]]:
    """Group the deliveries by partition, each ordered by completion."""
    found: dict[TopicPartition, list[Delivery]] = defaultdict(list)
    for delivery in deliveries:
        found[delivery.partition].append(delivery)
    return {p: sorted(of, key=lambda d: d.completed_at) for p, of in sorted(found.items())}
