"""The batches of one topic that are not full yet.

Records come one by one or as Arrow data. The order of a partition's records is that of the calls:
one form closes the batches of the other.

One thread at a time calls the methods, but for `OpenBatches.encode`, which takes long: another
thread may close or drop the open batches while it runs, which leaves the rows being encoded alone.
No record is appended until it returns, since earlier records of that thread may be among the rows.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import TYPE_CHECKING

from .encoder.arrow_encoder import ArrowEncoder
from .encoder.at_once import Append, Room, new_appender
from .encoder.batch_builder import BatchBuilder
from .encoder.encoded_batch import EncodedBatch
from .encoder.partitioner import StickyPartition
from .encoder.settings import EncoderSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from .encoder.python_records import Headers


class OpenBatches:
    """The open batches of one topic.

    Parameters
    ----------
    topic, partitions : str, int
    settings : EncoderSettings
    available : list of int
        The partitions that have a leader.
    room : Room
        What all topics share; records that come at once count there.

    Attributes
    ----------
    partitions, available : int, list of int
        As of the last `follow`.
    append_at_once : callable
        See `Appender.append`.
    sticky : StickyPartition
        Where records without a key go.
    encodes : bool
        Whether rows are being encoded; no record may be appended.
    opened_at : float or None
        When the oldest of them got its first record, by the caller's clock.
    closed : list of EncodedBatch
        Those that are closed, in the order of each partition's records; the caller takes them.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        settings: EncoderSettings,
        available: list[int],
        room: Room,
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self.available = available
        self._settings = settings
        self._builders: dict[int, BatchBuilder] = {}
        self._appender = new_appender(room)
        self.append_at_once: Append = self._appender.append
        self._outdated: set[int] = set()  # the partitions whose builder has other settings
        self.sticky = StickyPartition(partitions, available)
        self._arrow: ArrowEncoder | None = None
        self._arrow_settings = settings
        self._arrow_bytes = 0
        self.encodes = False
        self.opened_at: float | None = None
        self.closed: list[EncodedBatch] = []
        self._follow_sticky()

    @property
    def size(self) -> int:
        """Bytes in open batches, before compression."""
        return self._appender.size + self._arrow_bytes

    def _follow_sticky(self) -> None:
        self._appender.partitions = self.partitions
        self._appender.sticky = self.sticky.partition

    def follow(self, partitions: int, available: list[int]) -> None:
        """Take over how many partitions the topic has now, and which of them have a leader.

        Not while rows are being encoded.
        """
        self.partitions, self.available = partitions, available
        self.sticky.set_partitions(partitions, available)
        self._follow_sticky()
        if self._arrow is not None:
            self._arrow.set_partitions(partitions)

    def append(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> None:
        """Append a record.

        Raises
        ------
        RecordTooLargeError
            It is larger than ``max_request_bytes``.
        TypeError
            Key, value or a header is not bytes.
        """
        assert not self.encodes
        if self._arrow_bytes:
            self._close_arrow()
        builder = self._builders.get(partition)
        if builder is None:
            builder = self._new_builder(partition)
        before = builder.size if len(builder) else 0
        size = builder.append(key, value, headers, timestamp_ms)
        if not size:
            self._close(partition)
            before = 0
            if partition not in self._builders:
                builder = self._new_builder(partition)
            size = builder.append(key, value, headers, timestamp_ms)
        appender = self._appender
        appender.size += size - before
        if self.opened_at is not None:  # the next ones are nobody's business but the builder's
            self._follow_sticky()
            appender.ready = True

    def limit(self, batch_bytes: int) -> None:
        """Let batches that begin from now on be no larger: the topic does not take larger ones."""
        if batch_bytes < self._settings.batch_bytes:
            self._settings = replace(self._settings, batch_bytes=batch_bytes)
            self._outdated = set(self._appender.open())
            for partition in self._builders.keys() - self._outdated:
                self._forget(partition)

    def close_for_rows(self) -> None:
        """Close what rows cannot be added to: single records, and rows under other settings."""
        self.close_records()
        if self._arrow_bytes and self._arrow_settings is not self._settings:
            self._close_arrow()

    def begin_rows(self) -> None:
        """Make ready for `encode`, after `close_for_rows`; then comes `end_rows`."""
        assert not self._appender.open()
        self._appender.ready = False
        if self._arrow is None or self._arrow_settings is not self._settings:
            self._arrow = ArrowEncoder(self.topic, self.partitions, self._settings, self.sticky)
            self._arrow_settings = self._settings
        self.encodes = True

    def encode(
        self, data: pa.RecordBatch | pa.Table, timestamp_ms: int | None
    ) -> list[EncodedBatch]:
        """Append rows and return the batches that are full now; errors are those of the encoder.

        The compiled form runs without the GIL.
        """
        assert self._arrow is not None
        return self._arrow.add(data, timestamp_ms)

    def end_rows(self, full: list[EncodedBatch], *, keep: bool) -> None:
        """Take what `encode` returned, or forget all rows: their transaction is aborted."""
        assert self._arrow is not None
        self.encodes = False
        if keep:
            self.closed += full
            self._arrow_is(self._arrow.open_bytes)
        else:
            self._arrow.flush()
            self._arrow_is(0)

    def open_in(self) -> list[int]:
        """The partitions with an open batch of single records."""
        return self._appender.open()

    def last_in(self, partition: int) -> int:
        """The number of the last record in its open batch, from 0."""
        return len(self._builders[partition]) - 1

    def close_records(self, but: Container[int] = ()) -> None:
        """Close the open batches of single records, but those of these partitions."""
        for partition in self._appender.open():
            if partition not in but:
                self._close(partition)

    def close(self, but: Container[int] = ()) -> None:
        """Close the open batches, but those of single records in these partitions."""
        self.close_records(but)
        if self._arrow_bytes and not self.encodes:
            self._close_arrow()
        if not self._appender.open():
            self._appender.ready = False
            self.opened_at = None

    def take(self) -> list[EncodedBatch]:
        """What is closed."""
        taken, self.closed = self.closed, []
        return taken

    def drop(self) -> None:
        """Forget everything: its transaction is aborted."""
        self.close()
        self.closed.clear()

    def _new_builder(self, partition: int) -> BatchBuilder:
        builder = self._builders[partition] = BatchBuilder(self.topic, partition, self._settings)
        self._appender.know(partition, builder.records)
        return builder

    def _forget(self, partition: int) -> None:
        """Have another builder, with the settings of now, for the next record."""
        del self._builders[partition]
        self._appender.know(partition, None)

    def _close(self, partition: int) -> None:
        builder = self._builders[partition]
        self._appender.size -= builder.size
        self.sticky.closed(partition)
        self._follow_sticky()
        self.closed.append(builder.close())
        if partition in self._outdated:
            self._outdated.discard(partition)
            self._forget(partition)

    def _close_arrow(self) -> None:
        assert self._arrow is not None
        self.closed += self._arrow.flush()
        self._arrow_is(0)

    def _arrow_is(self, size: int) -> None:
        self._arrow_bytes = size
