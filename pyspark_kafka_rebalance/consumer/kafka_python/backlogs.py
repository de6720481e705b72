"""Decides which backlogs to set aside when partitions are assigned, by the ends of their logs."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeVar

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition
from kafka.util import Timer

from ..catch_up import CatchUpOptions
from ..offsets.commit_metadata import Decoded, Remaining
from .next_records import next_timestamps
from .questions import epoch_ends, told_places
from .starts import Backlog

if TYPE_CHECKING:
    from .coordinator import GroupCoordinator

log = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Timeout for a log's end; after it, the partition starts at the group's offset. A leader that
#: cannot answer this could not be read from, either.
_ASK_MS = 2_000


class SetsAside(Protocol):
    """Receives the backlogs; ``GapHandOuts`` implements it."""

    def left(self, partition: TopicPartition, start: OffsetAndMetadata) -> Decoded:
        """The offsets that the group has not processed, by its last commit."""

    def set_aside(
        self,
        partition: TopicPartition,
        start: OffsetAndMetadata,
        remaining: Remaining,
        in_order: bool,
    ) -> None:
        """Start the partition at the live position, with the rest to be caught up."""


class LogBacklogs:
    """Requests ends and ages of backlogs; everything here is called on the consumer's I/O loop.

    Parameters
    ----------
    consumer : KafkaConsumer
        Asks the brokers, under its own isolation level.
    io : GroupCoordinator
        The consumer's.
    options : CatchUpOptions
        Define a backlog.
    gaps : callable
        Returns the receiver of the backlogs; called once there are any.
    now_ms : callable
        The time in milliseconds, of the clock that the records' timestamps are from.
    """

    def __init__(
        self,
        consumer: KafkaConsumer,
        io: GroupCoordinator,
        options: CatchUpOptions,
        gaps: Callable[[], SetsAside],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._consumer = consumer
        self._fetcher = consumer._fetcher
        self._manager = consumer._manager
        self._io = io
        self._options = options
        self._gaps = gaps
        self._now_ms = now_ms

    async def look_up(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Backlog]:
        """The backlogs to set aside; partitions without an answer start as usual."""
        if not self._io.subscription.subscribed:
            return {}
        try:
            ends = await self._ask(dict.fromkeys(committed, OffsetSpec.LATEST))
            left = await self._left(committed)
            old = await self._old(left, {p: end.offset for p, end in ends.items() if end})
        except kafka_errors.KafkaError as error:
            log.warning(
                "group %s: nothing is set aside to catch up, because the end offsets are unknown: "
                "%r",
                self._io.group_id,
                error,
            )
            return {}
        found = {}
        for partition, end in ends.items():
            if end is None or partition not in old:
                continue
            aside = self._options.set_aside(left[partition], end.offset, old[partition])
            if aside is not None:
                found[partition] = Backlog(aside, end.leader_epoch)
        return found

    def begin(
        self, partition: TopicPartition, start: OffsetAndMetadata, remaining: Remaining
    ) -> None:
        """Start the partition at the live position."""
        self._gaps().set_aside(partition, start, remaining, self._options.in_order)

    async def _left(
        self, committed: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, Remaining]:
        """The offsets that the group has not processed of the records that exist now.

        After an unclean election, processed offsets from the end of their epoch on hold other
        records. Partitions without an answer about that are left out.
        """
        gaps = self._gaps()
        told = {p: gaps.left(p, start) for p, start in committed.items()}
        left = {p: decoded.remaining for p, decoded in told.items()}
        epochs = {
            p: decoded.leader_epoch
            for p, decoded in told.items()
            if decoded.leader_epoch >= 0 and decoded.remaining.gaps
        }
        ends = await self._until_told(
            lambda asked, timeout_ms: epoch_ends(self._manager, asked, timeout_ms), epochs
        )
        for partition in epochs:
            if partition in ends:
                left[partition] = left[partition].start_over(
                    max(ends[partition], left[partition].committed())
                )
            else:
                del left[partition]
        return left

    async def _old(
        self, left: Mapping[TopicPartition, Remaining], ends: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, set[int]]:
        """The offsets whose next record is older than the threshold, if the threshold is an age.

        Partitions without an answer about that are left out.
        """
        old: dict[TopicPartition, set[int]] = {p: set() for p in left if p in ends}
        if self._options.threshold_ms is None:
            return old
        since = self._now_ms() - self._options.threshold_ms
        wanted = {p: self._options.may_be_behind(left[p], ends[p]) for p in old}
        timer = Timer(_ASK_MS)
        while positions := {p: offsets.pop(0) for p, offsets in wanted.items() if offsets}:
            told = await next_timestamps(self._consumer, positions, ends, timer.timeout_ms)
            for partition, offset in positions.items():
                if partition not in told:
                    log.warning(
                        "group %s: %s-%d starts at the group's offset, because its next record "
                        "could not be read within %d ms",
                        *(self._io.group_id, *partition, _ASK_MS),
                    )
                    del old[partition], wanted[partition]
                elif (timestamp := told[partition]) is None:
                    pass  # there is nothing to wait for
                elif timestamp < since:
                    old[partition].add(offset)
        return old

    async def _ask(
        self, wanted: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        return await self._until_told(
            lambda asked, timeout_ms: told_places(self._fetcher, asked, timeout_ms), wanted
        )

    async def _until_told(
        self,
        ask: Callable[[Mapping[TopicPartition, int], float], Awaitable[dict[TopicPartition, _T]]],
        wanted: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, _T]:
        timer = Timer(_ASK_MS)
        found: dict[TopicPartition, _T] = {}
        while True:
            asked = {p: what for p, what in wanted.items() if p not in found}
            found |= await ask(asked, timer.timeout_ms)
            if len(found) == len(wanted) or timer.expired:
                return found
            backoff_ms = self._io.config["retry_backoff_ms"]
            await self._io.loop.sleep(min(backoff_ms, timer.timeout_ms) / 1000)
