"""Fetches in flight: which ranges are requested together, from which broker, and when.

A broker answers the requests of a connection one after another. A second request in flight keeps it
busy while the first answer travels and is decoded. The ranges are taken in order: ranges that fit
one answer are requested together, and a large one gets requests of its own.

Invariants:
 1. A partition is in at most one request in flight, which asks for a reader's position.
 2. At most `_REQUESTS` requests are in flight. Together with ``fetch_bytes`` this bounds the memory
    of answers that are not taken yet.
 3. One answer's records are handed out before later answers' records.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest
from kafka.structs import TopicPartition

from .connections import ClusterConnections, PendingResponse
from .leaders import raise_for
from .range_reader import Fetched, FetchSettings, RangeReader

# Version 10 is the first that returns zstd; from 11 on a leader may name a nearer replica
# (KIP-392), from 13 on topics are named only by their ids.
_FETCH_VERSIONS = (4, 12)
_FETCH_VERSION_BY_ID = 13

#: Requests in flight at once: to one broker, and to all.
_REQUESTS_PER_BROKER = 2
_REQUESTS = 4


@dataclass(frozen=True, slots=True, eq=False)
class _Request:
    """A fetch in flight, and the readers it is for."""

    node_id: int
    readers: dict[TopicPartition, RangeReader]
    pending: PendingResponse


class FetchPipeline:
    """Fetches ranges until each is finished; the first readers' ranges are read first.

    The connections are bootstrapped.
    """

    def __init__(
        self,
        readers: Sequence[RangeReader],
        connections: ClusterConnections,
        settings: FetchSettings,
    ) -> None:
        self._unfinished = list(readers)
        self._connections = connections
        self._settings = settings
        self._on_their_way: list[_Request] = []
        self._asked: set[TopicPartition] = set()
        self._answered: queue.SimpleQueue[_Request] = queue.SimpleQueue()

    def fetches(self) -> Iterator[tuple[RangeReader, Fetched | None]]:
        """Yield each range's reader with record batches; None if the reader has nothing more.

        The reader's `finished` says whether these are the last. The next fetches are in flight by
        then. Raises as :meth:`RangeReader.failed`.
        """
        found = self._depart()
        while found or self._unfinished:
            yield from found
            found = self._arrive()
            found += self._depart()

    def _depart(self) -> list[tuple[RangeReader, Fetched | None]]:
        """Send all requests that are due; return the readers that are finished without a fetch."""
        if len(self._on_their_way) < _REQUESTS:
            for broker, waiting in self._ready().items():
                busy = sum(request.node_id == broker for request in self._on_their_way)
                while (
                    waiting and busy < _REQUESTS_PER_BROKER and len(self._on_their_way) < _REQUESTS
                ):
                    together = self._fitting(waiting)
                    self._send(broker, waiting[:together])
                    del waiting[:together]
                    busy += 1
        return self._finished()

    def _ready(self) -> dict[int, list[tuple[RangeReader, int]]]:
        """Return the readers that may be fetched now, by broker, with the leader epoch."""
        now = time.monotonic()
        by_broker: dict[int, list[tuple[RangeReader, int]]] = {}
        considered = set(self._asked)
        for reader in self._unfinished:
            if reader.finished or reader.partition in considered:
                continue
            considered.add(reader.partition)
            if reader.ready_at > now:
                continue
            try:
                broker, epoch = reader.ask()
            except (kafka_errors.KafkaError, OSError) as error:
                reader.failed(error, time.monotonic())
            else:
                by_broker.setdefault(broker, []).append((reader, epoch))
        return by_broker

    def _fitting(self, waiting: Sequence[tuple[RangeReader, int]]) -> int:
        """Return how many readers, at least one, are expected to fit one answer."""
        room = self._settings.fetch_bytes
        for index, (reader, _) in enumerate(waiting):
            room -= reader.wanted_bytes
            if room < 0:
                return max(index, 1)
        return len(waiting)

    def _send(self, broker: int, asked: Sequence[tuple[RangeReader, int]]) -> None:
        topics: dict[tuple[str, UUID | None], list[Any]] = {}
        size = 0
        for reader, epoch in asked:
            wanted = reader.wanted_bytes
            size += wanted
            topics.setdefault((reader.range.topic, reader.topic_id), []).append(
                FetchRequest.FetchTopic.FetchPartition(
                    partition=reader.range.partition,
                    current_leader_epoch=epoch,
                    fetch_offset=reader.position,
                    partition_max_bytes=wanted,
                )
            )
        by_id = all(topic_id is not None for _, topic_id in topics)
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=self._settings.fetch_max_wait_ms,
            min_bytes=self._settings.fetch_min_bytes,
            max_bytes=min(size, self._settings.fetch_bytes),
            isolation_level=int(self._settings.read_committed),
            topics=[
                FetchRequest.FetchTopic(topic=topic, topic_id=topic_id, partitions=partitions)
                for (topic, topic_id), partitions in topics.items()
            ],
            rack_id=self._settings.client_rack,
            min_version=_FETCH_VERSIONS[0],
            max_version=_FETCH_VERSION_BY_ID if by_id else _FETCH_VERSIONS[1],
        )
        readers = {reader.partition: reader for reader, _ in asked}
        sent = _Request(broker, readers, self._connections.send(request, broker))
        self._on_their_way.append(sent)
        self._asked.update(readers)
        sent.pending.when_done(lambda: self._answered.put(sent))

    def _arrive(self) -> list[tuple[RangeReader, Fetched | None]]:
        """Wait for an answer, or until a range is ready to be fetched again."""
        now = time.monotonic()
        waiting = [r.ready_at - now for r in self._unfinished if r.partition not in self._asked]
        waiting = [delay for delay in waiting if delay > 0]
        if not self._on_their_way:
            time.sleep(min(waiting, default=0.0))
            return []
        patience = min(request.pending.deadline - now for request in self._on_their_way)
        try:
            request = self._answered.get(timeout=max(0.0, min([*waiting, patience])))
        except queue.Empty:
            overdue = [r for r in self._on_their_way if r.pending.deadline <= time.monotonic()]
            if not overdue:
                return []
            request = overdue[0]
        if request not in self._on_their_way:
            return []  # given up before, as overdue
        return self._take(request)

    def _take(self, request: _Request) -> list[tuple[RangeReader, Fetched | None]]:
        self._on_their_way.remove(request)
        self._asked.difference_update(request.readers)
        at = request.pending.done_at
        unanswered = dict(request.readers)
        try:
            response = request.pending.wait()
            raise_for(response.error_code)
            names = {reader.topic_id: topic for (topic, _), reader in unanswered.items()}
            answers = [
                (
                    unanswered.pop(
                        TopicPartition(topic.topic or names[topic.topic_id], answer.partition_index)
                    ),
                    answer,
                )
                for topic in response.responses
                for answer in topic.partitions
            ]
        except (kafka_errors.KafkaError, OSError) as error:
            for reader in request.readers.values():
                reader.failed(error, at)
            return []
        found: list[tuple[RangeReader, Fetched | None]] = []
        alone = not any(answer.records for _, answer in answers)
        for reader, answer in answers:
            try:
                fetched = reader.answered(answer, alone, at)
            except (kafka_errors.KafkaError, OSError) as error:
                reader.failed(error, at)
            else:
                if fetched is not None:
                    found.append((reader, fetched))
                    if reader.finished:
                        self._unfinished.remove(reader)
        for reader in unanswered.values():
            # A client over its quota gets an answer without partitions.
            throttled = f"throttled for {response.throttle_time_ms} ms"
            reader.failed(kafka_errors.ThrottlingQuotaExceededError(throttled), at)
        return found

    def _finished(self) -> list[tuple[RangeReader, Fetched | None]]:
        """Return the readers that have nothing more, each only once."""
        finished = [reader for reader in self._unfinished if reader.finished]
        if finished:
            self._unfinished = [reader for reader in self._unfinished if not reader.finished]
        return [(reader, None) for reader in finished]
