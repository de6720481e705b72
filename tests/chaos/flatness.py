"""Whether what processes take stays flat over a soak, and the group's lag bounded. Pure.

What is *flat*: a line is fitted (least squares) through the medians of every minute, without the
first fifth, in which pools fill and caches warm up. It may rise by :data:`LIMITS` an hour; a rise
that is smaller than ``noise`` altogether is none, nor is one that the scatter of the points
explains (a slope of less than two of its standard errors). A role whose processes are started again
and again is judged from run to run, by the median of each.

A JVM lets its heap grow to its limit before it looks for what nobody uses. Its memory is judged by
that limit and :data:`BESIDE_HEAP_MB`, and its slope is only shown.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from .process_samples import Sample, by_life

#: What is there at a time, in seconds.
Points = Sequence[tuple[float, float]]

WARM_UP_SHARE = 0.2
MEDIANS_OF_S = 60.0
#: A process that has not lived for so long has no slope.
LEAST_S = 600.0
#: Of processes that are started again and again: so many of them have a slope, and each so long.
LEAST_RUNS = 5
LEAST_RUN_S = 30.0


@dataclass(frozen=True)
class Limit:
    """What may be added in an hour, and what is no rise at all."""

    per_hour: float
    noise: float


LIMITS = {
    "memory_mb": Limit(per_hour=10.0, noise=5.0),
    "fds": Limit(per_hour=3.0, noise=2.0),
    "threads": Limit(per_hour=3.0, noise=2.0),
    "processes": Limit(per_hour=2.0, noise=1.0),
}
WHAT = ("memory_mb", "fds", "threads")
#: Classes, compiled code, stacks, buffers.
BESIDE_HEAP_MB = 500.0

#: The lag, in seconds of traffic: so low at some time in every minute, and never higher.
LOW_LAG_S = 10.0
HIGH_LAG_S = 60.0
LAG_WINDOW_S = 60.0
#: A minute with fewer looks, of twelve, is not known.
LEAST_LOOKS = 2


@dataclass(frozen=True)
class Trend:
    """A line through points.

    Attributes
    ----------
    start, end : float
        What is there in the first and the last of them.
    error : float
        The standard error of the slope.
    line : tuple of (float, float)
        Where the line begins and ends.
    """

    start: float
    end: float
    per_hour: float
    error: float
    line: tuple[tuple[float, float], tuple[float, float]]

    def climbs(self, limit: Limit, left_per_hour: float = 0.0) -> bool:
        """Whether more is added than the limit, apart from what others are known to leave."""
        added = self.per_hour - left_per_hour
        (since, _), (until, _) = self.line
        rise = added * (until - since) / 3_600
        return added > limit.per_hour and rise > limit.noise and added > 2 * self.error


@dataclass(frozen=True)
class Row:
    """What is said of one process, or of all that had its role one after another.

    Attributes
    ----------
    trends : mapping of str to Trend
        By :data:`WHAT`; of those that are short, that of the longest.
    climbing : tuple of str
        What is not flat; empty if all is.
    memory_by_slope : bool
        Whether the slope of the memory is judged.
    is_short : bool
        Whether nothing is judged, because no process lived for long enough.
    """

    role: str
    runs: int
    samples: int
    trends: Mapping[str, Trend]
    climbing: tuple[str, ...] = ()
    memory_by_slope: bool = True
    is_short: bool = False

    @property
    def verdict(self) -> str:
        if self.climbing:
            return "climbs: " + ", ".join(self.climbing)
        return "short" if self.is_short else "flat"


def slope(points: Points) -> float:
    """What the points gain in an hour, by least squares; 0 if there are not two times."""
    if len({at for at, _ in points}) < 2:
        return 0.0
    return 3_600 * statistics.linear_regression(*zip(*points, strict=True)).slope


def without_warm_up(points: Points, share: float = WARM_UP_SHARE) -> Points:
    """The points without those of the first share of the time."""
    if not points:
        return points
    since, until = points[0][0], points[-1][0]
    return [(at, value) for at, value in points if at >= since + share * (until - since)]


def medians(points: Points, seconds: float = MEDIANS_OF_S) -> Points:
    """The median of every so many seconds, at the middle of its times."""
    return [
        (
            statistics.fmean(at for at, _ in some),
            statistics.median(value for _, value in some),
        )
        for some in _windows(points, seconds).values()
    ]


def _windows(points: Points, seconds: float) -> dict[int, list[tuple[float, float]]]:
    """The points of every so many seconds from the first on, by the number of the window."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for at, value in points:
        found[int((at - points[0][0]) // seconds)].append((at, value))
    return found


def trend(points: Points) -> Trend:
    """The line through the points, of which there is at least one."""
    per_hour = slope(points)
    (since, start), (until, end) = points[0], points[-1]
    middle = statistics.fmean(at for at, _ in points)
    mean = statistics.fmean(value for _, value in points)
    fitted = [mean + per_hour * (at - middle) / 3_600 for at, _ in points]
    left = sum((value - one) ** 2 for (_, value), one in zip(points, fitted, strict=True))
    spread = sum((at - middle) ** 2 for at, _ in points)
    error = 0.0
    if len(points) > 2 and spread:
        error = 3_600 * math.sqrt(left / (len(points) - 2) / spread)
    return Trend(start, end, per_hour, error, ((since, fitted[0]), (until, fitted[-1])))


def judge(
    samples: Iterable[Sample],
    may_grow: frozenset[str] = frozenset(),
    left_per_hour: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> list[Row]:
    """Say of every role whether it is flat.

    Parameters
    ----------
    samples : iterable of Sample
        In the order in which they were taken.
    may_grow : frozenset of str
        Roles whose memory is not judged.
    left_per_hour : mapping of str to mapping of str to float
        What others are known to leave of some roles, by :data:`WHAT`; it is no rise of theirs.

    Returns
    -------
    list of Row
        For each role: one row for each process that lived for long, one for its processes from run
        to run if there are enough, and one in any case.
    """
    lives = by_life(samples)
    by_role: dict[str, list[list[Sample]]] = defaultdict(list)
    for life in lives:
        by_role[life[-1].role].append(life)  # between fork and exec it looked like its parent
    times = sorted({sample.at for life in lives for sample in life})
    rows = []
    for role, some in sorted(by_role.items()):
        grows = role in may_grow
        left = left_per_hour.get(role, {})
        mine = [
            _row_of_a_life(role, life, grows, left) for life in some if _lasted(life) >= LEAST_S
        ]
        runs = [life for life in some if _lasted(life) >= LEAST_RUN_S]
        if len(runs) >= LEAST_RUNS:
            mine.append(_row_from_run_to_run(role, runs, grows))
        if not mine and not max(map(_lasted, some)):
            continue  # a command that was over at the next look
        if not mine:
            row = _row_of_a_life(role, max(some, key=_lasted), grows, left)
            seen = sum(map(len, some))
            mine.append(replace(row, runs=len(some), samples=seen, climbing=(), is_short=True))
        alive = Counter(sample.at for life in some for sample in life)
        at_once = trend(medians(without_warm_up([(at, float(alive[at])) for at in times])))
        if times[-1] - times[0] >= LEAST_S and at_once.climbs(LIMITS["processes"]):
            more = (*mine[0].climbing, "processes at once")
            mine[0] = replace(mine[0], climbing=more)
        rows += mine
    return rows


def _lasted(life: Sequence[Sample]) -> float:
    return life[-1].at - life[0].at


def _points(life: Iterable[Sample], what: str) -> Points:
    return [(sample.at, float(getattr(sample, what))) for sample in life]


def _row_of_a_life(
    role: str, life: Sequence[Sample], may_grow: bool, left_per_hour: Mapping[str, float]
) -> Row:
    trends = {what: trend(medians(without_warm_up(_points(life, what)))) for what in WHAT}
    return _row(role, [life], trends, may_grow, left_per_hour)


def _row_from_run_to_run(role: str, runs: Sequence[Sequence[Sample]], may_grow: bool) -> Row:
    def level(life: Sequence[Sample], what: str) -> tuple[float, float]:
        points = without_warm_up(_points(life, what))
        return life[0].at, statistics.median(value for _, value in points)

    trends = {what: trend([level(life, what) for life in runs]) for what in WHAT}
    return _row(role, runs, trends, may_grow)


def _row(
    role: str,
    lives: Sequence[Sequence[Sample]],
    trends: Mapping[str, Trend],
    may_grow: bool,
    left_per_hour: Mapping[str, float] = MappingProxyType({}),
) -> Row:
    heap_mb = lives[-1][-1].heap_mb
    by_slope = heap_mb is None and not may_grow
    found = []
    for what in WHAT:
        limit = LIMITS[what]
        if what != "memory_mb" or by_slope:
            climbs = trends[what].climbs(limit, left_per_hour.get(what, 0.0))
        else:
            highest = max(sample.memory_mb for life in lives for sample in life)
            climbs = heap_mb is not None and highest > heap_mb + BESIDE_HEAP_MB
        if climbs:
            found.append(what.partition("_")[0])
    return Row(role, len(lives), sum(map(len, lives)), trends, tuple(found), by_slope)


def unbounded(lags: Points, rate: float) -> list[str]:
    """Say what is wrong with the group's lag, which is in offsets.

    It may go up in a rebalance, and must come down after it. A minute that was hardly looked at is
    wrong too: nobody knows what it was.

    Parameters
    ----------
    lags : sequence of (float, float)
        The sum over all partitions at a time.
    rate : float
        Offsets that are added in a second.
    """
    low, high = LOW_LAG_S * rate, HIGH_LAG_S * rate
    found = []
    at, highest = max(lags, key=lambda point: point[1])
    if highest > high:
        found.append(
            f"lag {highest:,.0f} after {(at - lags[0][0]) / 60:.1f} min, more than "
            f"{HIGH_LAG_S:g} s of traffic ({high:,.0f})"
        )
    windows = _windows(lags, LAG_WINDOW_S)
    last = max(windows)  # not a whole minute
    unseen = [minute for minute in range(last) if len(windows.get(minute, ())) < LEAST_LOOKS]
    if unseen:
        found.append(
            f"in {len(unseen)} of {last + 1} minutes, first in that after {unseen[0]} min, the lag "
            f"was looked at fewer than {LEAST_LOOKS} times"
        )
    late = [
        minute
        for minute, some in windows.items()
        if (minute < last or len(some) >= LEAST_LOOKS) and min(lag for _, lag in some) > low
    ]
    if late:
        found.append(
            f"in {len(late)} of {last + 1} minutes, first in that after {late[0]} min, the lag "
            f"never came down to {LOW_LAG_S:g} s of traffic ({low:,.0f})"
        )
    return found
