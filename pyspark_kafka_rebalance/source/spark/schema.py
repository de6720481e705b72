"""The columns of the source, as Spark's types and as an Arrow schema, from one table.

The columns of Spark's Kafka source come first, with its names, types and order. Spark 4.2 and later
require every record batch to match the declared schema exactly: order, types, every field nullable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..options.source_options import SourceOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class Column:
    """One column, in DDL; ``TIMESTAMP`` is a point in time, in every session."""

    name: str
    ddl: str


_HEADERS = Column("headers", "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>")
_CATCH_UP = Column("catch_up", "BOOLEAN")
_EVENT = Column("event", "STRING")

_SPARKS = (
    Column("key", "BINARY"),
    Column("value", "BINARY"),
    Column("topic", "STRING"),
    Column("partition", "INT"),
    Column("offset", "BIGINT"),
    Column("timestamp", "TIMESTAMP"),
    Column("timestampType", "INT"),
)
_OURS = (Column("revoking", "BOOLEAN"), Column("lost", "BOOLEAN"), Column("generation", "INT"))


def columns(options: SourceOptions) -> tuple[Column, ...]:
    """Return the columns for these options, in order."""
    return (
        *_SPARKS,
        *((_HEADERS,) if options.include_headers else ()),
        *_OURS,
        *((_CATCH_UP,) if options.catch_up is not None else ()),
        *((_EVENT,) if options.include_rebalance_events else ()),
    )


def spark_ddl(options: SourceOptions) -> str:
    """Return the schema as Spark DDL, for errors; quoted, since some names are SQL keywords."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in columns(options))


def spark_schema(options: SourceOptions) -> StructType:
    """Return the schema in Spark's types.

    DDL depends on the session: with ``spark.sql.timestampType=TIMESTAMP_NTZ`` a
    ``TIMESTAMP`` has no time zone, and no record batch fits.
    """
    from pyspark.sql import types  # loaded by then: Spark asks for the schema in Python's terms

    header = types.StructType(
        [
            types.StructField("key", types.StringType()),
            types.StructField("value", types.BinaryType()),
        ]
    )
    by_ddl: dict[str, types.DataType] = {
        "BIGINT": types.LongType(),
        "BINARY": types.BinaryType(),
        "BOOLEAN": types.BooleanType(),
        "INT": types.IntegerType(),
        "STRING": types.StringType(),
        "TIMESTAMP": types.TimestampType(),
        _HEADERS.ddl: types.ArrayType(header),
    }
    return types.StructType(
        [types.StructField(column.name, by_ddl[column.ddl]) for column in columns(options)]
    )


def arrow_schema(options: SourceOptions) -> pa.Schema:
    """Return the schema that every record batch must have."""
    import pyarrow as pa  # not at the top: Spark asks for the types where nothing needs Arrow

    # Spark calls an array's element "element"; Arrow's own name is "item".
    header = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
    types = {
        "BIGINT": pa.int64(),
        "BINARY": pa.binary(),
        "BOOLEAN": pa.bool_(),
        "INT": pa.int32(),
        "STRING": pa.string(),
        "TIMESTAMP": pa.timestamp("us", tz="UTC"),
        _HEADERS.ddl: pa.list_(pa.field("element", header)),
    }
    return pa.schema([pa.field(column.name, types[column.ddl]) for column in columns(options)])
