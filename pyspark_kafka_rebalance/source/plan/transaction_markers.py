"""Markers: finds answers of look-ups that are no records. Pure, except for its queries.

A transaction ends with a marker, which has an offset, and the time of the commit. ListOffsets finds
it like a record; it also finds records of aborted transactions. Records after a marker may be
older: they would be treated as late as the commit, and be read too late by as much.

So the answers that bound a batch are checked where there may be markers: in partitions that hold
transactions or were not checked yet. Other partitions cost nothing, except that each is checked
again a minute later, a few with each batch.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from kafka.structs import TopicPartition

from ...errors import names_of
from ...fetch.offset_range import OffsetRange
from .look_ups import LookUps
from .timelines import Rows
from .times import Times, UntoldError, one_record, short_range

log = logging.getLogger(__name__)

#: How long after no transactions were found a partition is checked again.
LOOK_AGAIN_S = 60.0

#: How many partitions are checked again with one batch at most.
_AGAIN_AT_ONCE = 16


class Found(NamedTuple):
    """The result of a check.

    Attributes
    ----------
    corrected : list of TopicPartition
        Partitions whose answer was corrected.
    misleading : list of TopicPartition
        Partitions whose next record by time lies too far after a marker for a short read, or where
        that read has a timestamp beyond the horizon.
    """

    corrected: list[TopicPartition]
    misleading: list[TopicPartition]


class Markers:
    """Checks the answers that bound a batch, and corrects markers.

    Parameters
    ----------
    times : Times
        Gives the brokers' answers.
    look_ups : LookUps
        Keeps the answers to check.
    transactional : set of TopicPartition
        Partitions known to hold transactions; this adds more as it finds them.
    clock : callable
        Monotonic seconds.
    """

    def __init__(
        self,
        times: Times,
        look_ups: LookUps,
        transactional: set[TopicPartition],
        clock: Callable[[], float],
    ) -> None:
        self._times = times
        self._look_ups = look_ups
        self._transactional = transactional
        self._clock = clock
        # Since when partitions are known to hold no transactions, the longest first.
        self._without: OrderedDict[TopicPartition, float] = OrderedDict()

    def begin(self, positions: Collection[TopicPartition]) -> None:
        """Start a batch, of these partitions at most."""
        if self._transactional:
            self._look_ups.suspect(self._transactional)
        known, before = self._without, self._clock() - LOOK_AGAIN_S
        again = 0
        while known and again < _AGAIN_AT_ONCE:
            partition, since = next(iter(known.items()))
            if since > before:
                break
            del known[partition]
            if partition in positions:
                self._look_ups.suspect([partition])
                again += 1

    def check(
        self,
        timestamp: int,
        positions: Mapping[TopicPartition, int],
        unread: Mapping[TopicPartition, int],
        horizon: int,
    ) -> Found:
        """Check the answers for this timestamp, and correct them.

        Parameters
        ----------
        timestamp : int
            The timestamp of the answers, in ms.
        positions, unread : Mapping[TopicPartition, int]
            As for :meth:`LookUps.begin`.
        horizon : int
            Later timestamps are ignored.

        Raises
        ------
        UntoldError
            Brokers do not answer now.
        """
        doubted = self._look_ups.doubted_at(timestamp)
        if not doubted:
            return Found([], [])
        told = self._told({p: one_record(p, found.offset) for p, found in doubted.items()})
        markers = {}
        for p, rows in told.items():
            offset = doubted[p].offset
            if rows.has_transactions:
                self._transactional.add(p)
            elif p not in self._transactional:
                self._look_ups.trust(p)
                self._without[p] = self._clock()
                self._without.move_to_end(p)
            if rows.offsets:
                self._look_ups.is_record(p, offset)
            else:
                markers[p] = offset
        if not markers:
            return Found([], [])
        behind = self._told(
            {p: short_range(p, max(at, positions[p]), unread[p]) for p, at in markers.items()}
        )
        misleading = [
            p
            for p, rows in behind.items()
            if any(at > horizon for at in rows.timestamps)
            or not self._look_ups.correct(p, markers[p], timestamp, rows)
        ]
        if misleading:
            log.info(
                "timestamps are read with the records, because there are transaction markers "
                "between them: %s",
                names_of(misleading),
            )
        return Found([p for p in behind if p not in misleading], misleading)

    def _told(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Mapping[TopicPartition, Rows]:
        told = self._times.rows(ranges)
        if len(told) < len(ranges):
            raise UntoldError(ranges.keys() - told.keys())
        return told
