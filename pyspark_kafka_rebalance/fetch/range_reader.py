"""Fetching one range from its partition's leader, whatever happens meanwhile.

Invariants of a reader:
 1. `position` only grows; every visible record of the range before it has been handed over.
 2. At most one request is on its way. It asks for `position`.
 3. The range ends where the log was seen to go on at or past its end, never because an answer was
    empty: a quota, an election, tiered storage and an open transaction empty answers as well.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest, OffsetSpec

from ..errors import CorruptRecordError, DataLossError, KafkaRebalanceError
from .connections import ClusterConnections, PendingResponse, explain_final
from .leaders import Leader, PartitionLeaders, raise_for
from .offset_range import OffsetRange
from .record_batch import next_position
from .transactions import AbortedTransaction

log = logging.getLogger(__name__)

# Version 10 is the first that answers zstd, and the last that leaders answer themselves: from 11
# on one may point at another replica with an empty answer, from 13 on topics have ids.
_FETCH_VERSIONS = (4, 10)

_SMALLEST_FETCH = 64 * 1024
_UNKNOWN_BYTES_PER_OFFSET = 1024.0

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0

#: A broker that has just started may not know a topic yet: for so long it is not believed.
_MISSING_FOR_S = 5.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to fetch; see :class:`~pyspark_kafka_rebalance.fetch.fetcher.RangeFetcher`."""

    read_committed: bool
    fail_on_data_loss: bool
    fetch_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    retry_timeout_s: float


class Fetched(NamedTuple):
    """What one fetch answered: record batches, the offset asked for, aborted transactions."""

    records: bytes
    position: int
    aborted: list[AbortedTransaction]


