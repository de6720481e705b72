"""Batch: one batch of the query, from the moment it is planned until it is proven. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kafka.structs import TopicPartition

from ....fetch.offset_range import OffsetRange
from ...plan.catch_up import CatchUpPace, Share

#: The ranges that a batch reads of the partitions' gaps.
CaughtUp: TypeAlias = Mapping[TopicPartition, Sequence[OffsetRange]]

NOTHING: CaughtUp = {}


@dataclass(slots=True)
class Batch:
    """A batch that is planned and not proven; guarded by the owner's lock.

    It changes in three steps: :class:`QueryAssignment` records its ranges and its rows, then Spark
    is given its end, and then Spark's calls show that it is done, or that its end is logged.
    """

    #: How many batches had been handed out when it was planned, itself included. One that reads
    #: nothing can have the number of the batch before.
    number: int
    #: Its live ranges, and the parts of gaps that it reads; without logs deleted in the meantime.
    ranges: dict[TopicPartition, OffsetRange] = field(default_factory=dict)
    catch_up: CaughtUp = field(default_factory=dict)
    has_ranges: bool = False  #: whether it was planned with either
    #: The partitions whose ``revoke_requested`` row it has, if they are still owned.
    requests: set[TopicPartition] = field(default_factory=set)
    start: dict[str, Any] | None = None  #: as Spark has it; None if unknown, as for a warm-up
    end: dict[str, Any] | None = None  #: None before Spark was given it
    is_logged: bool = False  #: whether its end is known to be in Spark's log
    opened_at: float = 0.0  #: when Spark was given it; seconds, monotonic
    #: Whether the sink decides it, together with its output: ``SinkBatches``.
    by_sink: bool = False
    #: Whether Spark reruns it, so that the group may have it, or parts of it, already.
    is_rerun: bool = False
    #: Whether the sink was told last that the members hold all of it.
    is_held: bool = False
    #: Its share of gaps, if its duration is to set the pace and is not known yet.
    share: Share | None = None

    def reads(self, partition: TopicPartition) -> bool:
        """Whether it reads anything of this partition."""
        return partition in self.ranges or partition in self.catch_up

    def all_reads(self) -> dict[TopicPartition, tuple[OffsetRange, ...]]:
        """All that it reads of each partition, in order."""
        reads = {p: tuple(pieces) for p, pieces in self.catch_up.items()}
        for partition, live in self.ranges.items():
            reads[partition] = (*reads.get(partition, ()), live)
        return reads

    def forget(self, partition: TopicPartition) -> None:
        """Drop the ranges of a partition whose log was deleted."""
        self.ranges.pop(partition, None)
        if partition in self.catch_up:
            self.catch_up = {p: read for p, read in self.catch_up.items() if p != partition}

    def done(self, pace: CatchUpPace, now: float) -> None:
        """Note that the batch is done, and let the pace learn from it; idempotent."""
        share, self.share = self.share, None
        if share is not None:
            pace.learn(share, now - self.opened_at)
