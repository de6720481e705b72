"""Reads one task's ranges, on an executor, as record batches with the source's columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..fetch.fetcher import RangeFetcher
from .spark.schema import arrow_schema

if TYPE_CHECKING:
    from .options.source_options import SourceOptions
    from .plan.tasks import ReadTask, TaskRange


class TaskPartition(InputPartition):
    """One Spark task's part of a batch."""

    def __init__(self, task: ReadTask) -> None:
        super().__init__(task)


def read_task(task: ReadTask, options: SourceOptions) -> Iterator[pa.RecordBatch]:
    """Read a task.

    Parameters
    ----------
    task : ReadTask
        Ranges with their flags, rows of events, or a warm-up.
    options : SourceOptions
        The source's options.

    Yields
    ------
    pyarrow.RecordBatch
        In offset order within a partition, with exactly the declared schema.
    """
    schema = arrow_schema(options)
    if task.events:
        yield _event_rows(task, schema)
    if not task.ranges and not task.warm_up:
        return
    fetcher = RangeFetcher(
        options.client_config,
        isolation_level=options.isolation_level,
        fail_on_data_loss=options.fail_on_data_loss,
        include_headers=options.include_headers,
        **options.fetch_config,
    )
    try:
        if task.warm_up:
            fetcher.connect()
            yield pa.RecordBatch.from_pylist([], schema)  # warms up Spark's side, too
        columns = {one.range: ConstantColumns(one, schema) for one in task.ranges}
        topic_ids = {one.range: one.topic_id for one in task.ranges if one.topic_id is not None}
        for offset_range, records in fetcher.read(list(columns), topic_ids):
            yield columns[offset_range].beside(records)
    finally:
        fetcher.close()
        _freeze_loaded_objects()


@cache
def _freeze_loaded_objects() -> None:
    """Exclude all present objects from garbage collection, once in a worker's life.

    Spark's daemon makes a worker collect garbage after each task. Walking over all objects of the
    loaded modules took a quarter of the worker's CPU time.
    """
    gc.collect()
    gc.freeze()


class ConstantColumns:
    """The columns that are (nearly always) the same for every row of a range.

    Parameters
    ----------
    task_range : TaskRange
        The range.
    schema : pyarrow.Schema
        All columns.
    """

    def __init__(self, task_range: TaskRange, schema: pa.Schema) -> None:
        self._schema = schema
        self._values: dict[str, Any] = {
            "topic": task_range.range.topic,
            "partition": task_range.range.partition,
            "revoking": task_range.revoking,
            "lost": task_range.lost_below >= task_range.range.end,
            "generation": task_range.generation,
            "catch_up": task_range.catch_up,
            "event": None,
        }
        inside = task_range.range.start < task_range.lost_below < task_range.range.end
        self._lost_below = task_range.lost_below if inside else None
        self._rows = -1
        self._columns: dict[str, pa.Array] = {}

    def beside(self, records: pa.RecordBatch) -> pa.RecordBatch:
        """Add these columns to a batch of records; they are built for the longest batch so far."""
        rows = records.num_rows
        if rows > self._rows:
            self._rows = rows
            self._columns = {
                field.name: pa.repeat(pa.scalar(self._values[field.name], field.type), rows)
                for field in self._schema
                if field.name in self._values
            }
        arrays = [
            self._columns[field.name].slice(0, rows)
            if field.name in self._values
            else records.column(field.name)
            for field in self._schema
        ]
        if self._lost_below is not None:
            import pyarrow.compute as pc  # takes 30 ms, which the planner saves

            lost = pc.less(records.column("offset"), self._lost_below)
            arrays[self._schema.get_field_index("lost")] = lost
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def _event_rows(task: ReadTask, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each rebalance event: null key and value, and what happened to the partition."""
    columns: dict[str, list[Any]] = {
        "topic": [event.partition.topic for event in task.events],
        "partition": [event.partition.partition for event in task.events],
        "revoking": [event.event == "revoke_requested" for event in task.events],
        "lost": [event.event == "lost" for event in task.events],
        "generation": [event.generation for event in task.events],
        "catch_up": [False] * len(task.events),
        "event": [event.event for event in task.events],
    }
    nulls = [None] * len(task.events)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nulls), field.type) for field in schema], schema=schema
    )
