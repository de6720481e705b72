"""RefusedStreamReader: tells what is wrong with a stream's options, where Spark shows it well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..errors import OptionError
from .shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa


@shows_our_errors
class RefusedStreamReader(DataSourceStreamReader):
    """What a stream gets whose options are those of a batch: the error, at Spark's first call.

    Parameters
    ----------
    error : OptionError
        What the stream lacks, or cannot do.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        """Raise: with a new checkpoint this is called first."""
        raise self._error

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:
        """Raise: what follows a batch that is complete."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise: what follows a batch that is not."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Never called."""
        raise self._error
