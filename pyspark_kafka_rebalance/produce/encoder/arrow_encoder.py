"""Arrow data of one topic to the record batches of its partitions."""

from __future__ import annotations

import time
from operator import attrgetter

import pyarrow as pa

from ...errors import RecordTooLargeError
from .arrow_rows import ArrowRows, arrow_rows
from .compiled_encoder import new_encoder
from .encoded_batch import EncodedBatch, encoded
from .partitioner import StickyPartition, partition_of_key
from .python_encoder import Row, rows_of
from .python_records import most_bytes
from .settings import EncoderSettings


class ArrowEncoder:
    """Rows of a topic to record batches, in the order of the rows within each partition.

    A row goes to its ``partition`` if it has one, else to that of its key as Java's producer
    hashes it, else to the sticky partition, which changes when one of its batches is closed.

    Not thread-safe. The compiled form runs without the GIL.

    Parameters
    ----------
    topic : str
        For error messages.
    partitions : int
        How many partitions the topic has.
    settings : EncoderSettings, optional
    sticky : StickyPartition, optional
        To share the sticky partition with other encoders of the topic.
    """

    def __init__(
        self,
        topic: str,
        partitions: int,
        settings: EncoderSettings | None = None,
        sticky: StickyPartition | None = None,
    ) -> None:
        self._topic = topic
        self._partitions = partitions
        self._settings = settings or EncoderSettings()
        self.sticky = sticky or StickyPartition(partitions)
        self._encoder = new_encoder(self._settings)

    @property
    def open_bytes(self) -> int:
        """The size of the batches that are not full yet, before compression."""
        return self._encoder.open_bytes

    def set_partitions(self, partitions: int) -> None:
        """Set the number of partitions; the owner of ``sticky`` sets that."""
        self._partitions = partitions

    def encode(
        self, data: pa.RecordBatch | pa.Table, timestamp_ms: int | None = None
    ) -> list[EncodedBatch]:
        """Return the batches of rows and of all rows before them, by partition: `add` and `flush`.

        Parameters and errors are those of `add`.
        """
        full = self.add(data, timestamp_ms)
        return sorted(full + self.flush(), key=attrgetter("partition"))

    def add(
        self, data: pa.RecordBatch | pa.Table, timestamp_ms: int | None = None
    ) -> list[EncodedBatch]:
        """Append rows and return the batches that are full now. All rows are taken, or none.

        Parameters
        ----------
        data : pyarrow.RecordBatch or pyarrow.Table
            See `arrow_rows`.
        timestamp_ms : int, optional
            Of rows without a timestamp; by default the time of the call.

        Returns
        -------
        list of EncodedBatch
            In the order in which they became full.

        Raises
        ------
        RecordTooLargeError
            A record is larger than ``max_request_bytes``.
        TypeError, ValueError
            A column, a partition or a header is not allowed.
        """
        chunks = arrow_rows(data)
        for chunk in chunks:
            self._check(chunk)
        if timestamp_ms is None:
            timestamp_ms = time.time_ns() // 1_000_000
        sticky = self.sticky
        for chunk in chunks:
            sticky.at = self._encoder.append(
                chunk, timestamp_ms, self._partitions, sticky.order, sticky.at
            )
        return self._full()

    def flush(self) -> list[EncodedBatch]:
        """Close the batches that are not full, and return them in the order of their partitions."""
        self._encoder.close_all()
        full = self._full()
        for batch in full:
            if batch.partition == self.sticky.partition:
                self.sticky.closed(batch.partition)
                break
        return full

    def _full(self) -> list[EncodedBatch]:
        return [encoded(*closed, self._settings) for closed in self._encoder.take()]

    def _check(self, rows: ArrowRows) -> None:
        refused = self._encoder.first_refused(rows, self._partitions)
        if refused >= 0:
            raise self._refusal(refused, _row(rows, refused))

    def _refusal(self, n: int, row: Row) -> Exception:
        """Return what is wrong with a row."""
        partition = row.partition
        if partition is not None and not 0 <= partition < self._partitions:
            return ValueError(
                f"row {n}: {self._topic} has no partition {partition}; it has {self._partitions}"
            )
        if any(name is None for name, _ in row.headers):
            return ValueError(f"row {n}: a header of a record for {self._topic} has no key")
        if partition is None and row.key is not None:
            partition = partition_of_key(row.key, self._partitions)
        elif partition is None:
            partition = self.sticky.partition
        size = most_bytes(len(row.body))
        return RecordTooLargeError(self._topic, partition, size, self._settings.max_request_bytes)


def _row(rows: ArrowRows, wanted: int) -> Row:
    return next(row for n, row in enumerate(rows_of(rows)) if n == wanted)
