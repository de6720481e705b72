"""A batch leaves no record that is much older than those it reads (KIP-695).

Pure, except for its queries. A batch reads every partition up to one timestamp, the bound:

* If the batch may not have all there is, the bound is as high as its limits allow.
* A partition that is empty, or that the batch would empty, may get more records as old as its last
  one. Until it has been empty for ``maxTaskIdleMs``, the bound is not above that timestamp.
* A partition holds all others back while its brokers do not answer.

``maxTimestampDrift`` is how far the bound may be exceeded. ``look_ups`` defines "the next
timestamp" of a partition, and which order is not promised. If look-ups do not help, a partition's
timestamps are read with its records: see ``timelines``.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping

from kafka.structs import TopicPartition

from ...consumer.offsets.found_records import RecordTime
from ...fetch.offset_range import OffsetRange
from ..options.event_time_options import EventTimeOptions
from ..spark.read_limits import ReadAllAvailable
from .batch_planner import Draft
from .bound import FULL, find_bound
from .idle_partitions import IdlePartitions
from .latest_timestamps import LatestTimestamps
from .look_ups import LookUps
from .room import Room
from .timelines import BEFORE_ALL, Timeline
from .times import Times, UntoldError
from .transaction_markers import Markers

log = logging.getLogger(__name__)

#: A timestamp further in the future is a mistake. Its record gets the time of the previous one.
FUTURE_MS = 24 * 3600 * 1000

#: How far above the lowest timestamp the search starts if partitions are new.
_FIRST_STEP_MS = 1_000

#: How many records of a partition are read ahead if look-ups do not help.
_READ_AHEAD = 20_000


#: How often a batch gets a new bound; partitions that still mislead then are read.
_CORRECTIONS = 5


class _AnewError(Exception):
    """The batch needs a new bound: more is known, or some partition is read from now on."""


class EventTime:
    """Finds the bound of each batch of a run, and cuts the batch there.

    ``has_end`` with AvailableNow: a partition that is read to the run's end will get no more
    records. ``clock`` returns monotonic seconds; timestamps come from ``now_ms``.
    """

    def __init__(
        self,
        options: EventTimeOptions,
        times: Times,
        has_end: bool,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._drift = options.max_drift_ms
        self._times = times
        transactional: set[TopicPartition] = set()
        self._latest = LatestTimestamps(times, self._warn, transactional)
        self._idles = options.max_idle_ms > 0 and not has_end
        self._partitions = IdlePartitions(options.max_idle_ms / 1000, clock)
        self._now_ms = now_ms
        self._look_ups = LookUps()
        self._markers = Markers(times, self._look_ups, transactional, clock)
        self._lines: dict[TopicPartition, Timeline] = {}  # where look-ups do not help
        # Of the planned batch: the positions; the ends of all partitions, and of those looked up;
        # and the timelines of the others.
        self._positions: Mapping[TopicPartition, int] = {}
        self._unread: Mapping[TopicPartition, int] = {}
        self._looked_up: Mapping[TopicPartition, int] = {}
        self._read: Mapping[TopicPartition, Timeline] = {}
        self._tops: Mapping[TopicPartition, int] = {}  # the latest timestamps, if idling needs them
        self._corrections = 0
        # For each queried bound: the ends of the batch, and the lowest timestamp that it leaves.
        self._ends: dict[int, dict[TopicPartition, int]] = {}
        self._following: dict[int, int | None] = {}
        self._reached: int | None = None  # the last bound that was searched for
        self._step = _FIRST_STEP_MS
        # After a full batch: the bound to query for the next one, below known latest timestamps.
        self._guess: int | None = None
        self._newest_may_be_old = False
        self._warned: set[TopicPartition] = set()

    def cut(self, draft: Draft) -> None:
        """Leave records above the bound; everything, while the bound is unknown."""
        if isinstance(draft.limit, ReadAllAvailable):
            return
        self._guess = None
        self._cut(draft)
        # A log's latest timestamp does not fall: a batch that is full below an earlier one would
        # be the same below the current one.
        self._newest_may_be_old = self._guess is not None
        first_at: Mapping[TopicPartition, int] = {}
        if self._guess is not None:
            unknown = self._look_ups.unknown_at(self._guess + 1)
            first_at = dict.fromkeys(unknown, self._guess + 1)
        self._times.prepare(first_at, newest=self._idles and not self._newest_may_be_old)

    def _cut(self, draft: Draft) -> None:
        unknown = draft.postponed | frozenset(self._times.awaited(draft.positions.keys()))
        asked_at = self._times.ends_asked_at()
        waiting = self._partitions.waiting(draft, asked_at) if self._idles else {}
        unread = {p: end for p, end in draft.until.items() if end > draft.positions[p]}
        if not unread:
            return
        if not unknown:
            try:
                draft.until = self._until(draft, unread, waiting)
            except UntoldError as error:
                unknown = error.partitions
        if unknown:
            draft.postpone(unread)
            draft.until = {}
        self._partitions.are_unknown(unknown)

    def handed_out(self, ranges: Mapping[TopicPartition, OffsetRange]) -> None:
        """Do nothing."""

    # -- the bound --------------------------------------------------------------------------------

    def _until(
        self,
        draft: Draft,
        unread: Mapping[TopicPartition, int],
        waiting: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        self._begin(draft.positions, unread)
        self._corrections = 0
        while True:
            self._order(unread)
            try:
                self._read_ahead()
                return self._bounded(Room.of(draft), waiting)
            except _AnewError:
                pass

    def _begin(
        self, positions: Mapping[TopicPartition, int], unread: Mapping[TopicPartition, int]
    ) -> None:
        """Start a batch."""
        self._positions = positions
        anew = positions.keys() & self._times.anew()
        self._look_ups.forget(anew)
        for p in list(self._lines):
            line = self._lines[p]
            if p in anew or positions.get(p, -1) < line.position:
                del self._lines[p]  # no longer ours, or starts again
            elif p in unread:
                line.begin(positions[p], unread[p])
        if self._look_ups.begin(positions, unread) or anew:
            self._step = _FIRST_STEP_MS
            self._latest.forget(positions.keys() - anew)
            # It may be a new log, about which earlier answers say nothing.
            self._times.prepare({}, newest=self._idles)
            if self._idles and (anew or self._newest_may_be_old):
                raise UntoldError(anew or unread)
        if self._reached is not None:
            self._look_ups.forget_below(self._reached + 1)
        self._markers.begin(positions)

    def _order(self, unread: Mapping[TopicPartition, int]) -> None:
        """Use these partitions from now on."""
        self._unread, self._ends, self._following = unread, {}, {}
        self._read = {p: line for p, line in self._lines.items() if p in unread}
        if self._read:
            unread = {p: end for p, end in unread.items() if p not in self._read}
        self._looked_up = unread
        self._look_ups.order(unread)

    def _bounded(
        self, room: Room, waiting: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Return up to where each partition is read."""
        highest = self._highest(waiting)
        all_there_is = self._unread
        if self._read:
            read = {p: line.readable_until for p, line in self._read.items()}
            all_there_is = {**all_there_is, **read}
        if highest is None:
            if room.load(all_there_is) <= 1:
                return all_there_is
            highest = self._now_ms() + FUTURE_MS
        elif room.load(self._ends_at(highest)) <= 1:
            ends = self._checked(highest, room)
            self._reached = highest
            return ends
        low = BEFORE_ALL
        if self._reached is not None and BEFORE_ALL < self._reached < highest:
            low = self._reached
            if room.load(self._ends_at(low)) > 1:
                low = BEFORE_ALL
        if low == BEFORE_ALL:
            self._ends_at(BEFORE_ALL)
            timeless = self._look_ups.without_any(BEFORE_ALL + 1)
            timeless += (p for p, line in self._read.items() if line.top is None)
            if timeless:
                return self._beside(timeless, all_there_is, room, waiting)
            if room.load(self._ends_at(low)) > 1:
                return self._ends_at(low)  # records without a timestamp come before all others
        return self._full(room, low, highest)

    def _full(self, room: Room, low: int, highest: int) -> Mapping[TopicPartition, int]:
        """Return the ends of a full batch: as much as there is room for, lowest first."""
        bound = find_bound(
            lambda at: room.load(self._ends_at(at)),
            lambda at: self._following[at],
            low,
            highest,
            self._drift,
            self._step,
        )
        ends = self._checked(bound.asked, room)
        load = room.load(ends)
        if load < FULL and bound.high - bound.low <= 1 + self._drift:
            more = self._checked(bound.high, room)
            ends = more if not load else room.fill(ends, more)
        # Only now: after a marker the batch gets a new bound, and may then have all there is.
        self._step = max(1, bound.low - low) if low > BEFORE_ALL else self._step
        self._reached = bound.low
        self._guess = bound.low + self._step
        return ends

    def _checked(self, bound: int, room: Room) -> Mapping[TopicPartition, int]:
        """Like :meth:`_ends_at`, but based on records only."""
        ends, following = self._ends_at(bound), self._following[bound]
        corrected, misleading = self._markers.check(
            bound + 1, self._positions, self._looked_up, self._now_ms() + FUTURE_MS
        )
        self._read_from_now_on(misleading)
        if corrected:
            self._ends, self._following = {}, {}
            before, ends = ends, self._ends_at(bound)
            late = self._following[bound]
            if room.load(before) <= 1 < room.load(ends) or (
                late is not None and (following is None or late < following)
            ):
                self._corrections += 1
                if self._corrections > _CORRECTIONS:
                    self._read_from_now_on(corrected)
                raise _AnewError
        if self._newest_may_be_old:
            return ends
        return self._past_markers(bound, ends)

    def _past_markers(
        self, bound: int, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, int]:
        """Read a partition to its end if only markers or aborted records lie above the bound.

        Left unread, they would make the plan wait for the partition as if it had more of that time.
        """
        passed: dict[TopicPartition, int] = {}
        misleading = []
        for p, top in self._tops.items():
            end = self._looked_up[p]
            if top > bound or ends[p] == end:
                continue
            first = self._latest.read_from(p)
            if first is None:
                continue  # records that came after the brokers' answer
            if first <= self._positions[p]:
                passed[p] = end
            elif self._look_ups.is_sure_at(p, bound + 1):
                misleading.append(p)  # the last records are not the latest
        self._read_from_now_on(misleading)
        return {**ends, **passed} if passed else ends

    def _highest(self, waiting: Mapping[TopicPartition, int]) -> int | None:
        """The timestamp that the bound must not exceed, however much room there is; None: none."""
        tops = [
            top
            for line in self._read.values()
            if (self._idles or line.readable_until < line.until) and (top := line.top) is not None
        ]
        if self._idles:
            asked = {**self._looked_up, **waiting} if waiting else self._looked_up
            known = self._latest.before(
                asked, self._now_ms() + FUTURE_MS, may_be_old=self._newest_may_be_old
            )
            self._tops = {p: top for p, top in known.items() if p in self._looked_up}
            if any(known.get(p) == BEFORE_ALL for p in waiting):
                return BEFORE_ALL  # the records that they get may be of any age
            tops += (top for top in known.values() if top > BEFORE_ALL)
        return min(tops) + self._drift if tops else None

    # -- known timestamps -------------------------------------------------------------------------

    def _ends_at(self, bound: int) -> dict[TopicPartition, int]:
        """Return the end of each partition's read for this bound; queries the unknown ones."""
        if bound in self._ends:
            return self._ends[bound]
        at = bound + 1
        ends, following, unknown = self._look_ups.ends_at(at)
        if unknown:
            self._ask(unknown, at)
            return self._ends_at(bound)
        for p, line in self._read.items():
            ends[p], late = line.end_at(at)
            if late is not None and (following is None or late < following):
                following = late
        self._ends[bound], self._following[bound] = ends, following
        return ends

    def _ask(self, partitions: Collection[TopicPartition], timestamp: int) -> None:
        told = self._times.first_at(dict.fromkeys(partitions, timestamp))
        if len(told) < len(partitions):
            raise UntoldError(set(partitions) - told.keys())
        horizon, unread = self._now_ms() + FUTURE_MS, self._unread
        without = {p: unread[p] for p, found in told.items() if found is None}
        denied = self._latest.denied(timestamp, self._positions, without, horizon)
        blind = {
            p: found
            for p, found in told.items()
            if found is not None and found.timestamp > horizon and found.offset < unread[p]
        }
        for p, found in blind.items():
            self._warn(p, found)
        misleading = [*blind, *denied]
        if misleading:
            told = {p: found for p, found in told.items() if p not in misleading}
        self._look_ups.learn(timestamp, told)
        self._read_from_now_on(misleading)

    def _beside(
        self,
        timeless: Collection[TopicPartition],
        all_there_is: Mapping[TopicPartition, int],
        room: Room,
        waiting: Mapping[TopicPartition, int],
    ) -> Mapping[TopicPartition, int]:
        """Give these their share as without an order, and the others the rest of the room."""
        shares = room.share(all_there_is)
        shares = {p: shares[p] for p in timeless}
        self._order({p: end for p, end in self._unread.items() if p not in shares})
        if not self._unread:
            return shares
        return {**shares, **self._bounded(room.less(shares), waiting)}

    def _read_from_now_on(self, partitions: Collection[TopicPartition]) -> None:
        for partition in partitions:
            line = self._lines[partition] = Timeline()
            line.begin(self._positions[partition], self._unread[partition])
        if partitions:
            raise _AnewError

    def _read_ahead(self) -> None:
        """Read the timestamps that look-ups cannot find."""
        wanted = {
            p: OffsetRange(p.topic, p.partition, at, min(end, at + _READ_AHEAD))
            for p, line in self._read.items()
            if line.rows is None
            for at, end in [(line.position, line.until)]
        }
        if not wanted:
            return
        told = self._times.rows(wanted)
        if len(told) < len(wanted):
            raise UntoldError(wanted.keys() - told.keys())
        horizon = self._now_ms() + FUTURE_MS
        for p, rows in told.items():
            for offset, at in zip(rows.offsets, rows.timestamps, strict=True):
                if at > horizon:
                    self._warn(p, RecordTime(offset, at))
            self._lines[p].rows = rows.without_beyond(horizon, self._lines[p].reached)

    def _warn(self, partition: TopicPartition, found: RecordTime) -> None:
        if partition not in self._warned:
            self._warned.add(partition)
            log.warning(
                "maxTaskIdleMs: %s-%d has a timestamp in the future at offset %d (%d ms); the "
                "record counts with the timestamp of the one before it",
                *(*partition, *found),
            )
