"""Catching up: which backlog is set aside, when it is read, and its share of a poll (KIP-333).

An owner that takes over a backlog starts at the end of the log. The backlog is set aside, as gaps,
and read next to the live records. If the owner fails before it has caught up, the rest of the gaps
remains, and the next owner sets aside the records written in the meantime above them. N failures
leave N gaps; gaps that touch become one.

Pure.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka.structs import TopicPartition

from ..errors import OptionError
from .offsets.commit_metadata import Remaining
from .offsets.offset_set import Gap

#: A backlog of at most this many offsets is read as usual, in a few hundredths of a second.
DEFAULT_THRESHOLD = 10_000

#: A processed stretch of at most this many offsets is read through: a new fetch takes longer.
_READ_THROUGH = 10_000

_MODES = ("ordered", "live")


@dataclass(frozen=True)
class CatchUpOptions:
    """The application's options for KIP-333."""

    #: True is "ordered": records are handed out in the order of their offsets. False is "live".
    in_order: bool
    threshold: int = DEFAULT_THRESHOLD  # a backlog of more offsets than this is set aside
    #: If given, it decides instead: a backlog whose next record is older is set aside.
    threshold_ms: int | None = None

    @classmethod
    def checked(
        cls, mode: Any, enabled: Any, threshold: Any, threshold_ms: Any
    ) -> CatchUpOptions | None:
        """Check the consumer's options; None if catching up is off. Raises OptionError."""
        if mode is not None and mode not in _MODES:
            raise OptionError("parallel_rebalance", mode, "None, 'ordered' or 'live'")
        if not isinstance(enabled, bool):
            raise OptionError("enable_parallel_rebalance", enabled, "True or False")
        if threshold is not None and threshold_ms is not None:
            raise OptionError(
                "catch_up_threshold_ms", threshold_ms, "no value together with catch_up_threshold"
            )
        given = {"catch_up_threshold": threshold, "catch_up_threshold_ms": threshold_ms}
        for name, value in given.items():
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
        self, remaining: Remaining, end: int, old_at: Container[int] = ()
    ) -> Remaining | None:
        """The gaps to set aside of a partition that starts now, if there is a backlog.

        The distance from the first offset of ``remaining``, the first unprocessed one, to the
        ``end`` of the log decides, processed records in between included: live records would wait
        for those as well. With ``threshold_ms``, ``old_at`` are the positions of `may_be_behind`
        whose next record is older.

        The live position is the last owner's, or the end if that is a backlog behind the end
        itself. None: start at the committed offset, also if records beyond the end are processed,
        because a transaction is open or the log was truncated.
        """
        first = remaining.committed()
        if remaining.live > end or not self._is_behind(first, end, old_at):
            return None
        live = end if self._is_behind(remaining.live, end, old_at) else remaining.live
        return Remaining(live, remaining.between(0, live))

    @staticmethod
    def may_be_behind(remaining: Remaining, end: int) -> list[int]:
        """The positions whose next record's age :meth:`set_aside` must know."""
        if remaining.live > end:
            return []
        positions = dict.fromkeys((remaining.committed(), remaining.live))
        return [offset for offset in positions if offset < end]

    def _is_behind(self, offset: int, end: int, old_at: Container[int]) -> bool:
        if self.threshold_ms is None:
            return end - offset > self.threshold
        return offset < end and offset in old_at


class Places:
    """Chooses the partitions whose gaps are read now: as many at a time as memory allows.

    A partition keeps its place until it has nothing left to read or stands back. Then the next one
    gets the place.
    """

    def __init__(self, places: int) -> None:
        self.number = places  # how many there are
        self._taken: list[TopicPartition] = []
        self._stands_back: dict[TopicPartition, None] = {}

    def take(self, wanted: Iterable[TopicPartition]) -> list[TopicPartition]:
        """Choose which of these partitions are read now."""
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
        """These partitions cannot be read further for now: read waiting ones first."""
        for partition in partitions:
            if partition in self._taken:
                self._taken.remove(partition)
                self._stands_back[partition] = None


def where_to_seek(
    position: int | None, unread: Sequence[Gap], read_through: bool = True
) -> int | None:
    """Where a reader at this position must seek to read these gaps; None if it can read on.

    It reads through a processed stretch that is short and readable, and drops the records there.
    """
    first = unread[0].start
    short = _READ_THROUGH if read_through else 0
    if position is not None and first - short <= position <= first:
        return None
    return first


def shares(max_records: int, polls: int) -> tuple[int, int]:
    """The most live records that a poll takes, and the room that it leaves for gap records.

    Live records come first and gaps get the rest, but at least a quarter, or they would never end
    under a steady load of live records. If polls take a single record, every fourth is the gaps'.
    """
    gaps = -(-max_records // 4) if max_records > 1 else int(polls % 4 == 3)
    return max_records - gaps, gaps
