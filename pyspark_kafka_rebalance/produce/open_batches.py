"""The batches of one topic that are not full yet. Not thread-safe.

Records come one by one or as Arrow data. The order of a partition's records is that of the calls:
one form closes what the other has begun.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any

from .encoder.arrow_encoder import ArrowEncoder
from .encoder.batch_builder import BatchBuilder
from .encoder.encoded_batch import EncodedBatch
from .encoder.partitioner import StickyPartition, partition_of_key
from .encoder.settings import EncoderSettings

if TYPE_CHECKING:
    import pyarrow as pa

    from .encoder.python_records import Headers


def slices_of(data: pa.RecordBatch | pa.Table, size: int) -> Iterator[Any]:
    """The rows in pieces of about this many bytes."""
    rows = data.num_rows
    pieces = max(1, -(-data.nbytes // max(size, 1)))
    step = max(1, -(-rows // pieces))
    for start in range(0, rows, step):
        yield data.slice(start, step)


class OpenBatches:
    """The open batches of one topic.

    Parameters
    ----------
    topic, partitions : str, int
    settings : EncoderSettings
    available : list of int
        The partitions that have a leader.

    Attributes
    ----------
    size : int
        Bytes, before compression.
    opened_at : float or None
        When the oldest of them got its first record, by the caller's clock.
    """

    def __init__(
        self, topic: str, partitions: int, settings: EncoderSettings, available: list[int]
    ) -> None:
        self.topic = topic
        self.partitions = partitions
        self._settings = settings
        self._builders: dict[int, BatchBuilder] = {}
        self._sizes: dict[int, int] = {}
        self._sticky = StickyPartition(partitions, available)
        self._arrow: ArrowEncoder | None = None
        self.size = 0
        self.opened_at: float | None = None

    def grow(self, partitions: int, available: list[int]) -> None:
        """Take over that the topic has more partitions."""
        self.partitions = partitions
        self._sticky.set_partitions(partitions, available)
        if self._arrow is not None:
            self._arrow.set_partitions(partitions)

    def partition_for(self, key: bytes | None) -> int:
        """The partition of a record that names none."""
        if key is None:
            return self._sticky.partition
        return partition_of_key(key, self.partitions)

    def append(
        self,
        partition: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        timestamp_ms: int,
    ) -> list[EncodedBatch]:
        """Append a record, and return the batches that had to be closed for it.

        Raises
        ------
        RecordTooLargeError
            It is larger than ``max_request_bytes``.
        TypeError
            Key, value or a header is not bytes.
        """
        closed = self._close_arrow() if self._arrow is not None and self._arrow.open_bytes else []
        builder = self._builders.get(partition)
        if builder is None:
            builder = self._builders[partition] = BatchBuilder(
                self.topic, partition, self._settings
            )
        size = builder.append(key, value, headers, timestamp_ms)
        if not size:
            closed.append(self._close(partition))
            size = builder.append(key, value, headers, timestamp_ms)
        self.size += size - self._sizes.get(partition, 0)
        self._sizes[partition] = size
        return closed

    def add(self, data: pa.RecordBatch | pa.Table, timestamp_ms: int | None) -> list[EncodedBatch]:
        """Append rows, and return the batches that are full now. Errors are those of the encoder.

        Returns
        -------
        list of EncodedBatch
            In the order of each partition's records.
        """
        if self._arrow is None:
            self._arrow = ArrowEncoder(self.topic, self.partitions, self._settings, self._sticky)
        before = self._close_builders() if self._sizes else []
        try:
            full = self._arrow.add(data, timestamp_ms)
        finally:
            self._measure()
        return before + full

    def open_in(self) -> list[int]:
        """The partitions with an open batch of single records."""
        return list(self._sizes)

    @property
    def record_count_of(self) -> dict[int, int]:
        """How many single records each open batch has."""
        return {partition: len(self._builders[partition]) for partition in self._sizes}

    def close(self, but: Container[int] = ()) -> list[EncodedBatch]:
        """Close the open batches, but those of single records in these partitions."""
        closed = self._close_builders(but)
        if self._arrow is not None and self._arrow.open_bytes:
            closed += self._close_arrow()
        if not self._sizes:
            self.opened_at = None
        return closed

    def drop(self) -> None:
        """Forget what is open: its transaction is aborted."""
        self.close()

    def _close_builders(self, but: Container[int] = ()) -> list[EncodedBatch]:
        return [self._close(partition) for partition in list(self._sizes) if partition not in but]

    def _close(self, partition: int) -> EncodedBatch:
        self.size -= self._sizes.pop(partition)
        self._sticky.closed(partition)
        return self._builders[partition].close()

    def _close_arrow(self) -> list[EncodedBatch]:
        assert self._arrow is not None
        closed = self._arrow.flush()
        self._measure()
        return closed

    def _measure(self) -> None:
        assert self._arrow is not None
        self.size = sum(self._sizes.values()) + self._arrow.open_bytes
