"""The members' ledgers: one line of CSV per record that a poll returned.

Text, since members are written in several languages; :func:`read_polls` turns it into the table of
``pyspark_kafka_rebalance.testing.ledger``, in which every poll is a batch that completes at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
from pyarrow import csv

#: Columns, without a header: number of the poll, ``time.time()`` after it, partition, offset.
COLUMNS = {
    "batch": pa.int64(),
    "completed_at": pa.float64(),
    "partition": pa.int64(),
    "offset": pa.int64(),
}


class PollLog:
    """One member's side of the ledger, ``<folder>/<reader>.csv``."""

    def __init__(self, folder: Path, reader: str) -> None:
        self._path = folder / f"{reader}.csv"
        self._polls = 0

    def write(self, at: float, offsets: Mapping[int, Sequence[int]]) -> None:
        """Record the offsets that one poll returned, by partition."""
        self._polls += 1
        with self._path.open("a") as file:
            file.writelines(
                f"{self._polls},{at:.6f},{partition},{offset}\n"
                for partition, of_partition in offsets.items()
                for offset in of_partition
            )


def read_polls(folder: Path, topic: str) -> pa.Table:
    """All complete lines of all members, by time; a line still being written is left out."""
    tables = []
    for file in sorted(folder.glob("*.csv")):
        text = file.read_bytes()
        whole = text[: text.rfind(b"\n") + 1]
        if not whole:
            continue
        table = csv.read_csv(
            pa.BufferReader(whole),
            csv.ReadOptions(column_names=list(COLUMNS)),
            convert_options=csv.ConvertOptions(column_types=COLUMNS),
        )
        rows = table.num_rows
        for name, value in (("reader", file.stem), ("topic", topic), ("attempt", 0)):
            table = table.append_column(name, pa.repeat(value, rows))
        for name in ("began_at", "received_at"):
            table = table.append_column(name, table["completed_at"])
        tables.append(table)
    return pa.concat_tables(tables).sort_by("completed_at") if tables else pa.table({})
