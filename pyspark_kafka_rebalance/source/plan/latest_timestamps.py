"""The timestamps of the last records of partitions. Pure, except for its queries.

Brokers report the latest record of a log (KIP-734). If that may be a transaction's marker, or is in
the far future, the last records are read.

They also check the answer that a log has no record at or after a timestamp. A broker searches only
the first segment that ever had one. DeleteRecords can have deleted all of those records minutes
before it deletes the segment; until then, the answer takes no notice of later segments.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping

from kafka.structs import TopicPartition

from ...consumer.offsets.found_records import RecordTime
from ...errors import names_of
from ...fetch.offset_range import OffsetRange
from .look_ups import LEAP_MS
from .timelines import BEFORE_ALL
from .times import Times, UntoldError, last_range, one_record

log = logging.getLogger(__name__)


class LatestTimestamps:
    """Finds and caches each log's latest timestamp; it reads the last records only if it has to.

    ``warn`` is called with a record in the far future. ``transactional`` are the partitions known
    to hold transactions; this adds more as it finds them.
    """

    def __init__(
        self,
        times: Times,
        warn: Callable[[TopicPartition, RecordTime], None],
        transactional: set[TopicPartition],
    ) -> None:
        self._times = times
        self._warn = warn
        # Up to which timestamp the brokers' answers were seen to be records.
        self._records_to: dict[TopicPartition, int] = {}
        self._transactional = transactional
        # An end, and the latest timestamp before it; None if the last records have no timestamp.
        self._read: dict[TopicPartition, tuple[int, int | None]] = {}
        self._newest: Mapping[TopicPartition, RecordTime | None] = {}  # as of those reads
        self._by_brokers: set[TopicPartition] = set()  # whose last answer is the brokers'
        # An end, and the latest record that brokers reported after it.
        self._reported: dict[TopicPartition, tuple[int, RecordTime | None]] = {}

    def before(
        self, ends: Mapping[TopicPartition, int], horizon: int, *, may_be_old: bool = False
    ) -> dict[TopicPartition, int]:
        """Return the latest timestamp of each log before its end; BEFORE_ALL if it has no record.

        This leaves out partitions whose last records have no timestamp: their next records will
        probably have none, either. Timestamps beyond the horizon are ignored. The ends must have
        been reported after the latest records.

        With ``may_be_old`` the timestamp before an earlier end will do. The cached value is
        refreshed when the brokers report a newer latest record. Raises UntoldError if brokers do
        not answer now.
        """
        newest = self._times.newest()
        self._look_for_markers(newest, ends, horizon)
        may_be_old = may_be_old and newest is self._newest
        latest: dict[TopicPartition, int] = {}
        self._by_brokers.clear()
        unknown: dict[TopicPartition, OffsetRange] = {}
        for p, end in ends.items():
            found = newest.get(p)
            if found is not None and found.offset < end and p not in self._transactional:
                if found.timestamp <= horizon:
                    latest[p] = found.timestamp
                    self._by_brokers.add(p)
                    continue
                self._warn(p, found)
            known_end, timestamp = self._read.get(p, (0, BEFORE_ALL))
            if known_end != end and not (may_be_old and timestamp not in (None, BEFORE_ALL)):
                unknown[p] = last_range(p, end)
            elif timestamp is not None:
                latest[p] = timestamp
        self._read_last(unknown, horizon)
        for p in unknown:
            if (timestamp := self._read[p][1]) is not None:
                latest[p] = timestamp
        self._newest = newest
        return latest

    def denied(
        self,
        timestamp: int,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
        horizon: int,
    ) -> list[TopicPartition]:
        """Return the partitions that do have an unread record at or after this timestamp.

        Parameters
        ----------
        timestamp : int
            In ms. Brokers have reported no such record in any of these logs.
        positions, ends : Mapping[TopicPartition, int]
            Next offset to read, and the logs' ends; checks the partitions of ``ends``.
        horizon : int
            Later timestamps are ignored where records are read.

        Raises
        ------
        UntoldError
            Brokers do not answer now.
        """
        if not ends:
            return []
        denied, unsure = [], []
        for p, found in self._newest_of(ends).items():
            if found is None or not positions[p] <= found.offset < ends[p]:
                # In an open transaction, or after the end, or deleted itself.
                if found is None or found.timestamp >= timestamp:
                    unsure.append(p)
            elif found.timestamp >= timestamp:
                denied.append(p)
        self._read_last(
            {p: last_range(p, ends[p]) for p in unsure if self._read.get(p, (0,))[0] != ends[p]},
            horizon,
        )
        for p in unsure:
            at = self._read[p][1]
            if at is not None and at >= timestamp:
                denied.append(p)
        if denied:
            log.info(
                "timestamps are read with the records, because look-ups find deleted ones: %s",
                names_of(denied),
            )
        return denied

    def read_from(self, partition: TopicPartition) -> int | None:
        """Return the offset from which on the last answer is exact, since records were read.

        None if brokers gave the timestamp: that of the latest record at the time of their answer.
        """
        if partition in self._by_brokers:
            return None
        return last_range(partition, self._read[partition][0]).start

    def forget(self, but: Collection[TopicPartition]) -> None:
        """Forget all but these partitions."""
        self._records_to = {p: known for p, known in self._records_to.items() if p in but}
        self._transactional.intersection_update(but)
        self._read = {p: known for p, known in self._read.items() if p in but}
        self._reported = {p: known for p, known in self._reported.items() if p in but}

    def _newest_of(
        self, ends: Mapping[TopicPartition, int]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        """The latest records, requested once for each end unless they are known already.

        None for partitions without an answer as well.
        """
        told, reported = self._times.newest(), self._reported
        asked = [p for p, end in ends.items() if p not in told and reported.get(p, (0,))[0] != end]
        if asked:
            found = self._times.newest_of(asked)
            reported |= {p: (ends[p], found.get(p)) for p in asked}
        return {p: told[p] if p in told else reported[p][1] for p in ends}

    def _read_last(self, ranges: Mapping[TopicPartition, OffsetRange], horizon: int) -> None:
        """Read the last records of these partitions.

        Raises
        ------
        UntoldError
            Brokers do not answer now.
        """
        if not ranges:
            return
        told = self._times.rows(ranges)
        if len(told) < len(ranges):
            raise UntoldError(ranges.keys() - told.keys())
        for p, rows in told.items():
            rows = rows.without_beyond(horizon)
            at = rows.timestamps[-1] if rows.last_told >= 0 else None
            if not rows.offsets:
                at = BEFORE_ALL
            self._read[p] = ranges[p].end, at

    def _look_for_markers(
        self,
        newest: Mapping[TopicPartition, RecordTime | None],
        ends: Mapping[TopicPartition, int],
        horizon: int,
    ) -> None:
        """Find transactions where the latest record is over a minute past the last one checked.

        Raises UntoldError if brokers do not answer now.
        """
        records_to = self._records_to
        asked = {
            p: one_record(p, found.offset)
            for p, end in ends.items()
            if (found := newest.get(p)) is not None
            and found.timestamp > records_to.get(p, -LEAP_MS - 1) + LEAP_MS
            and found.offset < end
            and found.timestamp <= horizon
            and p not in self._transactional
        }
        if not asked:
            return
        told = self._times.rows(asked)
        for p, rows in told.items():
            if rows.offsets and not rows.has_transactions:
                records_to[p] = rows.timestamps[0]
            else:
                self._transactional.add(p)
        if len(told) < len(asked):
            raise UntoldError(asked.keys() - told.keys())
