"""ArrowGroup: merges record batches of several partitions by timestamp, without a loop over rows.

The order is that of ``timestamp_merge.py``. A record whose timestamp goes back comes right after
the record before it. Its sort key is therefore the highest timestamp up to it in the buffer, and
one stable sort by these keys merges whole columns.

How far to merge is decided first: up to the last buffered row of the first partition that the group
waits for. Every partition then gives its rows up to that point, and they form one table.

Pure. Imports Arrow, so it is itself imported only by the first ordered ``poll_arrow``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from kafka.structs import TopicPartition

from ...fetch.columns import record_schema
from .timestamp_merge import UNKNOWN, Group

#: The columns with a row's origin, and their index; as in Spark's source.
_PLACES = (
    pa.field("topic", pa.dictionary(pa.int32(), pa.string())),
    pa.field("partition", pa.int32()),
)
_AT = 2
_PLAIN_COLUMNS = len(record_schema(False)) + len(_PLACES)


@dataclass(frozen=True)
class Rows:
    """Rows of one partition, in offset order."""

    partition: TopicPartition
    batches: list[pa.RecordBatch]
    time: int = UNKNOWN  # the highest timestamp taken from the partition before, in microseconds

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self.batches)

    def times(self) -> pa.Array:
        """The sort key of each row, ascending."""
        stamps = _timestamps(self.batches)
        if pc.min(stamps).as_py() < 0:
            before = pa.concat_arrays([pa.array([self.time], pa.int64()), stamps])
            highest = pc.cumulative_max(before).slice(0, len(stamps))
            stamps = pc.if_else(pc.less(stamps, 0), highest, stamps)
        return pc.cumulative_max(stamps)


class _Queue:
    """The buffered rows of one partition, and the highest timestamp taken from it."""

    def __init__(self) -> None:
        self.batches: deque[pa.RecordBatch] = deque()
        self.rows = 0
        self.time = UNKNOWN

    def __len__(self) -> int:
        return self.rows

    def append(self, batch: pa.RecordBatch) -> None:
        self.batches.append(batch)
        self.rows += batch.num_rows

    def take(self, partition: TopicPartition, number: int) -> Rows:
        """Remove and return the first ``number`` rows."""
        taken = []
        self.rows -= number
        while number:
            batch = self.batches.popleft()
            if batch.num_rows > number:
                self.batches.appendleft(batch.slice(number))
                batch = batch.slice(0, number)
            taken.append(batch)
            number -= batch.num_rows
        rows = Rows(partition, taken, self.time)
        self.time = max(self.time, pc.max(_timestamps(taken)).as_py())
        return rows

    def truncate(self, offset: int) -> None:
        """Drop rows at this offset and above."""
        while self.batches and self.batches[-1].column("offset")[-1].as_py() >= offset:
            batch = self.batches.pop()
            self.rows -= batch.num_rows
            if below := _count(pc.less(batch.column("offset"), offset)):
                self.append(batch.slice(0, below))


class ArrowGroup(Group):
    """A `Group` that buffers Arrow record batches."""

    @property
    def any_buffered(self) -> bool:
        """Whether a row is buffered, even if it may not be taken now."""
        return any(q.rows for p, q in self._queues.items() if p not in self._aside)

    def take(self, limit: int, now: float) -> list[Rows]:
        """Take the rows that may be returned now, at most ``limit``; `merged` orders them."""
        if limit <= 0 or not self.any_buffered or not self.idling.is_ready(now):
            return []
        ready = sorted((p, q) for p, q in self._queues.items() if q.rows and p not in self._aside)
        found = [Rows(partition, list(queue.batches), queue.time) for partition, queue in ready]
        times = [rows.times() for rows in found]
        ends = [
            (times[place][-1].as_py(), place)
            for place, (partition, _) in enumerate(ready)
            if self.idling.stops_without(partition)
        ]
        counts = [len(each) for each in times]
        if ends:
            end, last = min(ends)
            counts = [
                _count(pc.less_equal(each, end) if place <= last else pc.less(each, end))
                for place, each in enumerate(times)
            ]
        if sum(counts) > limit:
            counts = _first(
                limit, [each.slice(0, n) for each, n in zip(times, counts, strict=True)]
            )
        taken_rows = []
        for (partition, queue), number in zip(ready, counts, strict=True):
            if number:
                taken_rows.append(queue.take(partition, number))
                if not queue.rows:
                    self.idling.emptied(partition, now)
        return taken_rows

    def _append(self, partition: TopicPartition, found: Sequence[Any]) -> None:
        queue = self._queues.setdefault(partition, _Queue())
        queue.truncate(found[0].column("offset")[0].as_py())
        for batch in found:
            queue.append(batch)


def merged(taken: Iterable[Rows], include_headers: bool) -> pa.Table:
    """Merge a group's rows into one table, in order, with topic and partition columns."""
    taken = [rows for rows in taken if len(rows)]
    topics = sorted({rows.partition.topic for rows in taken})
    names = pa.array(topics, pa.string())
    batches = [
        _with_place(batch, rows.partition, topics, names)
        for rows in taken
        for batch in rows.batches
    ]
    table = pa.Table.from_batches(batches, ordered_schema(include_headers))
    if len(taken) > 1:
        table = table.combine_chunks().take(_order([rows.times() for rows in taken]))
    return table


def ordered_schema(include_headers: bool) -> pa.Schema:
    """The schema of `merged`."""
    schema = record_schema(include_headers)
    for place, field in enumerate(_PLACES, _AT):
        schema = schema.insert(place, field)
    return schema


def _with_place(
    batch: pa.RecordBatch, partition: TopicPartition, topics: list[str], names: pa.Array
) -> pa.RecordBatch:
    number = batch.num_rows
    topic = pa.repeat(pa.scalar(topics.index(partition.topic), pa.int32()), number)
    columns = list(batch.columns)
    columns[_AT:_AT] = [
        pa.DictionaryArray.from_arrays(topic, names),
        pa.repeat(pa.scalar(partition.partition, pa.int32()), number),
    ]
    schema = ordered_schema(include_headers=len(columns) > _PLAIN_COLUMNS)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _timestamps(batches: Iterable[pa.RecordBatch]) -> pa.Array:
    # Null is a timestamp that the column cannot hold; the record is merged as one without any.
    columns = [
        pc.fill_null(batch.column("timestamp").cast(pa.int64()), UNKNOWN) for batch in batches
    ]
    return columns[0] if len(columns) == 1 else pa.concat_arrays(columns)


def _order(times: list[pa.Array]) -> pa.Array:
    """The indices that sort the concatenation of these; stable."""
    return pc.array_sort_indices(pa.concat_arrays(times))


def _first(limit: int, times: list[pa.Array]) -> list[int]:
    """How many rows of each partition are among the first ``limit`` in order."""
    places = pa.concat_arrays(
        [pa.repeat(pa.scalar(at, pa.int32()), len(each)) for at, each in enumerate(times)]
    )
    counts = [0] * len(times)
    for found in pc.value_counts(places.take(_order(times).slice(0, limit))).to_pylist():
        counts[found["values"]] = found["counts"]
    return counts


def _count(mask: pa.Array) -> int:
    return int(pc.sum(mask).as_py() or 0)
