"""What a task does to the worker that runs it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source import reading
from pyspark_kafka_rebalance.source.flag_columns import ConstantColumns
from pyspark_kafka_rebalance.source.offsets.stream_offset import RebalanceEvent
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.plan.tasks import ReadTask, TaskRange
from pyspark_kafka_rebalance.source.spark.schema import arrow_schema


class NothingToRead:
    """A RangeFetcher without a broker."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def connect(self) -> None: ...
    def close(self) -> None: ...

    def read(self, *_: Any) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reading, "RangeFetcher", NothingToRead)
    reading._freeze_loaded_objects.cache_clear()
    gc.unfreeze()
    yield
    gc.unfreeze()


def test_what_the_modules_have_left_is_walked_over_once(new_worker):
    """A whole collection after each task, as Spark's daemon does, then has little to look at."""
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"},
        default_readers=1,
    )
    task = ReadTask(warm_up=True)
    list(reading.read_task(task, options))
    frozen = gc.get_freeze_count()
    assert frozen > len(gc.get_objects())
    list(reading.read_task(task, options))
    assert gc.get_freeze_count() <= frozen, "again with each task: garbage would stay for ever"


@pytest.mark.parametrize(
    ("lost_below", "marks"), [(0, "0000"), (10, "0000"), (12, "1100"), (14, "1111"), (99, "1111")]
)
def test_rows_are_marked_lost_up_to_an_offset(lost_below, marks):
    """Another query has delivered the first of a range, and stopped."""
    options = SourceOptions.parse(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "kafka.group.id": "g"},
        default_readers=1,
    )
    schema = arrow_schema(options)
    task_range = TaskRange(OffsetRange("t", 3, 10, 14), 41, False, lost_below)
    columns = ConstantColumns(task_range, schema)
    offsets = [[10, 11, 12], [13]]
    rows = []
    for some in offsets:
        records = pa.RecordBatch.from_pylist([{"offset": offset} for offset in some], schema)
        beside = columns.beside(records)
        assert beside.column("partition").to_pylist() == [3] * len(some)
        rows += beside.column("lost").to_pylist()
    assert rows == [mark == "1" for mark in marks]


def test_rows_of_gaps_say_so_and_others_do_not():
    options = SourceOptions.parse(
        {
            "kafka.bootstrap.servers": "h:1",
            "subscribe": "t",
            "kafka.group.id": "g",
            "parallelRebalance": "live",
            "includeRebalanceEvents": "true",
        },
        default_readers=1,
    )
    schema = arrow_schema(options)
    for catch_up in (False, True):
        one = TaskRange(OffsetRange("t", 3, 10, 14), 41, False, catch_up=catch_up)
        records = pa.RecordBatch.from_pylist([{"offset": 10}, {"offset": 11}], schema)
        rows = ConstantColumns(one, schema).beside(records)
        assert rows.column("catch_up").to_pylist() == [catch_up] * 2
    event = RebalanceEvent("assigned", TopicPartition("t", 3), 41)
    (rows,) = reading.read_task(ReadTask(events=(event,)), options)
    assert rows.column("catch_up").to_pylist() == [False]
