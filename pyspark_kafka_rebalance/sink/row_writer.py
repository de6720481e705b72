"""The writer of a stream, for Spark 4.0: rows, which become Arrow data in the task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage

from ..source.spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import Row, StructType

    from .writing import Writing

#: As many rows as Spark puts into Arrow data by default.
_ROWS = 10_000


@shows_our_errors
class RowWriter(DataSourceStreamWriter):
    """As `StreamWriter`.

    Parameters
    ----------
    writing : Writing
    schema : pyspark.sql.types.StructType
        Of the rows.
    """

    def __init__(self, writing: Writing, schema: StructType) -> None:
        self._writing = writing
        self._schema = schema

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """In a task."""
        return self._writing.write(arrow_batches(iterator, self._schema))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """On the driver's host, in a process of its own."""
        self._writing.commit(messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """As `commit`."""
        self._writing.abort(messages)


def arrow_batches(
    rows: Iterator[Row], schema: StructType, most_rows: int = _ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield rows as Arrow data, so many at a time.

    Columns that the sink does not take are null: their types may be any.
    """
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "binary": pa.binary(),
        "int": pa.int32(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<struct<key:string,value:binary>>": pa.list_(
            pa.struct([("key", pa.string()), ("value", pa.binary())])
        ),
    }
    kinds = [types.get(column.dataType.simpleString().lower()) for column in schema]
    while piece := list(islice(rows, most_rows)):
        arrays = [
            pa.nulls(len(piece))
            if kind is None
            else pa.array([_value(row[at]) for row in piece], kind)
            for at, kind in enumerate(kinds)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema.names)


def _value(value: Any) -> Any:
    # Spark's rows have timestamps without a zone, in that of the machine.
    return value.astimezone(timezone.utc) if isinstance(value, datetime) else value
