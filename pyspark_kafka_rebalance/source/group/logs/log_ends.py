"""LogEnds: the ends, starts and sizes of the partitions' logs, with the last answers cached.

Only the planner's thread uses it, apart from :meth:`LogEnds.told`. If the pump has ended, a failed
look-up raises the reason.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from ....consumer.offsets.found_records import RecordTime
from ....errors import KafkaRebalanceError, names_of
from ..clients.query_members import LOOKUP_TIMEOUT_MS
from ..clients.query_part import QueryCore, QueryPart
from .log_sizes import log_sizes

if TYPE_CHECKING:
    from ....consumer.consumer import DeferredRevokeConsumer

log = logging.getLogger(__name__)

#: Idle triggers come every 10 ms; end offsets older than this are requested again.
END_OFFSETS_MAX_AGE_S = 0.03

#: How long a high watermark is reused to check that a position is within its log, while an open
#: transaction holds the end offset below the position.
_HIGH_WATERMARKS_MAX_AGE_S = 1.0

#: The average size of an offset changes slowly, so it is cached for a minute. In a short log it can
#: change fast, so a log that has grown by more than a quarter is measured again.
_BYTES_PER_OFFSET_MAX_AGE_S = 60.0
_MEASURED_AGAIN_AT = 1.25

#: Log starts are cached this long: retention only deletes whole segments, now and then.
_LOG_STARTS_MAX_AGE_S = 5.0

#: Latest records are cached this long: a log's latest timestamp can fall, by truncation or by
#: retention by size.
_LATEST_MAX_AGE_S = 5.0

#: How soon to ask again for sizes that some leader did not give: an idle trigger must not reconnect
#: every 10 ms.
_SIZES_AGAIN_S = 0.2

#: How long a run with a fixed end waits for the end offsets of its partitions, and how often it
#: asks.
_ALL_ENDS_WITHIN_S = 60.0
_ASK_AGAIN_S = 0.02


class _Measured(NamedTuple):
    """A log, as it was when its size was measured."""

    size: int
    begin: int
    end: int  # high watermark: includes open transactions
    told_end: int  # the caller's end offset: excludes them under read_committed

    def bytes_per_offset(self) -> float:
        return self.size / max(1, self.end - self.begin)

    def holds_at(self, end: int) -> bool:
        """Whether a log with this end is still this one, and not much longer."""
        longest = self.begin + _MEASURED_AGAIN_AT * (self.end - self.begin)
        return self.told_end <= end <= max(longest, self.told_end)


class LogEnds(QueryPart):
    """Answers from the last look-ups where they are new enough."""

    def __init__(self, core: QueryCore) -> None:
        super().__init__(core)
        self._ends: dict[TopicPartition, int] = {}
        self.asked_at = 0.0  #: when the ends were last requested; seconds, monotonic
        self._known: dict[TopicPartition, int] = {}
        self._high_watermarks: dict[TopicPartition, int] = {}
        self._high_watermarks_at = 0.0
        self._measured: dict[TopicPartition, _Measured] = {}
        self._measured_at = 0.0
        self._ask_sizes_at = 0.0
        self._log_starts: dict[TopicPartition, int] = {}
        self._log_starts_at = 0.0
        event_time = core.options.event_time
        self._wants_latest = event_time is not None and event_time.max_idle_ms > 0
        self._latest: Mapping[TopicPartition, RecordTime | None] = {}
        self._latest_at = -math.inf

    def end_offsets(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """End offsets, exclusive: high watermark, or last stable offset under read_committed.

        One request per broker; an answer is reused for at most ``END_OFFSETS_MAX_AGE_S``.
        Partitions without a known leader, or whose leader does not answer, are left out.
        """
        now = time.monotonic()
        fresh = now - self.asked_at <= END_OFFSETS_MAX_AGE_S
        if not fresh or not self._ends.keys() >= set(partitions):
            with self._members.asking() as client:
                recent = now - self._latest_at <= _LATEST_MAX_AGE_S
                know_latest = recent and self._latest.keys() >= set(partitions)
                if self._wants_latest and not know_latest:
                    # Requested before the ends, so that these records lie before them.
                    self._latest = self._ask_latest(client, partitions)
                    self._latest_at = now
                # If a leader is moving or a topic was deleted, the next trigger asks again.
                self._ends = client.end_offsets_now(partitions, LOOKUP_TIMEOUT_MS)
            self.asked_at = now
            return self._ends
        return {p: self._ends[p] for p in partitions if p in self._ends}

    def latest_records(self) -> Mapping[TopicPartition, RecordTime | None]:
        """With ``maxTaskIdleMs``: each log's record with the highest timestamp, before its end.

        At most some seconds old. After :meth:`renew_latest`, requested with the next ends. None for
        an empty log, or under read_committed if the record is in an open transaction. Partitions
        without an answer are left out; empty if brokers are older than 3.0.
        """
        return self._latest

    def renew_latest(self) -> None:
        """Request the latest records together with the next ends."""
        self._latest_at = -math.inf

    def _ask_latest(
        self, client: DeferredRevokeConsumer, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, RecordTime | None]:
        try:
            return client.latest_records_now(partitions, LOOKUP_TIMEOUT_MS)
        except kafka_errors.IncompatibleBrokerVersion:
            self._wants_latest = False
            return {}

    def told(self) -> Mapping[TopicPartition, int]:
        """The last answered end offsets of recently requested partitions; on any thread."""
        return {**self._known, **self._ends}  # both are replaced, never changed

    def known_end_offsets(self, owned: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The last answered end offset of each of these, without a request.

        Includes partitions that are being revoked or have no leader now, which are no longer
        requested. Forgets partitions that are not owned any more.
        """
        ends, known = self._ends, self._known
        told = ((p, ends.get(p, known.get(p))) for p in owned)
        self._known = {p: end for p, end in told if end is not None}
        return self._known

    def high_watermarks(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """High watermarks, exclusive, of partitions whose end offset is below their position.

        Makes a request only under read_committed: there, an open transaction holds the end offset
        below the high watermark. A high watermark at or above the position may be a second old.
        Partitions whose leader does not answer are left out. :meth:`end_offsets` must just have
        returned the end offsets of these partitions.
        """
        if self._options.isolation_level == "read_uncommitted":
            return {p: self._ends[p] for p in positions}
        known = self._high_watermarks
        fresh = time.monotonic() - self._high_watermarks_at <= _HIGH_WATERMARKS_MAX_AGE_S
        if not fresh or any(known.get(p, -1) < at for p, at in positions.items()):
            with self._members.asking() as client:
                known = client.high_watermarks_now(positions, LOOKUP_TIMEOUT_MS)
            self._high_watermarks, self._high_watermarks_at = known, time.monotonic()
        return {p: known[p] for p in positions if p in known}

    def end_offsets_of_topics(self) -> dict[TopicPartition, int]:
        """End offsets of every partition of the subscribed topics, other members' included.

        Raises KafkaRebalanceError if some leaders do not answer within a minute; names the
        partitions.
        """
        partitions = self._members.partitions()
        deadline = time.monotonic() + _ALL_ENDS_WITHIN_S
        ends: dict[TopicPartition, int] = {}
        while missing := sorted(partitions - ends.keys()):
            if time.monotonic() >= deadline:
                raise KafkaRebalanceError(
                    "the brokers did not return these end offsets within a minute: "
                    f"{names_of(missing)}"
                )
            ends.update(self.end_offsets(missing))
            if not ends.keys() >= partitions:
                self._members.client().request_metadata()
                self._pump.wait(_ASK_AGAIN_S)
                self._pump.raise_failure()
        return ends

    def log_starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Log start offsets, at most some seconds old; leaves out those without an answer."""
        now = time.monotonic()
        fresh = now - self._log_starts_at <= _LOG_STARTS_MAX_AGE_S
        if not fresh or not self._log_starts.keys() >= set(partitions):
            with self._members.asking() as client:
                led = client.partitions_with_leader(partitions)
                self._log_starts = (
                    client.beginning_offsets_now(led, LOOKUP_TIMEOUT_MS) if led else {}
                )
            self._log_starts_at = now
        return {p: self._log_starts[p] for p in partitions if p in self._log_starts}

    def bytes_per_offset(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, float]:
        """The average size of an offset on the partition leader's disk, in bytes.

        Partitions whose leader does not answer are left out, and requested again a little later.
        The answers are at most a minute old, and their logs at most a quarter longer by now.
        Raises KafkaRebalanceError if the brokers refuse to answer.
        """
        now = time.monotonic()
        aged = now - self._measured_at > _BYTES_PER_OFFSET_MAX_AGE_S
        known = self._holding(ends)
        asked = {p: end for p, end in ends.items() if aged or p not in known}
        if asked and now >= self._ask_sizes_at:
            found = self._measure(asked)
            if not found.keys() >= asked.keys():
                self._ask_sizes_at = time.monotonic() + _SIZES_AGAIN_S
            elif aged:
                self._measured_at = now
            both = {**self._measured, **found}
            self._measured = {p: both[p] for p in ends if p in both}
            known = self._holding(ends)
        return {p: measured.bytes_per_offset() for p, measured in known.items()}

    def _holding(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Measured]:
        measured = self._measured
        return {
            p: measured[p] for p, end in ends.items() if p in measured and measured[p].holds_at(end)
        }

    def _measure(self, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, _Measured]:
        try:
            with self._members.asking() as client:
                leaders = client.leaders(ends)
                begins = client.beginning_offsets_now(leaders, LOOKUP_TIMEOUT_MS)
                whole = client.high_watermarks_now(leaders, LOOKUP_TIMEOUT_MS)
            sizes = log_sizes(self._options.client_config, leaders)
        except kafka_errors.KafkaError as error:
            if not error.retriable:
                raise
            log.warning("cannot look up the log sizes now: %r", error)
            return {}
        return {
            p: _Measured(sizes[p], begins[p], whole[p], end)
            for p, end in ends.items()
            if p in sizes and p in begins and p in whole
        }
