"""Why a batch reads less than there is. One class for each reason, in the order of their use.

The cuts query the brokers through functions that they are given.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Protocol

from kafka.structs import TopicPartition

from ...fetch.offset_range import OffsetRange
from ..spark.read_limits import ReadAllAvailable
from .available_now import AvailableNowRun
from .batch_planner import Cut, Draft, Gone, Postponed, backlog
from .data_loss import find_beyond_end, find_data_loss
from .event_time import EventTime
from .times import Times

if TYPE_CHECKING:
    from ..options.source_options import SourceOptions


class Logs(Protocol):
    """The ends and sizes of the partitions' logs as brokers report them; ``LogEnds`` is one."""

    def high_watermarks(
        self, positions: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Where these logs end, open transactions included.

        Partitions without an answer are absent.
        """

    def bytes_per_offset(
        self, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, float]:
        """Average size of an offset before these ends; partitions without an answer are absent."""


def cuts_of(
    options: SourceOptions,
    logs: Logs,
    times: Times,
    unpositioned: Callable[[], Collection[TopicPartition]],
    run: AvailableNowRun | None,
) -> list[Cut]:
    """Return the cuts of one run, in their order.

    ``unpositioned`` returns the owned partitions whose start is still to be looked up; the run is
    that of AvailableNow.
    """
    cuts: list[Cut] = [
        WithinLogs(logs.high_watermarks, run),
        AllAtOnce(unpositioned) if run is None else WithinRun(run),
    ]
    if options.max_bytes_per_trigger is not None:
        cuts.append(KnownSizes(options.max_bytes_per_trigger, logs.bytes_per_offset))
    if options.min_offsets_per_trigger is not None and run is None:  # AvailableNow never waits
        cuts.append(
            EnoughToRead(options.min_offsets_per_trigger, options.max_trigger_delay_ms / 1000)
        )
    if options.event_time is not None:  # the last: it needs the batch's room
        cuts.append(EventTime(options.event_time, times, run is not None))
    return cuts


class _Cut:
    """A cut that ignores which ranges are handed out."""

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        pass


class WithinLogs(_Cut):
    """Reads nothing of a partition whose end is unknown, or before its position.

    Under read_committed, a position may exceed the reported end, within an open transaction:
    ``high_watermarks`` returns where logs really end, for the partitions with an answer. With
    AvailableNow, partitions that the run has read to its end may be deleted by now.
    """

    def __init__(
        self,
        high_watermarks: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
        run: AvailableNowRun | None = None,
    ) -> None:
        self._high_watermarks = high_watermarks
        self._run = run

    def cut(self, draft: Draft) -> Gone | None:
        """Return Gone if a position is past the end of its log."""
        draft.postpone(draft.positions.keys() - draft.ends.keys())
        positions = draft.positions if self._run is None else self._run.not_at_end(draft.positions)
        if beyond := find_beyond_end(positions, draft.ends):
            known = self._high_watermarks({p: at for p, at, _ in beyond})
            if lost := find_data_loss(beyond, known):
                return Gone(lost=lost)
            draft.doubt(p for p, _, _ in beyond if p not in known)
        return None


class AllAtOnce(_Cut):
    """``Once``: reads nothing while anything is unknown, since there is no second batch."""

    def __init__(self, unpositioned: Callable[[], Collection[TopicPartition]]) -> None:
        self._unpositioned = unpositioned

    def cut(self, draft: Draft) -> Postponed | None:
        """Return Postponed if this is ``Once`` and something is unknown."""
        if not isinstance(draft.limit, ReadAllAvailable):
            return None
        waiting = draft.postponed or frozenset(self._unpositioned())
        return Postponed(waiting) if waiting else None


class WithinRun:
    """``AvailableNow``: reads nothing beyond where the run ends; records how far it has come."""

    def __init__(self, run: AvailableNowRun) -> None:
        self._run = run

    def cut(self, draft: Draft) -> Gone | None:
        """Return Gone if the log of a partition ends before the run does."""
        self._run.reach(draft.positions)
        if shortened := self._run.shortened(draft.positions, draft.ends):
            return Gone(shortened=shortened)
        draft.postpone_only(self._run.unread(draft.positions))
        draft.until = self._run.cut(draft.until)
        return None

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Note how far the run has come."""
        self._run.reach({p: handed.end for p, handed in ranges.items()})


class KnownSizes(_Cut):
    """``maxBytesPerTrigger``: reads nothing of a partition whose leader does not report its size.

    ``bytes_per_offset`` returns the average size of an offset, given where the logs end.
    """

    def __init__(
        self,
        max_bytes: int,
        bytes_per_offset: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, float]],
    ) -> None:
        self._max_bytes = max_bytes
        self._bytes_per_offset = bytes_per_offset

    def cut(self, draft: Draft) -> None:
        """Have the batch shared by bytes, except with ``Once``."""
        if isinstance(draft.limit, ReadAllAvailable):
            return
        sizes = self._bytes_per_offset({p: draft.ends[p] for p in draft.until})
        unsized = draft.until.keys() - sizes.keys()
        draft.postpone(p for p in unsized if draft.positions[p] < draft.until[p])
        draft.until = {p: end for p, end in draft.until.items() if p in sizes}
        draft.max_bytes, draft.bytes_per_offset = self._max_bytes, sizes


class EnoughToRead:
    """``minOffsetsPerTrigger``: reads nothing until there is enough or ``maxTriggerDelay`` is over.

    ``delay_s`` after a batch with records the next one comes anyway.
    """

    def __init__(self, least: int, delay_s: float) -> None:
        self._least = least
        self._delay_s = delay_s
        self._read_at: float | None = None  # when a batch with records was planned last

    def cut(self, draft: Draft) -> None:
        """Remove everything if it is not enough; the group's events are still reported."""
        if isinstance(draft.limit, ReadAllAvailable) or self._read_at is None:
            return
        if (
            backlog(draft.positions, draft.until) < self._least
            and time.monotonic() - self._read_at < self._delay_s
        ):
            draft.until = {}

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Note when a batch has records."""
        if ranges:
            self._read_at = time.monotonic()
