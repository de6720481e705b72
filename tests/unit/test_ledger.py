"""The ledger: whatever a sink completed is in it, as often as it did."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.testing.ledger import (
    LedgerReader,
    LedgerWriter,
    duplicated_rows,
    tally,
)


def records(*offsets: int) -> pa.Table:
    count = len(offsets)
    return pa.table({"topic": ["t"] * count, "partition": [0] * count, "offset": list(offsets)})


def test_a_batch_that_is_run_again_in_the_same_process_is_not_hidden(tmp_path: Path) -> None:
    for _ in range(2):
        LedgerWriter(tmp_path, "A").write(1, records(0, 1), began_at=0.0)
    ledger = LedgerReader(tmp_path).read()
    assert sorted(ledger["offset"].to_pylist()) == [0, 0, 1, 1]
    assert len(set(duplicated_rows(ledger)["attempt"].to_pylist())) == 2


def test_a_reader_sees_what_was_written_since_it_looked_last(tmp_path: Path) -> None:
    reader = LedgerReader(tmp_path)
    assert reader.read().num_rows == 0
    ends = {TopicPartition("t", 0): 3}
    LedgerWriter(tmp_path, "A").write(0, records(), began_at=0.0)
    LedgerWriter(tmp_path, "A").write(1, records(0, 2), began_at=0.0)
    assert tally(reader.read(), ends).lost == {TopicPartition("t", 0): [1]}
    LedgerWriter(tmp_path, "B").write(1, records(1), began_at=0.0)
    counted = tally(reader.read(), ends)
    assert (counted.records, counted.lost, counted.duplicated) == (3, {}, 0)
    assert reader.read().num_rows == 3
