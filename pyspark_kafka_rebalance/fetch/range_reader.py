"""The progress of one range, and the effects of answers and errors on it.

Invariants of a reader:
 1. `position` only grows; every visible record of the range before it has been handed over.
 2. The range ends where the log was seen to continue at or past its end, never because an answer
    was empty: a quota, an election, tiered storage, an open transaction and other partitions in
    the same answer empty it as well.
"""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.consumer import OffsetSpec
from kafka.structs import TopicPartition

from ..errors import CorruptRecordError, DataLossError, KafkaRebalanceError
from .connections import explain_final
from .decoder import next_position
from .leaders import Leader, PartitionLeaders, raise_for
from .offset_range import OffsetRange
from .transactions import AbortedTransaction, aborted_in

log = logging.getLogger(__name__)

_SMALLEST_FETCH = 64 * 1024
_UNKNOWN_BYTES_PER_OFFSET = 1024.0

_FIRST_BACKOFF_S = 0.05
_LONGEST_BACKOFF_S = 1.0

#: A broker that has just started may not know a topic yet: ignore for this long that it is missing.
_MISSING_FOR_S = 5.0

#: And for this long that its id is another: a broker may still know only the topic's predecessor.
_REPLACED_FOR_S = 1.0

#: How long to read from a replica that the leader has named (KIP-392): Java's metadata.max.age.ms.
_REPLICA_FOR_S = 300.0


@dataclass(frozen=True, slots=True)
class FetchSettings:
    """How to fetch; see :class:`~pyspark_kafka_rebalance.fetch.fetcher.RangeFetcher`."""

    read_committed: bool
    fail_on_data_loss: bool
    fetch_bytes: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    retry_timeout_s: float
    client_rack: str = ""


class Fetched(NamedTuple):
    """The answer to one fetch: record batches, the requested offset, aborted transactions."""

    records: bytes
    position: int
    aborted: list[AbortedTransaction]


class _TopicReplacedError(kafka_errors.InconsistentTopicIdError):  # type: ignore[misc]
    """The metadata have another topic with that name."""


