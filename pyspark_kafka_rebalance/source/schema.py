"""The columns of the source, as Spark DDL and as an Arrow schema, from one table.

The columns of Spark's Kafka source come first, with its names, types and order. Spark 4.2 and later
require every record batch to match the declared schema exactly: order, types, every field nullable.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .options import SourceOptions


@dataclass(frozen=True, slots=True)
class Column:
    """One column, in DDL and in Arrow."""

    name: str
    ddl: str
    arrow: pa.DataType


# Spark calls an array's element "element"; Arrow's own name is "item".
_HEADER = pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])
_HEADERS = Column(
    "headers",
    "ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>",
    pa.list_(pa.field("element", _HEADER)),
)
_CATCH_UP = Column("catch_up", "BOOLEAN", pa.bool_())
_EVENT = Column("event", "STRING", pa.string())

_SPARKS = (
    Column("key", "BINARY", pa.binary()),
    Column("value", "BINARY", pa.binary()),
    Column("topic", "STRING", pa.string()),
    Column("partition", "INT", pa.int32()),
    Column("offset", "BIGINT", pa.int64()),
    Column("timestamp", "TIMESTAMP", pa.timestamp("us", tz="UTC")),
    Column("timestampType", "INT", pa.int32()),
)
_OURS = (
    Column("revoking", "BOOLEAN", pa.bool_()),
    Column("lost", "BOOLEAN", pa.bool_()),
    Column("generation", "INT", pa.int32()),
)


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
    """Return the schema as Spark DDL; quoted, since some names are keywords of ANSI SQL."""
    return ", ".join(f"`{column.name}` {column.ddl}" for column in columns(options))


def arrow_schema(options: SourceOptions) -> pa.Schema:
    """Return the schema that every record batch must have."""
    return pa.schema([pa.field(column.name, column.arrow) for column in columns(options)])
