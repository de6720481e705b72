"""What kafka-python's fetcher may rely on when it hands out Arrow batches."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition
from record_batches import Record, build

from pyspark_kafka_rebalance.consumer.arrow_records import ArrowRecords
from pyspark_kafka_rebalance.consumer.observer import Observed
from pyspark_kafka_rebalance.errors import CorruptRecordError

PARTITION = TopicPartition("t", 0)


class Metrics:
    def __init__(self) -> None:
        self.recorded: list[tuple[int, int]] = []

    def record(self, _: TopicPartition, size: int, rows: int) -> None:
        self.recorded.append((size, rows))


def fetched(data: bytes, at: int = 0, **how: Any) -> ArrowRecords:
    return ArrowRecords(
        at, PARTITION, MemoryRecords(data), include_headers=False, observed=Observed(), **how
    )


def batch(first: int, count: int, **how: Any) -> bytes:
    return build([Record(first + n, 0, None, b"v%d" % n) for n in range(count)], **how)


def offsets(rows: Any) -> list[int]:
    return [offset for one in rows for offset in one.column("offset").to_pylist()]


def test_rows_are_taken_in_pieces_and_the_position_follows() -> None:
    drained: list[Any] = []
    metrics = Metrics()
    data = batch(0, 10) + batch(10, 5, last_offset=19)
    records = fetched(data, at=3, on_drain=drained.append, metric_aggregator=metrics)
    taken = records.take(4)
    assert (len(taken), offsets(taken), records.next_fetch_offset) == (4, [3, 4, 5, 6], 7)
    assert offsets(records.take(100)) == list(range(7, 15))
    assert records
    assert not drained
    assert len(records.take(100)) == 0
    assert records.next_fetch_offset == 20, "what compaction has left behind the last is skipped"
    assert not records
    assert drained == [records]
    assert metrics.recorded == [(len(data), 12)]


def test_a_damaged_batch_fails_again_and_again_and_what_came_before_is_handed_out() -> None:
    """An iterator that failed is at its end, which must not be taken for that of the records."""
    damaged = bytearray(batch(5, 5))
    damaged[-2] ^= 1  # in the last value
    data = batch(0, 5) + bytes(damaged)
    records = fetched(data)
    assert offsets(records.take(100)) == [0, 1, 2, 3, 4]
    for _ in range(2):
        with pytest.raises(CorruptRecordError, match=r"t.* 5"):
            records.take(100)
        assert not records
        assert records.next_fetch_offset == 5
        records = fetched(bytes(damaged), at=5)
    assert offsets(fetched(data, check_crcs=False).take(100)) == list(range(10))


def test_nothing_and_part_of_a_batch() -> None:
    for data in (b"", batch(0, 5)[:-1]):
        records = fetched(data, at=2)
        assert len(records.take(10)) == 0
        assert not records
        assert records.next_fetch_offset == 2