class RangeReader:
    """How far one range has been read.

    ``bytes_per_offset`` is the size of an offset on the wire, by topic; kept up to date, so that a
    short range does not fetch much more than itself. A topic with another id than ``topic_id`` has
    nothing of the range.
    """

    def __init__(
        self,
        offset_range: OffsetRange,
        leaders: PartitionLeaders,
        settings: FetchSettings,
        bytes_per_offset: dict[str, float],
        topic_id: UUID | None = None,
    ) -> None:
        self.range = offset_range
        self.partition = TopicPartition(offset_range.topic, offset_range.partition)
        self.topic_id = topic_id
        self.position = offset_range.start
        #: When to fetch next, by the monotonic clock.
        self.ready_at = 0.0
        self._end = offset_range.end
        self._leaders = leaders
        self._settings = settings
        self._bytes_per_offset = bytes_per_offset
        self._asked_at = 0.0
        #: How long there has been no progress, not counting the time that the caller took.
        self._stalled_s = 0.0
        self._attempts = 0
        self._missing_since: float | None = None
        self._end_doubted = False
        self._replica: int | None = None
        self._replica_until = 0.0

    @property
    def finished(self) -> bool:
        """Whether the whole range has been handed over."""
        return self.position >= self._end

    @property
    def wanted_bytes(self) -> int:
        """How many bytes the next fetch should request at most."""
        expected = self._bytes_per_offset.get(self.range.topic, _UNKNOWN_BYTES_PER_OFFSET)
        # A quarter more than expected, or the last records would take a fetch of their own.
        wanted = int((self._end - self.position) * expected * 1.25)
        return min(max(wanted, _SMALLEST_FETCH), self._settings.fetch_bytes)

    def ask(self) -> Leader:
        """Return the broker to fetch from now: the leader or the replica it named, and the epoch.

        Raises a KafkaError or OSError if there is none known; pass it to `failed`.
        """
        self._asked_at = time.monotonic()
        leader = self._leaders.locate(self.range.topic, self.range.partition)
        if self.topic_id is not None and self._leaders.topic_id(self.range.topic) not in (
            None,
            self.topic_id,
        ):
            raise _TopicReplacedError(self.range.topic)
        if self._replica is not None and self._asked_at >= self._replica_until:
            self._replica = None
        return leader if self._replica is None else Leader(self._replica, leader.epoch)

    def answered(self, answer: Any, alone: bool, at: float) -> Fetched | None:
        """Move the position past the fetched records, or find out why there are none.

        Parameters
        ----------
        answer : FetchResponse.FetchableTopicResponse.PartitionData
            The answer for this partition.
        alone : bool
            Whether no other partition in the response has records. If one has, the response may
            have been full.
        at : float
            When the answer came, by the monotonic clock.

        Raises
        ------
        kafka.errors.KafkaError or OSError
            Pass it to `failed`.
        KafkaRebalanceError
            As from `failed`.
        """
        raise_for(answer.error_code)
        if answer.preferred_read_replica >= 0:
            self._replica = answer.preferred_read_replica
            self._replica_until = time.monotonic() + _REPLICA_FOR_S
            log.debug("%s is read from replica %d", self.range, self._replica)
        elif answer.records:
            return self._advance(answer)
        elif alone:
            self._nothing(answer, at)
        return None

    def _advance(self, answer: Any) -> Fetched:
        asked = self.position
        self.position = next_position(answer.records, asked, self.range)
        self._stalled_s, self._attempts, self._missing_since = 0.0, 0, None
        self._end_doubted = False
        self._bytes_per_offset[self.range.topic] = len(answer.records) / (self.position - asked)
        return Fetched(answer.records, asked, aborted_in(answer.aborted_transactions))

    def _nothing(self, answer: Any, at: float) -> None:
        if answer.high_watermark < self._end:
            self._check_log_end()
            self._again(f"the log ends at offset {answer.high_watermark}", at)
        elif self._settings.read_committed and answer.last_stable_offset < self._end:
            stable = answer.last_stable_offset
            self._again(f"an open transaction holds the last stable offset at {stable}", at)
        elif self._in_tiered_storage():
            self._again("tiered storage has not answered", at)
        else:
            # Compaction left nothing between here and the end.
            self.position = self._end

    def _in_tiered_storage(self) -> bool:
        """Whether an empty answer at `position` means that remote storage was too slow."""
        topic, partition = self.range.topic, self.range.partition
        try:
            local = self._leaders.list_offset(topic, partition, OffsetSpec.EARLIEST_LOCAL)
        except kafka_errors.UnsupportedVersionError:
            return False  # older than tiered storage
        if self._leaders.list_offset(topic, partition, OffsetSpec.EARLIEST) > self.position:
            raise kafka_errors.OffsetOutOfRangeError
        return local > self.position

    def failed(self, error: Exception, at: float) -> None:
        """Handle the error of a request or of its answer, and set when to fetch again.

        ``at`` is when it occurred, by the monotonic clock. Raises KafkaRebalanceError if there was
        no progress for ``retry_timeout_s``, or none is possible; names topic, partition, offsets
        and the broker's last error.
        """
        topic, partition = self.range.topic, self.range.partition
        if isinstance(error, kafka_errors.CorruptRecordError):
            reason = f"the broker cannot read it: {error!r}"
            raise CorruptRecordError(topic, partition, self.position, reason) from error
        final = explain_final(error, f"reading {self.range} at offset {self.position}")
        if final is not None:
            raise final from error
        if self._replica is not None:
            # Whatever the error, the leader knows better: a replica may lag, or have left.
            self._replica = None
            self._again(f"its replica failed: {error!r}", at)
            return
        if not isinstance(error, kafka_errors.OffsetOutOfRangeError):
            self._leaders.forget(topic, partition)
        if isinstance(error, kafka_errors.UnknownTopicOrPartitionError):
            self._missing("the partition does not exist any more", _MISSING_FOR_S)
        elif isinstance(error, _TopicReplacedError):
            self._missing("the topic was deleted and created again", _REPLACED_FOR_S)
        else:
            self._missing_since = None
        if isinstance(error, kafka_errors.OffsetOutOfRangeError):
            try:
                self._out_of_range()
            except (kafka_errors.KafkaError, OSError) as failure:
                self._leaders.forget(topic, partition)
                error = failure
        self._again(repr(error), at)

    def _again(self, reason: str, at: float) -> None:
        """Fetch again, a little later each time, unless it is time to give up."""
        if self.finished:
            return
        self._stalled_s += at - self._asked_at
        # A missing partition has a timeout of its own, or a slow answer would hide the reason.
        if self._stalled_s >= self._settings.retry_timeout_s and self._missing_since is None:
            raise KafkaRebalanceError(
                f"reading {self.range} made no progress at offset {self.position} "
                f"for {self._stalled_s:.1f} s: {reason}"
            )
        log.info("reading %s at offset %d again: %s", self.range, self.position, reason)
        backoff = min(_FIRST_BACKOFF_S * 2**self._attempts, _LONGEST_BACKOFF_S)
        backoff *= random.uniform(0.8, 1.2)
        self._attempts += 1
        self._stalled_s += backoff
        self.ready_at = time.monotonic() + backoff

    def _missing(self, what: str, for_s: float) -> None:
        """The range's log is missing; give the range up once that has lasted this long."""
        now = time.monotonic()
        if self._missing_since is None:
            self._missing_since = now
        if now - self._missing_since >= min(for_s, self._settings.retry_timeout_s):
            self._lost(what, goes_on_at=self._end)

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

        After an election the high watermark lags for a moment, and a former leader may not know yet
        that it has been replaced. So the end must be seen twice, with fresh metadata in between.
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
        """Records of the range no longer exist: fail, or continue with the remaining ones."""
        text = f"{self.range}: {what}"
        if self._settings.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; reading on, because fail_on_data_loss is off", text)
        self.position = max(self.position, goes_on_at)
        if ends_at is not None:
            self._end = min(self._end, ends_at)


def give_up(error: Exception, servers: Any, waited_s: float) -> NoReturn:
    """Raise an error that says that no broker could be reached."""
    final = explain_final(error, f"connecting to {servers}")
    raise final or KafkaRebalanceError(
        f"no broker of {servers} could be reached within {waited_s:g} s: {error!r}"
    ) from error
