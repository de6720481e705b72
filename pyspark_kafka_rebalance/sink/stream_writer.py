"""The writer of a stream, for Spark 4.1 and later: Arrow data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from ..source.spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from .writing import Writing


@shows_our_errors
class StreamWriter(DataSourceStreamArrowWriter):
    """Passes Spark's calls to a `Writing`. Made for each batch, and again for its commit."""

    def __init__(self, writing: Writing) -> None:
        self._writing = writing

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """In a task."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver's host, in a process of its own."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """As `commit`."""
        self._writing.abort(messages)
