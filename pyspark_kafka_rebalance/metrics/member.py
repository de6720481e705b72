"""MemberObservation: the metrics of a consumer or of a producer group's member.

Events arrive on the polling thread or on the I/O loop; a collection reads the current state on its
own thread. Only one thread adds to each dictionary here; others copy it or read one key.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from kafka.consumer.fetcher import ConsumerRecord
from kafka.structs import TopicPartition

from ..consumer.consumer import DeferredRevokeConsumer
from ..consumer.fetch_metadata import FetchMetadata
from ..consumer.offsets.found_records import count
from . import catalogue
from .catalogue import Attributes, Instrument, Measured, of_member, of_partition
from .harmless import harmless
from .instruments import Instruments
from .member_events import MemberEvents, commit_answered
from .waiting import Waiting

_POLL = {catalogue.OPERATION: "poll", catalogue.OPERATION_TYPE: "receive"}


class MemberObservation:
    """Measures one member: one client, any number of partitions.

    ``member`` returns the consumer; None before it is made, and once it is deleted. ``end`` is
    called when the consumer is closed, or the metrics fail. Without
    ``reads_records`` the member joins a group and polls no records.
    """

    def __init__(
        self,
        instruments: Instruments,
        member: Callable[[], DeferredRevokeConsumer | None],
        end: Callable[[], None],
        *,
        reads_records: bool = True,
    ) -> None:
        self._instruments = instruments
        self._member = member
        self.end = end
        self._reads_records = reads_records
        self._making = threading.Lock()
        self._made: MemberEvents | None = None
        self._attributes: Attributes = {}
        self._records: dict[TopicPartition, int] = {}  # the polling thread adds
        # Likewise: the offset after the last record polled, and its timestamp if it has one.
        self._last: dict[TopicPartition, tuple[int, float | None]] = {}
        self._bytes: dict[TopicPartition, int] = {}  # the I/O loop adds
        self._committed_at: dict[TopicPartition, float] = {}  # likewise
        self._decoded = (0, 0.0)  # rows, and how long they took; the polling thread adds
        self._waiting: dict[TopicPartition, Waiting] = {}  # collections add, one at a time
        self._readers: dict[Instrument, Callable[[DeferredRevokeConsumer], Iterable[Measured]]] = {
            catalogue.ASSIGNED: self._assigned,
            catalogue.REVOKING: self._revoking,
            catalogue.REVOKE_AGE: self._revoke_ages,
        }
        if reads_records:
            latency, latency_max = catalogue.FETCH_LATENCY, catalogue.FETCH_LATENCY_MAX
            self._readers |= {
                catalogue.LAG: self._lags,
                catalogue.LAG_TIME: self._lag_times,
                catalogue.POSITION: self._positions,
                catalogue.COMMITTED: self._commits,
                catalogue.COMMIT_AGE: self._commit_ages,
                catalogue.CATCH_UP: self._catch_up,
                catalogue.POLL_AGE: self._poll_age,
                latency: partial(self._of_library, latency, "fetch-latency-avg"),
                latency_max: partial(self._of_library, latency_max, "fetch-latency-max"),
            }

    # -- called by the consumer; see ConsumerObserver ---------------------------------------------

    @harmless
    def assigned(
        self, added: Collection[TopicPartition], gated: Collection[TopicPartition]
    ) -> None:
        """Called on the polling thread."""
        for p in added:  # another member may have owned it and moved on
            self._last.pop(p, None)
            self._committed_at.pop(p, None)
        self._instruments.push(*self._events().assigned(added, gated, time.monotonic()))

    @harmless
    def released(self, partitions: Collection[TopicPartition]) -> None:
        """Called on the polling thread."""
        self._instruments.push(*self._events().released(partitions, time.monotonic()))

    @harmless
    def lost(self, partitions: Collection[TopicPartition], undrained: bool) -> None:
        """Called on the polling thread."""
        self._instruments.push(*self._events().lost(partitions, undrained))

    @harmless
    def polled(
        self,
        records: Mapping[TopicPartition, list[Any]],
        catch_up: Mapping[TopicPartition, list[Any]],
        metadata: Mapping[TopicPartition, FetchMetadata],
    ) -> None:
        """Called on the polling thread, once per poll; nothing here runs per record."""
        totals, last = self._records, self._last
        for p, found in records.items():
            totals[p] = totals.get(p, 0) + count(found)
            newest = found[-1]
            if isinstance(newest, ConsumerRecord):
                last[p] = newest.offset + 1, newest.timestamp
            elif p in metadata:
                last[p] = metadata[p].position, _timestamp_ms(newest, row=-1)
        for p, found in catch_up.items():
            totals[p] = totals.get(p, 0) + count(found)
        events = self._made
        if events is not None and events.awaiting:
            now = time.monotonic()
            ahead_s = time.time() - now  # of the wall clock, which the timestamps are on
            first_at = {
                p: _first_at(found[0], ahead_s)
                for p, found in {**records, **catch_up}.items()
                if p in events.awaiting
            }
            # The metadata cover the live records alone; a gap's may come first or follow.
            member = self._member()
            if member is not None and member._catching_up is not None:
                lag = member._hand_outs.gaps.lag
                metadata = {p: each for p, each in metadata.items() if not lag(p)}
                first_at |= {p: None for p in first_at if p not in catch_up and lag(p)}
            self._instruments.push(*events.brought(first_at, metadata, now))

    @harmless
    def fetched(self, response: Any) -> None:
        """Called on the I/O loop."""
        totals = self._bytes
        for topic in response.responses:
            for answer in topic.partitions:
                if answer.records:
                    p = TopicPartition(topic.topic, answer.partition_index)
                    totals[p] = totals.get(p, 0) + len(answer.records)

    @harmless
    def decoded(self, rows: int, took_s: float) -> None:
        """Called on the polling thread."""
        all_rows, all_s = self._decoded
        self._decoded = all_rows + rows, all_s + took_s

    @harmless
    def commit_answered(
        self,
        accepted: Collection[TopicPartition],
        refused: Mapping[TopicPartition, type[Exception]],
        took_s: float,
    ) -> None:
        """Called on the I/O loop."""
        now = time.monotonic()
        for p in accepted:
            self._committed_at[p] = now
        self._events()
        self._instruments.push(commit_answered(self._attributes, refused, took_s))

    def closed(self) -> None:
        """Called on the thread that closes."""
        # A producer group's membership may fail before the group closes.
        if self._reads_records:
            self.end()

    # -- read at a collection ---------------------------------------------------------------------

    def read(self, instrument: Instrument) -> Iterable[Measured]:
        """Return this instrument's values now."""
        if instrument is catalogue.CONSUMED:
            return self._counted(catalogue.CONSUMED, self._records, _POLL)
        if instrument is catalogue.FETCHED:
            return self._counted(catalogue.FETCHED, self._bytes, {})
        if instrument in (catalogue.DECODED, catalogue.DECODE_TIME):
            return self._decoding(instrument)
        reader = self._readers.get(instrument)
        member = None if reader is None else self._member()
        if reader is None or member is None:
            return ()
        self._events()
        return reader(member)

    def _counted(
        self, instrument: Instrument, totals: dict[TopicPartition, int], named: Attributes
    ) -> Iterator[Measured]:
        if not totals:
            return
        self._events()
        for p, total in dict(totals).items():
            yield Measured(instrument, total, {**self._of(p), **named})

    def _decoding(self, instrument: Instrument) -> Iterator[Measured]:
        rows, took_s = self._decoded
        if rows:
            self._events()  # which knows whose they are
            value = rows if instrument is catalogue.DECODED else took_s
            yield Measured(instrument, value, self._attributes)

    def _assigned(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        yield Measured(catalogue.ASSIGNED, len(member.assignment()), self._attributes)

    def _revoking(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        yield Measured(catalogue.REVOKING, len(member._ownership.gated), self._attributes)

    def _revoke_ages(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        now, events = time.monotonic(), self._events()
        for p in member._ownership.gated:
            since = events.revoking_since(p)
            if since is not None:
                yield Measured(catalogue.REVOKE_AGE, now - since, self._of(p))

    def _lags(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        for p, standing in self._standings(member):
            yield Measured(catalogue.LAG, standing.lag, self._of(p))

    def _lag_times(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        now = time.time()
        standings = dict(self._standings(member))
        self._waiting = {p: self._waiting.get(p) or Waiting() for p in standings}
        for p, standing in standings.items():
            waiting = self._waiting[p]
            waiting.ended_at(standing.end_offset, standing.fetched_at_ms / 1000)
            since = waiting.since(standing.position, self._before_at(p, standing.position))
            waits_s = 0.0 if since is None else max(0.0, now - since)
            yield Measured(catalogue.LAG_TIME, waits_s, self._of(p))

    def _before_at(self, partition: TopicPartition, position: int) -> float | None:
        """Return the timestamp of the last record polled, if that lies before this position.

        It does not after a seek back, or while an iteration or a merge still has it ahead.
        """
        behind, at_ms = self._last.get(partition, (0, None))
        return at_ms / 1000 if at_ms is not None and at_ms >= 0 and behind <= position else None

    def _positions(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        for p in member.assignment():
            position = member._io.subscription.position(p)
            if position is not None:
                yield Measured(catalogue.POSITION, position, self._of(p))

    def _commits(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        for p in member.assignment():
            committed = member.acknowledged(p)
            if committed is not None:
                yield Measured(catalogue.COMMITTED, committed, self._of(p))

    def _commit_ages(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        now = time.monotonic()
        for p in member.assignment():
            at = self._committed_at.get(p)
            if at is not None:
                yield Measured(catalogue.COMMIT_AGE, now - at, self._of(p))

    def _catch_up(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        if member._catching_up is not None:
            for p in member.assignment():
                yield Measured(catalogue.CATCH_UP, member._hand_outs.gaps.lag(p), self._of(p))

    def _poll_age(self, member: DeferredRevokeConsumer) -> Iterator[Measured]:
        yield Measured(
            catalogue.POLL_AGE, member._membership.parts.liveness.silent_s, self._attributes
        )

    def _of_library(
        self, instrument: Instrument, name: str, member: DeferredRevokeConsumer
    ) -> Iterator[Measured]:
        """Convert a metric of kafka-python's own from milliseconds; nothing if it has no value."""
        groups = member.metrics() or {}
        value = groups.get("consumer-fetch-manager-metrics", {}).get(name)
        if value is not None and math.isfinite(value) and value > 0:
            yield Measured(instrument, value / 1000, self._attributes)

    def _standings(
        self, member: DeferredRevokeConsumer
    ) -> Iterator[tuple[TopicPartition, FetchMetadata]]:
        for p in member.assignment():
            standing = member._standing_of(p)
            if standing is not None:
                yield p, standing

    def _of(self, partition: TopicPartition) -> Attributes:
        return of_partition(self._attributes, *partition)

    def _events(self) -> MemberEvents:
        """Return the events, made at the first event or collection after the consumer is made."""
        if self._made is None:
            with self._making:
                if self._made is None:
                    member = self._member()
                    if member is not None:
                        group_id, client_id = member.config["group_id"], member.config["client_id"]
                        self._attributes = of_member(str(group_id), str(client_id))
                    self._made = MemberEvents(self._attributes)
        return self._made


def _timestamp_ms(batch: Any, row: int) -> float | None:
    """Return the timestamp of a row of an Arrow batch."""
    at_us = batch.column("timestamp")[row].value
    return None if at_us is None else at_us / 1000


def _first_at(found: Any, ahead_s: float) -> float | None:
    """Return the timestamp of a record, or of a batch's first row, in seconds less ``ahead_s``."""
    at_ms = found.timestamp if isinstance(found, ConsumerRecord) else _timestamp_ms(found, row=0)
    return None if at_ms is None or at_ms < 0 else at_ms / 1000 - ahead_s
