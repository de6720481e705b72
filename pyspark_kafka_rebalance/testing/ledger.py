"""The ledger: every (topic, partition, offset) that a reader delivered, and when.

Each reader writes one file for each batch that its sink completed. All the files together prove
losses, and count duplicates. A batch that is replayed is written again under another attempt, so
nothing is hidden.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from kafka.structs import TopicPartition

#: The sink's columns for a record, in addition to the reader and the time.
RECORD_COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "revoking",
    "lost",
    "generation",
    "catch_up",
)


class LedgerWriter:
    """One reader's side of the ledger, in a folder that all readers share.

    ``reader`` is the name of the query or consumer.
    """

    def __init__(self, folder: Path, reader: str) -> None:
        self._folder = folder / reader
        self._folder.mkdir(parents=True, exist_ok=True)
        self._reader = reader
        # Not the process id: one process may run a query, and later the same query again.
        self._attempt = time.time_ns()

    def write(
        self, batch: int, records: pa.Table, began_at: float, received_at: float | None = None
    ) -> None:
        """Record a batch that completes now; the records have at least topic, partition, offset.

        The sink got it at ``began_at`` (``time.time()``), and had read the records at
        ``received_at``, by default the same.
        """
        rows = records.num_rows
        columns = {
            **{name: records[name] for name in records.column_names},
            "reader": pa.repeat(self._reader, rows),
            "batch": pa.repeat(batch, rows),
            "attempt": pa.repeat(self._attempt, rows),
            "began_at": pa.repeat(began_at, rows),
            "received_at": pa.repeat(began_at if received_at is None else received_at, rows),
            "completed_at": pa.repeat(time.time(), rows),
        }
        name = f"{batch:06d}-{self._attempt}.parquet"
        unfinished = self._folder / f".{name}"
        pq.write_table(pa.table(columns), unfinished)
        unfinished.rename(self._folder / name)  # a reader of the ledger never sees half a file


@dataclass(frozen=True)
class Tally:
    """The ledger's verdict."""

    records: int  #: distinct (topic, partition, offset) delivered
    lost: dict[TopicPartition, list[int]]  #: offsets below the end that were never delivered
    duplicated: int  #: deliveries beyond the first


class LedgerReader:
    """Reads the whole ledger as often as needed, but each file only once: none ever changes.

    The folder need not exist yet.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: set[Path] = set()
        self._rows = pa.table({})

    def read(self) -> pa.Table:
        """Return all rows of all readers, by completion."""
        new = set(self._folder.glob("*/[!.]*.parquet")) - self._files
        self._files |= new
        tables = [table for file in sorted(new) if (table := pq.read_table(file)).num_rows]
        if tables:
            older = [self._rows] if self._rows.num_rows else []
            rows = pa.concat_tables(older + tables, promote_options="permissive")
            self._rows = rows.sort_by("completed_at")
        return self._rows


def read_ledger(folder: Path) -> pa.Table:
    """Return all rows of all readers, by completion."""
    return LedgerReader(folder).read()


def tally(
    ledger: pa.Table,
    end_offsets: Mapping[TopicPartition, int],
    beginning_offsets: Mapping[TopicPartition, int] | None = None,
) -> Tally:
    """Count records, losses and duplicates of a :func:`read_ledger`; rows of events are skipped.

    Everything from ``beginning_offsets`` (default 0) to the end offsets, exclusive, should have
    been delivered. Assumes topics without gaps (no compaction, no transactions).
    """
    seen: dict[TopicPartition, set[int]] = {}
    deliveries = 0
    if ledger.num_rows:
        records = ledger.filter(pc.is_valid(ledger["offset"]))
        grouped = records.group_by(["topic", "partition"]).aggregate([("offset", "list")])
        for topic, partition, offsets in zip(
            *(grouped[name].to_pylist() for name in ("topic", "partition", "offset_list")),
            strict=True,
        ):
            seen[TopicPartition(topic, partition)] = set(offsets)
            deliveries += len(offsets)
    beginnings = beginning_offsets or {}
    lost = {
        partition: missing
        for partition, end in end_offsets.items()
        if (
            missing := sorted(
                set(range(beginnings.get(partition, 0), end)) - seen.get(partition, set())
            )
        )
    }
    records_seen = sum(map(len, seen.values()))
    return Tally(records_seen, lost, deliveries - records_seen)


def seconds(timestamps: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the records' timestamps in seconds, as ``time.time()`` does."""
    micros = timestamps.cast(pa.timestamp("us", timestamps.type.tz)).cast(pa.int64())
    return pc.divide(micros.cast(pa.float64()), 1e6)


def duplicated_rows(ledger: pa.Table) -> pa.Table:
    """Return every row whose (topic, partition, offset) was delivered more than once."""
    keys = ["topic", "partition", "offset"]
    counts = ledger.group_by(keys).aggregate([("reader", "count")])
    twice = counts.filter(pc.greater(counts["reader_count"], 1)).select(keys)
    return ledger.join(twice, keys, join_type="inner")
