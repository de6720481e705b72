"""Markers: what look-ups tell as a record, and is none. Pure, but for its questions.

A transaction ends with a marker, which has an offset, and the time of the commit. ListOffsets finds
it like a record, and those of aborted transactions as well. Records behind a marker may be older:
they would count as late as the commit, and come late by as much.

So what a batch is bounded by is looked at where there may be markers: in partitions that hold
transactions, and in those that are not looked at yet. Others cost nothing, but that each is looked
at again a minute later, a few with each batch.
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

#: Where there were no transactions, there may be some so much later.
LOOK_AGAIN_S = 60.0

#: At most so many partitions are looked at again with one batch.
_AGAIN_AT_ONCE = 16


class Found(NamedTuple):
    """What became of what was told.

    Attributes
    ----------
    corrected : list of TopicPartition
        Of which it was put right.
    misleading : list of TopicPartition
        Of which what is next by its time lies too far behind a marker for a short read.
    """

    corrected: list[TopicPartition]
    misleading: list[TopicPartition]


class Markers:
    """Of one query.

    Parameters
    ----------
    times : Times
        Answers for the brokers.
    look_ups : LookUps
        What they told.
    transactional : set of TopicPartition
        Which hold transactions, as far as was seen; what is found is added.
    clock : callable
        Seconds that pass.
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
        """A batch begins, of these partitions at most."""
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
        """Look at what was told for this timestamp, and put it right.

        Parameters
        ----------
        timestamp : int
            For which it was told, in ms.
        positions, unread : Mapping[TopicPartition, int]
            As for :meth:`LookUps.begin`.
        horizon : int
            What is later than this does not count.

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
                "timestamps are read with the records, since there are transaction markers "
                "between them: %s",
                names_of(misleading),
            )
        return Found([p for p in behind if p not in misleading], misleading)

    def _told(self, ranges: Mapping[TopicPartition, OffsetRange]) -> Mapping[TopicPartition, Rows]:
        told = self._times.rows(ranges)
        if len(told) < len(ranges):
            raise UntoldError(ranges.keys() - told.keys())
        return told
