"""Catching up: what of a backlog is set aside, who reads it when, and with what share (KIP-333).

An owner that takes over a backlog begins at the end of the log; what lies between is set aside, as
gaps, and read beside the live records. A failure in the midst of that leaves what is left of the
gaps, and what was written meanwhile is set aside above them: N failures, N gaps, and those that
touch are one.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition

from ..errors import OptionError
from .gaps import Gap
from .remaining import Remaining

#: Backlogs of fewer offsets are read as ever: in some hundredths of a second.
DEFAULT_THRESHOLD = 10_000

#: What is fetched for the gaps and waits to be handed out, in bytes, whatever the number of
#: partitions: so many are read at a time that one fetch of each fits. In order, as much once more
#: is kept of the live records behind them.
BUFFERED_BYTES = 32 * 2**20

#: Processed stretches of fewer offsets are read through: to fetch anew takes longer.
_READ_THROUGH = 10_000

_MODES = ("ordered", "live")


@dataclass(frozen=True)
class CatchUpOptions:
    """What the application wants of KIP-333.

    Attributes
    ----------
    in_order : bool
        "ordered": nothing is handed out before what is lower. Otherwise "live".
    threshold : int
        A backlog of more offsets is set aside.
    threshold_ms : int or None
        Given, it is one whose next record is older than that.
    """

    in_order: bool
    threshold: int = DEFAULT_THRESHOLD
    threshold_ms: int | None = None

    @classmethod
    def checked(
        cls, mode: Any, enabled: Any, threshold: Any, threshold_ms: Any
    ) -> CatchUpOptions | None:
        """As the consumer is given them; None where it is off. Raises OptionError."""
        if mode is not None and mode not in _MODES:
            raise OptionError("parallel_rebalance", mode, "None, 'ordered' or 'live'")
        if not isinstance(enabled, bool):
            raise OptionError("enable_parallel_rebalance", enabled, "True or False")
        if threshold is not None and threshold_ms is not None:
            raise OptionError(
                "catch_up_threshold_ms", threshold_ms, "nothing beside catch_up_threshold"
            )
        for name, value in (
            ("catch_up_threshold", threshold),
            ("catch_up_threshold_ms", threshold_ms),
        ):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, int) or value < 0
            ):
                raise OptionError(name, value, "a whole number, 0 or more")
        mode = mode or ("ordered" if enabled else None)
        if mode is None:
            return None
        return cls(
            mode == "ordered", DEFAULT_THRESHOLD if threshold is None else threshold, threshold_ms
        )

    def set_aside(
        self, remaining: Remaining, end: int, young_from: int | None = None
    ) -> Remaining | None:
        """What to read beside the live records of a partition that begins now, if anything.

        Parameters
        ----------
        remaining : Remaining
            What the group has not processed. How far its first offset is behind counts, with what
            is processed in between: live records would wait for that as well.
        end : int
            Of the log, now; under ``read_committed`` the last stable offset.
        young_from : int, optional
            With ``threshold_ms``: the first offset of a record that is not older; None where there
            is none.

        Returns
        -------
        Remaining or None
            The gaps, and the live position. What its last owner read live, it reads on live, if
            that alone is no backlog; otherwise the end. None: begin where the group is; also where
            something is processed beyond the end, which is that of a transaction that was open, or
            of a log that was truncated.
        """
        first = remaining.committed()
        if remaining.live > end or not self._is_behind(first, end, young_from):
            return None
        live = end if self._is_behind(remaining.live, end, young_from) else remaining.live
        return Remaining(live, remaining.between(0, live))

    def _is_behind(self, offset: int, end: int, young_from: int | None) -> bool:
        if self.threshold_ms is None:
            return end - offset > self.threshold
        return offset < end and (young_from is None or offset < young_from)


def places(fetch_bytes: int) -> int:
    """Of how many partitions what one fetch brings fits into `BUFFERED_BYTES`; one at least."""
    return max(1, BUFFERED_BYTES // fetch_bytes)


class Places:
    """Which partitions are read, of those with gaps: as many at a time as memory allows.

    Who has a place keeps it until nothing is left to be read; then it is the next one's.

    Attributes
    ----------
    number : int
        How many.
    """

    def __init__(self, places: int) -> None:
        self.number = places
        self._taken: list[TopicPartition] = []
        self._stands_back: dict[TopicPartition, None] = {}

    def take(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Of these partitions, those that are read now."""
        waiting = dict.fromkeys(wanted)
        self._taken = [p for p in self._taken if p in waiting]
        last = [p for p in self._stands_back if p in waiting]
        for partition in (*(p for p in waiting if p not in self._stands_back), *last):
            if len(self._taken) == self.number:
                break
            self._stands_back.pop(partition, None)
            if partition not in self._taken:
                self._taken.append(partition)
        return list(self._taken)

    def stand_back(self, partitions: Iterable[TopicPartition]) -> None:
        """These cannot be read on now: others that wait are read first."""
        for partition in partitions:
            if partition in self._taken:
                self._taken.remove(partition)
                self._stands_back[partition] = None


def where_to_seek(
    position: int | None, unread: Sequence[Gap], read_through: bool = True
) -> int | None:
    """Where a reader of these gaps that is at this position has to seek; None: it goes on.

    It goes on through what is processed if that is short and can be read, and hands nothing of it
    out.
    """
    first = unread[0].start
    short = _READ_THROUGH if read_through else 0
    if position is not None and first - short <= position <= first:
        return None
    return first


def shares(max_records: int, polls: int) -> tuple[int, int]:
    """How many live records a poll takes at most, and how many of the gaps it leaves room for.

    Live records come first, and what they leave is for the gaps, but a quarter at least: or they
    would never end where there are always enough live ones. A poll of a single record takes turns.

    Parameters
    ----------
    max_records : int
        Of one poll, in all.
    polls : int
        How many were made before.
    """
    gaps = -(-max_records // 4) if max_records > 1 else int(polls % 4 == 3)
    return max_records - gaps, gaps
