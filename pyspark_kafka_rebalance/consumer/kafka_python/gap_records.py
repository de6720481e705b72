"""The records of gaps, decoded one record batch at a time by the compiled decoder.

One thread reads gaps and live records, so decoding gaps delays everything else on this thread.
kafka-python decodes in Python, and takes three times as long.

The records are the same to the last field. kafka-python decodes the batches that the compiled
decoder does not handle: with headers, of older formats, or damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise, repeat
from typing import Any, Literal

import pyarrow as pa
from kafka.consumer.fetcher import ConsumerRecord
from kafka.record.default_records import DefaultRecordBatch
from kafka.structs import TopicPartition

from ...errors import RecordDeserializationError
from ...fetch.compiled_columns import Memory, compiled
from ...fetch.records import Wanted
from ...transport.kafka_python_version import require_names
from .records import ReadableRecords, raise_unless_the_records

require_names({DefaultRecordBatch: ("_buffer", "_maybe_uncompress", "_pos")})

_AFTER_ALL = 2**63 - 1


class GapRecords(ReadableRecords):
    """`ReadableRecords` that decodes with the compiled decoder where it can."""

    def _unpack(
        self, tp: TopicPartition, batch: Any, key_deserializer: Any, value_deserializer: Any
    ) -> Iterator[ConsumerRecord]:
        rows = self._rows_of(batch) if batch.magic == 2 else None
        if rows is None:
            yield from super()._unpack(tp, batch, key_deserializer, value_deserializer)
            return
        topic, partition = tp
        epoch, kind = self.leader_epoch, batch.timestamp_type
        as_it_is = key_deserializer is None and value_deserializer is None
        assert compiled is not None
        untrack = compiled.untrack
        for raw_key, raw_value, offset, timestamp_us in rows:
            key, value = raw_key, raw_value
            if not as_it_is:
                try:
                    key = self._deserialize(key_deserializer, topic, [], raw_key)
                    value = self._deserialize(value_deserializer, topic, [], raw_value)
                except Exception as error:
                    raise_unless_the_records(error)
                    raise RecordDeserializationError(
                        topic, partition, offset, repr(error)
                    ) from error
            self.records_read += 1
            self.next_fetch_offset = offset + 1
            record = ConsumerRecord(
                topic,
                partition,
                epoch,
                offset,
                timestamp_us // 1000,
                kind,
                key,
                value,
                [],
                None,
                -1 if raw_key is None else len(raw_key),
                -1 if raw_value is None else len(raw_value),
                -1,
            )
            untrack(record)  # some hundreds are alive at any time, and none is in a cycle
            yield record

    def _rows_of(self, batch: Any) -> Iterator[tuple[Any, Any, int, int]] | None:
        """Key, value, offset and timestamp in microseconds; None: not for the compiled decoder."""
        append_time = bool(batch.timestamp_type)
        timestamp = batch.max_timestamp if append_time else batch.first_timestamp
        if compiled is None:
            return None
        batch._maybe_uncompress()
        wanted = Wanted(
            batch.records_count,
            batch.base_offset,
            timestamp,
            append_time,
            self.fetch_offset,
            _AFTER_ALL,
        )
        columns = compiled.Columns(True)
        payload = batch._buffer
        if not columns.append_records(payload, batch._pos, len(payload), *wanted):
            return None  # damaged: kafka-python reports how. Or a timestamp is too large.
        rows = len(columns)
        if not rows:
            return iter(())
        keys, values, offsets, timestamps, _, _, _, (_, without_headers), *_ = columns.take()
        if without_headers < rows:
            return None
        self.bytes_read += len(payload) - batch._pos
        return zip(
            _items(*keys),
            _items(*values),
            _numbers(offsets, "q"),
            _numbers(timestamps, "q"),
            strict=False,  # `repeat` never ends
        )


# Not as Arrow arrays: making one, and an Arrow object for each value, takes longer than decoding
# the batch. The memory has the layout that `record_batch_of` expects.


def _items(
    rows: int, validity: tuple[Memory | None, int], ends: Memory, data: Memory
) -> Iterable[bytes | None]:
    """The values of a column of bytes."""
    bitmap, nulls = validity
    if nulls == rows:
        return repeat(None)
    at = _numbers(ends, "i")
    everything = bytes(_view(data)) if at[-1] else b""
    found = [everything[start:end] for start, end in pairwise(at)]
    if nulls and bitmap is not None:
        bits = _view(bitmap)
        return [one if bits[n >> 3] >> (n & 7) & 1 else None for n, one in enumerate(found)]
    return found


def _numbers(memory: Memory, kind: Literal["i", "q"]) -> list[int]:
    return _view(memory).cast(kind).tolist()


def _view(memory: Memory) -> memoryview:
    return memoryview(pa.foreign_buffer(*memory))
