"""FirstRecords: the timestamps of the oldest unprocessed records, for the lag in seconds.

Brokers do not return the timestamp of an offset, so the records are read as tasks read them: one
record batch per partition, the largest lags first.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from kafka.structs import TopicPartition

from ..errors import CorruptRecordError, KafkaRebalanceError
from ..fetch.offset_range import OffsetRange

if TYPE_CHECKING:
    from ..fetch.fetcher import RangeFetcher

log = logging.getLogger(__name__)

#: One report reads a record of at most this many partitions.
MOST_PARTITIONS = 1_000

#: How many offsets to search for a record: if there is none, the search continues with the next
#: width, and then partition by partition with ``_FURTHER`` offsets at a time. Compaction and the
#: ends of transactions leave offsets without a record.
_WIDTHS = (1, 16, 10_000)
_FURTHER = 1_000_000

#: The approximate size of an answer; a larger record batch still arrives.
_FETCH_BYTES = 1024 * 1024


class FirstRecords:
    """Reads one record of each partition.

    One report may take ``timeout_s``; records not read by then are left out.
    """

    def __init__(
        self, client_config: Mapping[str, Any], isolation_level: str, timeout_s: float
    ) -> None:
        self._client_config = dict(client_config)
        self._isolation_level = isolation_level
        self._timeout_s = timeout_s

    def timestamps(
        self, wanted: Mapping[TopicPartition, tuple[int, int]]
    ) -> dict[TopicPartition, int | None]:
        """The timestamps of the first records in these ranges of offsets, in ms.

        None if a range has no record, -1 for a record without a timestamp. Leaves out partitions
        that may not be read, cannot be read, or were not read in time.
        """
        longest = sorted(wanted, key=lambda p: wanted[p][0] - wanted[p][1])[:MOST_PARTITIONS]
        if not longest:
            return {}
        deadline = time.monotonic() + self._timeout_s
        from ..fetch.fetcher import RangeFetcher  # imports pyarrow, so only if there is a read

        fetcher = RangeFetcher(
            self._client_config,
            isolation_level=self._isolation_level,
            fail_on_data_loss=False,
            max_partition_fetch_bytes=_FETCH_BYTES,
            batch_rows=1,
            retry_timeout_ms=int(self._timeout_s * 1000),
        )
        try:
            return _found(fetcher, {p: wanted[p] for p in longest}, deadline)
        finally:
            fetcher.close()


def _found(
    fetcher: RangeFetcher, wanted: Mapping[TopicPartition, tuple[int, int]], deadline: float
) -> dict[TopicPartition, int | None]:
    found: dict[TopicPartition, int | None] = {}
    left = dict(wanted)
    for width in _WIDTHS:
        ranges = [
            OffsetRange(p.topic, p.partition, start, min(end, start + width))
            for p, (start, end) in left.items()
        ]
        now, through = _read(fetcher, ranges, deadline)
        found |= now
        empty = {p: left[p] for p in through - now.keys()}
        found |= {p: None for p, (start, end) in empty.items() if end <= start + width}
        left = {p: (start + width, end) for p, (start, end) in empty.items() if end > start + width}
    for p, (start, end) in left.items():
        found |= _found_further(fetcher, p, start, end, deadline)
    return found


def _found_further(
    fetcher: RangeFetcher, partition: TopicPartition, start: int, end: int, deadline: float
) -> dict[TopicPartition, int | None]:
    """Like :func:`_found`, for one partition after a long stretch without a record."""
    while start < end:
        if time.monotonic() > deadline:
            return {}
        further = min(end, start + _FURTHER)
        one = OffsetRange(partition.topic, partition.partition, start, further)
        found, through = _read(fetcher, [one], deadline)
        if found or not through:
            return dict(found)
        start = further
    return {partition: None}


def _read(
    fetcher: RangeFetcher, ranges: Collection[OffsetRange], deadline: float
) -> tuple[dict[TopicPartition, int], set[TopicPartition]]:
    """The timestamp of the first record in each range, and the partitions fully read."""
    found: dict[TopicPartition, int] = {}
    left = list(ranges)
    while left:
        try:
            if _read_into(found, fetcher, left, deadline):
                return found, found.keys() | {TopicPartition(o.topic, o.partition) for o in left}
            break
        except CorruptRecordError as error:  # it hides none of the other partitions
            if time.monotonic() > deadline:
                break
            read = {*found, TopicPartition(error.topic, error.partition)}
            left = [one for one in left if TopicPartition(one.topic, one.partition) not in read]
        except KafkaRebalanceError as error:
            topics = {one.topic for one in left}
            if len(topics) == 1 or time.monotonic() > deadline:
                log.info("cannot read timestamps: %s", error)
                break
            told: set[TopicPartition] = set()
            for topic in topics:  # so that a topic without READ does not hide the others
                if time.monotonic() > deadline:
                    break
                more, through = _read(fetcher, [o for o in left if o.topic == topic], deadline)
                found |= more
                told |= through
            return found, told | found.keys()
    return found, set(found)


def _read_into(
    found: dict[TopicPartition, int],
    fetcher: RangeFetcher,
    ranges: list[OffsetRange],
    deadline: float,
) -> bool:
    """Add the timestamp of the first record in each range; whether all were read to their ends."""
    missing = {TopicPartition(one.topic, one.partition) for one in ranges}
    for one, records in fetcher.read(ranges):
        if (partition := TopicPartition(one.topic, one.partition)) in missing:
            at = records.column("timestamp")[0].value
            found[partition] = -1 if at is None else at // 1000
            missing.discard(partition)
        if not missing or time.monotonic() > deadline:
            return False
    return True
