"""The seam to kafka-python's decoding: each read of an unreadable record raises, and names it.

kafka-python's ``PartitionRecords`` forgets after one error that it has failed: the next poll takes
nothing from it, again and again, and never returns. Here the unreadable data are dropped with the
error, and fetched again for a later poll, which raises again. The polls in between return the other
partitions' records, and a deserializer that failed for another reason gets another chance.

Only a damaged record is unreadable, and may be skipped by the application. Any other failure in
decoding (a codec's library is missing, memory is exhausted, a signal handler raises) is raised as
it is; the data are fetched again, too.

After a response without records, kafka-python's position has no leader epoch: a truncation there,
before the next record arrives, would go unnoticed (KIP-320).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from kafka import KafkaConsumer
from kafka import errors as kafka_errors
from kafka.consumer.fetcher import ConsumerRecord, Fetcher
from kafka.protocol.consumer import IsolationLevel
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from ...errors import CorruptRecordError, RecordDeserializationError, UnreadableRecordError
from ...fetch.damage import is_damage, is_from_signal_handler
from ...transport.kafka_python_version import require_names

require_names(
    {
        Fetcher: ("PartitionRecords", "_parse_fetched_data"),
        MemoryRecords: ("_next_slice",),
        Fetcher.PartitionRecords: (
            "_maybe_raise_next_inline_exception",
            "_unpack_records",
            "_contains_abort_marker",
            "_consume_aborted_transactions_up_to",
            "_is_batch_aborted",
            "_deserialize",
        ),
    }
)


#: The codecs of Kafka, by their number in a batch's attributes.
_CODECS = range(5)

#: Raised as they are, even by a deserializer: the next record would fail as well. Java's consumer
#: does not wrap Errors either.
_NOT_OF_A_RECORD = (ImportError, MemoryError, RecursionError)


class ReadableRecords(Fetcher.PartitionRecords):  # type: ignore[misc]
    """kafka-python's ``PartitionRecords``, raising the errors that polls raise.

    Raises
    ------
    CorruptRecordError, RecordDeserializationError
        From ``take``, once all records before the unreadable one are taken; the position stays
        before it.
    """

    next_fetch_offset: int
    #: Whether a signal handler has ended the decoding.
    _interrupted = False

    def take(self, n: int | None = None) -> Any:
        try:
            found = super().take(n)
            # An error behind these records waits for the next call. A signal handler's does not:
            # these records are fetched again.
            if self._interrupted:
                self._maybe_raise_next_inline_exception()
        except BaseException:
            self.drain()  # a failed generator would seem exhausted
            raise
        return found

    def _contains_abort_marker(self, batch: Any) -> bool:
        # Compaction keeps a producer's last batch, but empty: then nothing aborted is left.
        return bool(batch.records_count and super()._contains_abort_marker(batch))

    def _unpack_records(
        self, tp: TopicPartition, records: Any, key_deserializer: Any, value_deserializer: Any
    ) -> Iterator[ConsumerRecord]:
        batch = encoded = None
        try:
            while True:
                encoded = records._next_slice
                if (batch := records.next_batch()) is None:
                    break
                self._check(batch)
                if batch.magic != 2 or self._wanted(batch):
                    yield from self._unpack(tp, batch, key_deserializer, value_deserializer)
                if batch.magic == 2:  # past the records that compaction has removed
                    self.next_fetch_offset = max(self.next_fetch_offset, batch.next_offset)
            self.drain()
        except UnreadableRecordError:
            raise
        except Exception as error:
            if not is_damage(error, lambda: self._decode(encoded)):
                self._interrupted = is_from_signal_handler(error)
                raised = _as_raised(error)
                if hasattr(raised, "add_note"):  # not before Python 3.11
                    raised.add_note(
                        f"while {tp.topic}-{tp.partition} was decoded from offset "
                        f"{self.next_fetch_offset} on; nothing was skipped"
                    )
                raise raised from raised.__cause__
            raise self._corrupt(tp, batch, error) from error

    def _decode(self, encoded: Any) -> None:
        """Decode a record batch without any further effect."""
        batch = MemoryRecords(bytes(encoded)).next_batch()
        self._check(batch)
        for record in batch:
            if self.check_crcs and not record.validate_crc():
                raise kafka_errors.CorruptRecordError("the CRC of a message is wrong")

    def _check(self, batch: Any) -> None:
        if self.check_crcs and not batch.validate_crc():
            raise kafka_errors.CorruptRecordError("the CRC is wrong")
        if batch.compression_type not in _CODECS:  # to kafka-python a codec without its library
            raise kafka_errors.CorruptRecordError(f"unknown codec {batch.compression_type}")

    def _wanted(self, batch: Any) -> bool:
        """Whether a batch has records for the application; keeps track of transactions."""
        self.leader_epoch = batch.leader_epoch
        if self.isolation_level == IsolationLevel.READ_COMMITTED and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return False
        return not batch.is_control_batch

    def _unpack(
        self, tp: TopicPartition, batch: Any, key_deserializer: Any, value_deserializer: Any
    ) -> Iterator[ConsumerRecord]:
        for record in batch:
            if record.offset < self.fetch_offset:  # also records that a seek should skip
                continue
            if self.check_crcs and not record.validate_crc():
                raise kafka_errors.CorruptRecordError("the CRC of a message is wrong")
            raw_key, raw_value, headers = record.key, record.value, record.headers
            try:
                key = self._deserialize(key_deserializer, tp.topic, headers, raw_key)
                value = self._deserialize(value_deserializer, tp.topic, headers, raw_value)
            except Exception as error:
                raise_unless_the_records(error)
                raise RecordDeserializationError(
                    tp.topic, tp.partition, record.offset, repr(error)
                ) from error
            size = -1
            if headers:
                size = sum(len(name.encode()) + len(data or b"") for name, data in headers)
            self.records_read += 1
            self.bytes_read += record.size_in_bytes
            found = ConsumerRecord(
                tp.topic,
                tp.partition,
                self.leader_epoch,
                record.offset,
                record.timestamp,
                record.timestamp_type,
                key,
                value,
                headers,
                record.checksum,
                -1 if raw_key is None else len(raw_key),
                -1 if raw_value is None else len(raw_value),
                size,
            )
            # Last: an exception of a signal handler in between would skip the record.
            self.next_fetch_offset = record.offset + 1
            yield found

    def _corrupt(self, tp: TopicPartition, batch: Any, error: Exception) -> CorruptRecordError:
        offset, after = self.next_fetch_offset, None
        if batch is not None and batch.magic == 2 and batch.last_offset >= offset:
            offset, after = batch.base_offset, batch.next_offset
        return CorruptRecordError(tp.topic, tp.partition, offset, repr(error), after)


def raise_unless_the_records(error: Exception) -> None:
    """Raise a deserializer's error again unless it concerns the record alone."""
    if isinstance(error, _NOT_OF_A_RECORD) or is_from_signal_handler(error):
        raise error


def _as_raised(error: Exception) -> BaseException:
    """The error raised in decoding; kafka-python replaces some errors."""
    replaced = error.__context__
    if type(error) is kafka_errors.CorruptRecordError and isinstance(
        replaced, (ValueError, IndexError)
    ):
        return replaced
    return error


def name_what_is_unreadable(consumer: KafkaConsumer) -> None:
    """Also name the partition and offset if a fetch returns no usable data.

    Call it before the first fetch. A response without records then changes nothing: the position
    keeps its leader epoch.
    """
    fetcher = consumer._fetcher
    parse: Callable[[Any], Any] = fetcher._parse_fetched_data

    def parse_and_name(completed: Any) -> Any:
        try:
            parsed = parse(completed)
        except UnreadableRecordError:
            raise
        except kafka_errors.KafkaError as error:
            # The broker could not read the data, or sent no whole batch.
            if type(error) not in (kafka_errors.CorruptRecordError, kafka_errors.KafkaError):
                raise
            at = completed.topic_partition
            raise CorruptRecordError(
                at.topic, at.partition, completed.fetched_offset, repr(error)
            ) from error
        if parsed is None or completed.partition_data.records:
            return parsed
        parsed.drain()
        return None

    fetcher._parse_fetched_data = parse_and_name