class RangeReader:
    """Reads one range.

    Parameters
    ----------
    offset_range : OffsetRange
        What to read.
    connections, leaders
        From where.
    settings : FetchSettings
        How.
    bytes_per_offset : dict[str, float]
        What an offset of a topic takes on the wire; kept up to date, so that a short range does
        not fetch much more than itself.
    """

    def __init__(
        self,
        offset_range: OffsetRange,
        connections: ClusterConnections,
        leaders: PartitionLeaders,
        settings: FetchSettings,
        bytes_per_offset: dict[str, float],
    ) -> None:
        self.range = offset_range
        self.position = offset_range.start
        self._end = offset_range.end
        self._connections = connections
        self._leaders = leaders
        self._settings = settings
        self._bytes_per_offset = bytes_per_offset
        self._pending: PendingResponse | None = None
        self._started = 0.0
        self._attempts = 0
        self._missing_since: float | None = None
        self._end_doubted = False

    @property
    def finished(self) -> bool:
        """Whether the whole range has been handed over."""
        return self.position >= self._end

    def depart(self) -> None:
        """Send the next fetch. An error is kept until `arrive`, which tries again."""
        topic, partition = self.range.topic, self.range.partition
        try:
            leader = self._leaders.locate(topic, partition)
            self._pending = self._connections.send(self._request(leader), leader.node_id)
        except (kafka_errors.KafkaError, OSError) as error:
            self._pending = PendingResponse.failed(error)

    def arrive(self) -> Fetched | None:
        """Wait for the fetch sent by `depart`, and send it again for as long as that can help.

        Ends at the first answer with record batches, when the range is `finished`, or
        ``retry_timeout_s`` after the call.

        Returns
        -------
        Fetched or None
            None if there is nothing more in the range.

        Raises
        ------
        KafkaRebalanceError
            No progress within the time allowed, or none possible; names topic, partition,
            offsets and the broker's last error.
        """
        self._started = time.monotonic()
        self._attempts = 0
        self._missing_since = None
        while not self.finished:
            assert self._pending is not None
            try:
                answer = self._answer(self._pending.wait())
                fetched = self._take(answer)
                if fetched is not None:
                    return fetched
            except (kafka_errors.KafkaError, OSError) as error:
                self._recover(error)
        return None

    def _request(self, leader: Leader) -> FetchRequest:
        expected = self._bytes_per_offset.get(self.range.topic, _UNKNOWN_BYTES_PER_OFFSET)
        # A quarter more than expected, or the last records would take a fetch of their own.
        wanted = int((self._end - self.position) * expected * 1.25)
        size = min(max(wanted, _SMALLEST_FETCH), self._settings.fetch_bytes)
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=size,
            isolation_level=int(self._settings.read_committed),
            topics=[
                FetchRequest.FetchTopic(
                    topic=self.range.topic,
                    partitions=[
                        FetchRequest.FetchTopic.FetchPartition(
                            partition=self.range.partition,
                            current_leader_epoch=leader.epoch,
                            fetch_offset=self.position,
                            partition_max_bytes=size,
                        )
                    ],
                )
            ],
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSIONS[1],
        )

    def _answer(self, response: Any) -> Any:
        """The partition's part of a response."""
        raise_for(response.error_code)
        for topic in response.responses:
            for answer in topic.partitions:
                raise_for(answer.error_code)
                return answer
        # Over its quota a client gets an answer without partitions.
        raise kafka_errors.ThrottlingQuotaExceededError(
            f"throttled for {response.throttle_time_ms} ms"
        )

    def _take(self, answer: Any) -> Fetched | None:
        """Move the position past what was answered, or find out why nothing was."""
        if answer.records:
            asked = self.position
            self.position = next_position(answer.records, asked, self.range)
            self._end_doubted = False
            self._bytes_per_offset[self.range.topic] = len(answer.records) / (self.position - asked)
            aborted = [
                AbortedTransaction(transaction.first_offset, transaction.producer_id)
                for transaction in answer.aborted_transactions or ()
            ]
            return Fetched(answer.records, asked, aborted)
        if answer.high_watermark < self._end:
            self._check_log_end()
            self._again(f"the log ends at offset {answer.high_watermark}")
        elif self._settings.read_committed and answer.last_stable_offset < self._end:
            self._again(
                f"an open transaction holds the last stable offset at {answer.last_stable_offset}"
            )
        elif self._in_tiered_storage():
            self._again("tiered storage has not answered")
        else:
            # Compaction left nothing between here and the end.
            self.position = self._end
        return None

    def _in_tiered_storage(self) -> bool:
        """Whether `position` is where an empty answer means that remote storage was too slow."""
        topic, partition = self.range.topic, self.range.partition
        try:
            local = self._leaders.list_offset(topic, partition, OffsetSpec.EARLIEST_LOCAL)
        except kafka_errors.UnsupportedVersionError:
            return False  # older than tiered storage
        if self._leaders.list_offset(topic, partition, OffsetSpec.EARLIEST) > self.position:
            raise kafka_errors.OffsetOutOfRangeError
        return local > self.position

    def _recover(self, error: Exception) -> None:
        """Do what an error calls for, and fetch again."""
        topic, partition = self.range.topic, self.range.partition
        if isinstance(error, kafka_errors.CorruptRecordError):
            reason = f"the broker cannot read it: {error!r}"
            raise CorruptRecordError(topic, partition, self.position, reason) from error
        final = explain_final(error, f"reading {self.range} at offset {self.position}")
        if final is not None:
            raise final from error
        if not isinstance(error, kafka_errors.OffsetOutOfRangeError):
            self._leaders.forget(topic, partition)
        if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
            self._missing_partition()
        else:
            self._missing_since = None
        if isinstance(error, kafka_errors.OffsetOutOfRangeError):
            try:
                self._out_of_range()
            except (kafka_errors.KafkaError, OSError) as failure:
                self._leaders.forget(topic, partition)
                error = failure
        self._again(repr(error))

    def _again(self, reason: str) -> None:
        """Fetch again, a little later each time, unless it is time to give up."""
        if self.finished:
            return
        waited = time.monotonic() - self._started
        if waited >= self._settings.retry_timeout_s:
            raise KafkaRebalanceError(
                f"reading {self.range} made no progress at offset {self.position} "
                f"for {waited:.1f} s: {reason}"
            )
        log.info("reading %s at offset %d again: %s", self.range, self.position, reason)
        backoff = min(_FIRST_BACKOFF_S * 2**self._attempts, _LONGEST_BACKOFF_S)
        self._attempts += 1
        time.sleep(backoff * random.uniform(0.8, 1.2))
        self.depart()

    def _missing_partition(self) -> None:
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= min(_MISSING_FOR_S, self._settings.retry_timeout_s):
            self._lost("the partition does not exist any more", goes_on_at=self._end)

    def _out_of_range(self) -> None:
        topic, partition = self.range.topic, self.range.partition
        earliest = self._leaders.list_offset(topic, partition, OffsetSpec.EARLIEST)
        if earliest > self.position:
            self._lost(
                f"the records from offset {self.position} on were deleted, "
                f"the log begins at offset {earliest}",
                goes_on_at=min(earliest, self._end),
            )
        else:
            self._check_log_end()

    def _check_log_end(self) -> None:
        """Find out whether the log ends before the range does, or only seems to.

        After an election the high watermark lags for a moment, and a leader of the past may not
        know yet that it is one: the end must be seen twice, with fresh metadata between.
        """
        topic, partition = self.range.topic, self.range.partition
        latest = self._leaders.list_offset(topic, partition, OffsetSpec.LATEST)
        if latest >= self._end:
            self._end_doubted = False
        elif not self._end_doubted:
            self._end_doubted = True
            self._leaders.forget(topic, partition)
        else:
            self._lost(
                f"the log ends at offset {latest}; "
                "the topic may have been deleted and created again",
                goes_on_at=min(self.position, self._end),
                ends_at=latest,
            )

    def _lost(self, what: str, *, goes_on_at: int, ends_at: int | None = None) -> None:
        """Records of the range are gone: fail, or go on with what is there."""
        text = f"{self.range}: {what}"
        if self._settings.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on, since fail_on_data_loss is off", text)
        self.position = max(self.position, goes_on_at)
        if ends_at is not None:
            self._end = min(self._end, ends_at)


def give_up(error: Exception, servers: Any, waited_s: float) -> NoReturn:
    """Raise what says that no broker could be reached."""
    final = explain_final(error, f"connecting to {servers}")
    raise final or KafkaRebalanceError(
        f"no broker of {servers} could be reached within {waited_s:g} s: {error!r}"
    ) from error
