"""The least that any Python source must do: receive what the broker sends, and pass on Arrow.

A yardstick, not a client. It receives fetched record batches into one buffer and does not decode
them; it passes as many rows as they hold to Spark, in ready-made Arrow batches. All that a source
in Python reads, checks, decompresses or copies comes on top of that.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, MutableMapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.data_source import KafkaDeferredDataSource
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.spark.schema import arrow_schema
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader

_FETCH, _VERSION = 1, 4  # the oldest version that Kafka 4 supports, and the shortest
_FETCH_BYTES = 4 * 1024 * 1024
#: Same as the fetcher's batch_bytes.
_BATCH_BYTES = 2 * 1024 * 1024
#: The beginning of a record batch: base offset, length, …, last offset delta.
_HEADER = struct.Struct(">qi11xi")
_BATCH_OVERHEAD = 12  # base offset and length, which the length does not include


class FloorDataSource(KafkaDeferredDataSource):
    """Plans as our source does, on one broker; the option ``valueBytes`` is every value's size."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Take the options of our source, and ``valueBytes``."""
        given = {name.lower(): value for name, value in options.items()}
        self._value_bytes = int(given.pop("valuebytes"))
        super().__init__(given)

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "kafka_floor"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The stream reader."""
        return FloorReader(self._parsed.for_stream(), self._value_bytes)


class FloorReader(KafkaDeferredStreamReader):
    """Returns rows of which only the number and sizes are right."""

    def __init__(self, options: SourceOptions, value_bytes: int) -> None:
        super().__init__(options)
        self._value_bytes = value_bytes

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "value_bytes": self._value_bytes}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._value_bytes = state.pop("value_bytes")
        super().__setstate__(state)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield as many rows as the ranges have offsets."""
        ready_made = _ready_made(self._value_bytes, arrow_schema(self._options))
        host, port = self._options.client_config["bootstrap_servers"][0].rsplit(":", 1)
        with socket.create_connection((host, int(port))) as connection:
            for one in partition.value.ranges:
                yield from _forward(connection, one.range, ready_made)


def _forward(
    connection: socket.socket, wanted: OffsetRange, ready_made: pa.RecordBatch
) -> Iterator[pa.RecordBatch]:
    buffer = memoryview(bytearray(_FETCH_BYTES + 1024))
    position = wanted.start
    rows = 0
    connection.sendall(_request(wanted, position))
    while position < wanted.end:
        records = _receive(connection, buffer)
        before, at = position, 0
        while at + _HEADER.size <= len(records):
            base, length, last = _HEADER.unpack_from(records, at)
            at += _BATCH_OVERHEAD + length
            if at <= len(records):
                position = base + last + 1
        if position < wanted.end:  # sent now, so that the broker works while Spark takes rows
            connection.sendall(_request(wanted, position))
        rows += min(position, wanted.end) - before
        while rows >= ready_made.num_rows:
            yield ready_made
            rows -= ready_made.num_rows
    yield ready_made.slice(0, rows)


def _request(wanted: OffsetRange, position: int) -> bytes:
    topic = wanted.topic.encode()
    header = struct.pack(">hhih", _FETCH, _VERSION, 0, -1)
    # No replica (-1), max wait 500 ms, min 1 byte, read_uncommitted, one topic and one partition.
    body = struct.pack(">iiiibih", -1, 500, 1, _FETCH_BYTES, 0, 1, len(topic)) + topic
    body += struct.pack(">iiqi", 1, wanted.partition, position, _FETCH_BYTES)
    return struct.pack(">i", len(header) + len(body)) + header + body


def _receive(connection: socket.socket, buffer: memoryview) -> memoryview:
    """Receive the record batches of an answer with one partition, as each request has one."""
    (size,) = struct.unpack(">i", _exactly(connection, buffer[:4]))
    answer = _exactly(connection, buffer[:size])
    (topic_length,) = struct.unpack_from(">h", answer, 12)
    at = 14 + topic_length + 4
    _, error, _, _, aborted = struct.unpack_from(">ihqqi", answer, at)
    if error:
        raise RuntimeError(f"Fetch is answered with error {error}")
    return answer[at + 26 + max(0, aborted) * 16 + 4 :]


def _exactly(connection: socket.socket, into: memoryview) -> memoryview:
    got = 0
    while got < len(into):
        received = connection.recv_into(into[got:], 0, socket.MSG_WAITALL)
        if not received:
            raise ConnectionError("the broker has closed the connection")
        got += received
    return into


def _ready_made(value_bytes: int, schema: pa.Schema) -> pa.RecordBatch:
    rows = _BATCH_BYTES // value_bytes
    values: dict[str, Any] = {"value": b"x" * value_bytes, "key": None, "event": None}
    constants = {pa.string(): "topic", pa.int32(): 0, pa.int64(): 0, pa.bool_(): False}
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(
                pa.scalar(values.get(field.name, constants.get(field.type, 0)), field.type), rows
            )
            for field in schema
        ],
        schema=schema,
    )
