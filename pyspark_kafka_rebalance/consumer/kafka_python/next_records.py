"""Fetches the next record of a partition for its timestamp, which brokers do not report.

ListOffsets by timestamp answers with the first record of the whole log that is young enough. That
may lie below the position, as after a clock that was ahead, or where records are copied with the
timestamps of events; or it is a transaction's marker, or of an aborted transaction.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.protocol.consumer import FetchRequest, IsolationLevel
from kafka.protocol.consumer.offsets import OffsetSpec
from kafka.structs import TopicPartition
from kafka.util import Timer

from ...errors import CorruptRecordError
from ...fetch.offset_range import OffsetRange
from ...fetch.transactions import AbortedTransaction, aborted_in
from .questions import told_offsets

log = logging.getLogger(__name__)

# As in fetch_pipeline.py: version 10 is the first that returns zstd, from 13 on topics have ids.
_VERSIONS = (4, 12)

#: Bytes of each partition's first request; then four times as many each time, up to the consumer's
#: ``max_partition_fetch_bytes``. The first partition of a request gets a whole batch anyway.
_FIRST_BYTES = 64 * 1024

#: The timestamp of a record whose age is unknown.
NO_TIMESTAMP = -1

_unpack_length = struct.Struct(">8xi").unpack_from
_LOG_OVERHEAD = 12


async def next_timestamps(
    consumer: KafkaConsumer,
    positions: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    timeout_ms: float,
) -> dict[TopicPartition, int | None]:
    """Fetch the next record of each partition, on the I/O loop, for its timestamp.

    Parameters
    ----------
    consumer : KafkaConsumer
        Asks, under its isolation level.
    positions, ends : mapping
        Where to search: offsets, the ends exclusive. No position is at its end.
    timeout_ms : float
        Milliseconds for the whole search.

    Returns
    -------
    dict of TopicPartition to int or None
        Milliseconds; NO_TIMESTAMP if the record has none, has one that microseconds in 64 bits
        cannot hold, or is damaged. None: there is no record. Partitions without an answer are left
        out.

    Raises
    ------
    kafka.errors.KafkaError
        An error that is not retriable, such as TopicAuthorizationFailedError.
    """
    search = _Search(consumer, positions, ends)
    timer = Timer(timeout_ms)
    while search.at:
        unanswered = len(search.at)
        await search.ask(timer)
        if timer.expired:
            break
        if len(search.at) == unanswered:
            backoff_ms = min(consumer.config["retry_backoff_ms"], timer.timeout_ms)
            await consumer._net.sleep(backoff_ms / 1000)
    return search.found


class _Search:
    """The partitions whose next record is not found yet, and the offsets to fetch next."""

    def __init__(
        self,
        consumer: KafkaConsumer,
        positions: Mapping[TopicPartition, int],
        ends: Mapping[TopicPartition, int],
    ) -> None:
        self.at = dict(positions)
        self.found: dict[TopicPartition, int | None] = {}
        self._ends = ends
        self._config = consumer.config
        self._fetcher = consumer._fetcher
        self._manager = consumer._manager
        self._isolation = IsolationLevel.build_from(self._config["isolation_level"])
        self._bytes = _FIRST_BYTES

    async def ask(self, timer: Timer) -> None:
        """Send one request to each leader, and take in the answers."""
        size = min(self._bytes, self._config["max_partition_fetch_bytes"])
        self._bytes = 4 * size
        asked = [
            self._manager.send(self._request(led, size), node_id=leader)
            for leader, led in self._by_leader().items()
        ]
        below: list[TopicPartition] = []
        for answer in asked:
            try:
                response = await self._manager.wait_for(answer, timer.timeout_ms)
                _raise_for(response.error_code)
            except kafka_errors.KafkaError as error:
                self._fails(error)
                continue
            for topic in response.responses:
                for told in topic.partitions:
                    partition = TopicPartition(topic.topic, told.partition_index)
                    try:
                        _raise_for(told.error_code)
                    except kafka_errors.OffsetOutOfRangeError:
                        below.append(partition)
                    except kafka_errors.KafkaError as error:
                        self._fails(error)
                    else:
                        self._take(partition, bytes(told.records or b""), told.aborted_transactions)
        if below:
            await self._begin_later(below, timer)
        self._let_another_be_first()

    def _by_leader(self) -> dict[int, list[TopicPartition]]:
        by_leader: dict[int, list[TopicPartition]] = {}
        for partition in self.at:
            leader = self._manager.cluster.leader_for_partition(partition)
            if leader is None or leader == -1:
                self._manager.cluster.request_update()
            else:
                by_leader.setdefault(leader, []).append(partition)
        return by_leader

    def _request(self, partitions: Sequence[TopicPartition], size: int) -> FetchRequest:
        topics: dict[str, list[Any]] = {}
        for topic, number in partitions:
            topics.setdefault(topic, []).append(
                FetchRequest.FetchTopic.FetchPartition(
                    partition=number,
                    current_leader_epoch=-1,
                    fetch_offset=self.at[TopicPartition(topic, number)],
                    partition_max_bytes=size,
                )
            )
        return FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=self._config["fetch_max_bytes"],
            isolation_level=self._isolation,
            topics=[
                FetchRequest.FetchTopic(topic=topic, partitions=entries)
                for topic, entries in topics.items()
            ],
            min_version=_VERSIONS[0],
            max_version=_VERSIONS[1],
        )

    def _fails(self, error: kafka_errors.KafkaError) -> None:
        if not error.retriable:
            raise error
        log.info("the brokers did not return the next records: %r", error)
        self._manager.cluster.request_update()

    def _take(self, partition: TopicPartition, records: bytes, aborted: Sequence[Any]) -> None:
        """Take in a partition's fetched batches; nothing if the response had no room for one."""
        if (
            len(records) < _LOG_OVERHEAD
            or _unpack_length(records)[0] > len(records) - _LOG_OVERHEAD
        ):
            return
        topic, number = partition
        where = OffsetRange(topic, number, self.at[partition], self._ends[partition])
        try:
            timestamp, after = _first_timestamp(
                records,
                where,
                aborted_in(aborted),
                self._isolation == IsolationLevel.READ_COMMITTED,
            )
        except CorruptRecordError as error:
            log.info("the age of the next record is unknown: %s", error)
            timestamp, after = NO_TIMESTAMP, where.end
        if timestamp is not None or after >= where.end:
            self.found[partition] = timestamp
            del self.at[partition]
        else:
            self.at[partition] = after

    async def _begin_later(self, partitions: Sequence[TopicPartition], timer: Timer) -> None:
        """The records at these positions were deleted: search from the starts of the logs."""
        asked = dict.fromkeys(partitions, OffsetSpec.EARLIEST)
        begins = await told_offsets(self._fetcher, asked, timer.timeout_ms)
        for partition, begin in begins.items():
            if begin is not None and begin >= self._ends[partition]:
                self.found[partition] = None
                del self.at[partition]
            elif begin is not None:
                self.at[partition] = max(begin, self.at[partition])

    def _let_another_be_first(self) -> None:
        for partitions in self._by_leader().values():
            self.at[partitions[0]] = self.at.pop(partitions[0])


def _raise_for(error_code: int) -> None:
    kind = kafka_errors.for_code(error_code)
    if kind is not kafka_errors.NoError:
        raise kind("while the next record was fetched")


def _first_timestamp(
    records: bytes, where: OffsetRange, aborted: Sequence[AbortedTransaction], read_committed: bool
) -> tuple[int | None, int]:
    """The timestamp of the first record, None if there is none here, and where to fetch next."""
    from ...fetch.decoder import DecoderSettings, RecordDecoder, next_position  # imports Arrow

    settings = DecoderSettings(read_committed=read_committed, batch_rows=1)
    decoder = RecordDecoder(where, settings)
    for batch in decoder.decode(records, where.start, aborted):
        timestamp_us = batch.column("timestamp")[0].value
        return NO_TIMESTAMP if timestamp_us is None else timestamp_us // 1000, where.start
    return None, next_position(records, where.start, where)
