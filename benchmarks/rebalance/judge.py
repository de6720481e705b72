"""What a run of the scenario proves. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kafka.structs import TopicPartition

from measuring.rebalance_figures import (
    Delivery,
    HandOver,
    Rebalance,
    Window,
    deliveries_of,
    figures_of,
    kept_partitions,
)
from pyspark_kafka_rebalance.testing.ledger import tally

from .peers import Peer
from .scenario import Course

BIN_S = 0.1


@dataclass(frozen=True)
class Join:
    """The cost of one join.

    Attributes
    ----------
    at_s : float
        Seconds after the beginning of the curve.
    kept, moved : int
        Partitions that stayed with their owner, and partitions that moved.
    before_s, during_s : float or None
        The longest silence of a kept partition: the longest time without a record of it.
    hand_over_median_s, hand_over_longest_s : float or None
        From the old owner's last record to the new owner's first.
    drained_to_first_s : float or None
        From the time when the last partition that moved was drained until all that moved had their
        first record at the new owner; None if the old owner did not drain.
    """

    name: str
    at_s: float
    kept: int
    moved: int
    before_s: float | None
    during_s: float | None
    hand_over_median_s: float | None
    hand_over_longest_s: float | None
    drained_to_first_s: float | None


@dataclass(frozen=True)
class Verdict:
    """What one run of one peer proves.

    Attributes
    ----------
    drain : bool
        Whether it drained partitions before it released them.
    records, duplicates, holes : int
        Distinct records delivered, deliveries beyond the first, offsets never delivered.
    joins : list of Join
    curve : list of int
        Records per 100 ms of the partitions that stayed with their owner through both joins.
    curve_partitions : int
        The number of these partitions.
    """

    peer: str
    version: str
    drain: bool
    ours: bool
    classic: bool
    records: int
    duplicates: int
    holes: int
    joins: list[Join]
    curve: list[int]
    curve_partitions: int

    @property
    def before_s(self) -> float | None:
        """The longest silence of a kept partition before the joins."""
        return longest(join.before_s for join in self.joins)

    @property
    def during_s(self) -> float | None:
        """The longest silence of a kept partition during the joins."""
        return longest(join.during_s for join in self.joins)

    @property
    def ratio(self) -> float | None:
        """The longest silence during the joins ÷ before them."""
        before, during = self.before_s, self.during_s
        return during / before if before and during is not None else None

    @property
    def hand_over_median_s(self) -> float | None:
        """The slower join's median hand-over."""
        return longest(join.hand_over_median_s for join in self.joins)

    @property
    def hand_over_longest_s(self) -> float | None:
        """The longest hand-over of all partitions that moved."""
        return longest(join.hand_over_longest_s for join in self.joins)

    @property
    def drained_to_first_s(self) -> float | None:
        """The time from last drained to first record of the slower join."""
        return longest(join.drained_to_first_s for join in self.joins)


def judge(peer: Peer, course: Course, *, drain: bool) -> Verdict:
    """Judge one run of a peer."""
    deliveries = deliveries_of(course.ledger)
    counted = tally(course.ledger, course.end_offsets)
    whole = Window(course.began_at, course.ended_at)
    stayed = kept_partitions(deliveries, whole)
    joins = [
        Join(
            name=figures.rebalance.name,
            at_s=figures.rebalance.at - course.began_at,
            kept=figures.kept,
            moved=len(figures.hand_overs),
            before_s=figures.pause_before,
            during_s=longest(
                [figures.pause_during, open_silence(deliveries, figures.rebalance)],
            ),
            hand_over_median_s=figures.median_hand_over,
            hand_over_longest_s=figures.longest_hand_over,
            drained_to_first_s=drained_to_first(
                figures.hand_overs, course.drained, figures.rebalance.during
            ),
        )
        for figures in figures_of(deliveries, course.rebalances)
    ]
    return Verdict(
        peer=peer.name,
        version=course.version,
        drain=drain,
        ours=peer.ours,
        classic=peer.classic,
        records=counted.records,
        duplicates=counted.duplicated,
        holes=sum(map(len, counted.lost.values())),
        joins=joins,
        curve=curve([d for d in deliveries if d.partition in stayed], whole),
        curve_partitions=len(stayed),
    )


def open_silence(deliveries: Iterable[Delivery], rebalance: Rebalance) -> float | None:
    """The longest silence of a kept partition that is still going on when the window ends.

    ``figures`` counts a pause in the window where it ends, so it misses a partition that stops.
    """
    deliveries = list(deliveries)
    until = rebalance.during.until
    kept = kept_partitions(deliveries, Window(rebalance.before.since, until))
    last: dict[TopicPartition, float] = {}
    for delivery in deliveries:
        if delivery.partition in kept and delivery.completed_at <= until:
            last[delivery.partition] = delivery.completed_at
    return longest(until - at for at in last.values())


def drained_to_first(
    hand_overs: Collection[HandOver],
    drained: Iterable[tuple[float, TopicPartition]],
    window: Window,
) -> float | None:
    """Seconds from the last partition drained to the first record of the last that moved."""
    moved = {hand_over.partition for hand_over in hand_overs}
    at = {p: when for when, p in sorted(drained) if p in moved and when in window}
    if not moved or at.keys() != moved:
        return None
    return max(hand_over.first_at for hand_over in hand_overs) - max(at.values())


def curve(deliveries: Iterable[Delivery], window: Window) -> list[int]:
    """The number of records in each 100 ms of the window."""
    bins = [0] * int((window.until - window.since) / BIN_S)
    for delivery in deliveries:
        n = int((delivery.completed_at - window.since) // BIN_S)
        if 0 <= n < len(bins):
            bins[n] += delivery.rows
    return bins


def longest(values: Iterable[float | None]) -> float | None:
    """The longest of the known values; None if there are none."""
    return max((value for value in values if value is not None), default=None)
