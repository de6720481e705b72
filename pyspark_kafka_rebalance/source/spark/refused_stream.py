"""RefusedStreamReader: raises for bad options of a stream where Spark shows the error well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...errors import OptionError
from .shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa


@shows_our_errors
class RefusedStreamReader(DataSourceStreamReader):
    """Replaces a stream whose options suit only a batch; raises at Spark's first call."""

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise; with a new checkpoint, Spark calls this first."""
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raise; if the last batch in the checkpoint is complete, Spark calls this first."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise; if the last batch in the checkpoint is not complete, Spark calls this first."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never called."""
        raise self._error
