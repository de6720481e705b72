"""ArrowRecords: one partition's fetched records, as Arrow record batches.

It replaces the ``PartitionRecords`` of kafka-python's fetcher, which still decides about fetches,
hand-outs and positions. It decodes with ``fetch/`` and imports Arrow, so it is itself imported only
by the first ``poll_arrow``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from ..errors import CorruptRecordError
from ..fetch.decoder import DecoderSettings, RecordDecoder, extent_of
from ..fetch.offset_range import OffsetRange
from ..fetch.transactions import AbortedTransaction, aborted_in
from .observer import Observed

_NO_END = 2**63 - 1


@dataclass(frozen=True)
class ArrowForm:
    """Makes ``ArrowRecords`` in place of ``PartitionRecords``; equal for equal fields."""

    include_headers: bool
    observed: Observed

    def __call__(self, *given: Any, **named: Any) -> ArrowRecords:
        """Take the arguments of ``PartitionRecords``."""
        return ArrowRecords(
            *given, include_headers=self.include_headers, observed=self.observed, **named
        )


class Rows:
    """Record batches whose length is their number of rows, which lets the fetcher bound a poll."""

    def __init__(self, batches: Sequence[pa.RecordBatch]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return sum(batch.num_rows for batch in self._batches)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return iter(self._batches)


class ArrowRecords:
    """Record batches behind the interface of kafka-python's ``PartitionRecords``.

    ``fetch_offset`` is the offset that was requested, ``records`` are kafka-python's
    ``MemoryRecords``.
    """

    def __init__(
        self,
        fetch_offset: int,
        tp: TopicPartition,
        records: Any,
        *,
        include_headers: bool,
        observed: Observed,
        check_crcs: bool = True,
        isolation_level: Any = IsolationLevel.READ_UNCOMMITTED,
        aborted_transactions: Sequence[Any] | None = None,
        metric_aggregator: Any = None,
        on_drain: Callable[[Any], Any] = lambda _: None,
        **_: Any,
    ) -> None:
        self.topic_partition = tp
        self.next_fetch_offset = fetch_offset
        # Unknown until all rows are taken; kafka-python does not compare -1 with the leader's.
        self.leader_epoch = -1
        self.bytes_read = records.size_in_bytes()
        self.records_read = 0
        self._metrics = metric_aggregator
        self._on_drain = on_drain
        self._observed = observed
        self._left: pa.RecordBatch | None = None
        fetched: bytes = records._buffer
        unbounded = OffsetRange(tp.topic, tp.partition, fetch_offset, _NO_END)
        self._extent = (fetch_offset, -1)
        self._no_extent: CorruptRecordError | None = None
        # If there is no whole record batch, the fetcher itself reports that later.
        if records.has_next():
            try:
                self._extent = extent_of(fetched, fetch_offset, unbounded)
            except CorruptRecordError as error:
                self._no_extent = error  # raised once the rows before it are taken
        self._batches: Iterator[pa.RecordBatch] | None = _decoded(
            RecordDecoder(
                unbounded,
                DecoderSettings(
                    include_headers=include_headers,
                    read_committed=isolation_level == IsolationLevel.READ_COMMITTED,
                    check_crcs=check_crcs,
                ),
            ),
            fetched,
            fetch_offset,
            aborted_in(aborted_transactions),
        )

    def __bool__(self) -> bool:
        return self._batches is not None

    def take(self, n: int) -> Rows:
        """Take the next rows, at most ``n``, as one record batch.

        Raises CorruptRecordError if the next rows are damaged; the position stays before them.
        """
        assert self._batches is not None
        batch = self._left
        if batch is None:
            began = time.perf_counter()
            try:
                batch = next(self._batches, None)
            except BaseException:
                self.drain()  # a failed iterator would seem exhausted
                raise
            if batch is not None and (observer := self._observed.by) is not None:
                observer.decoded(batch.num_rows, time.perf_counter() - began)
        if batch is None:
            self.drain()
            if self._no_extent is not None:
                raise self._no_extent
            self.next_fetch_offset, self.leader_epoch = self._extent
            return Rows(())
        taken = batch.slice(0, n)
        self._left = batch.slice(n) if batch.num_rows > n else None
        self.records_read += taken.num_rows
        self.next_fetch_offset = taken.column("offset")[-1].as_py() + 1
        return Rows((taken,))

    def drain(self) -> None:
        """Drop the rest, record the metrics and call ``on_drain``."""
        if self._batches is None:
            return
        self._batches = self._left = None
        if self._metrics:
            self._metrics.record(self.topic_partition, self.bytes_read, self.records_read)
        self._on_drain(self)


def _decoded(
    decoder: RecordDecoder, fetched: bytes, position: int, aborted: Sequence[AbortedTransaction]
) -> Iterator[pa.RecordBatch]:
    try:
        yield from decoder.decode(fetched, position, aborted)
    except CorruptRecordError:
        yield from decoder.finish()  # the rows before the damage are good
        raise
    yield from decoder.finish()
