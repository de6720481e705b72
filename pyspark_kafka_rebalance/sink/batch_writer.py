"""The writer of a DataFrame: ``df.write.format("kafka_deferred")``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from ..source.spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from .writing import Writing


@shows_our_errors
class BatchWriter(DataSourceArrowWriter):
    """Passes Spark's calls to a `Writing`.

    Parameters
    ----------
    writing : Writing
    batch_id : int, optional
        The option ``batchId``.
    """

    def __init__(self, writing: Writing, batch_id: int | None) -> None:
        self._writing = writing
        self._batch_id = batch_id

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver's host, in a process of its own."""
        self._writing.commit(messages, self._batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """As `commit`."""
        self._writing.abort(messages)
