"""What an executor does: one task's ranges to record batches with the source's columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ..fetch.fetcher import RangeFetcher
from .schema import arrow_schema

if TYPE_CHECKING:
    from .options import SourceOptions
    from .planning import ReadTask, TaskRange


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
            yield pa.RecordBatch.from_pylist([], schema)  # warms up Spark's side of it as well
        by_range = {task_range.range: task_range for task_range in task.ranges}
        for offset_range, records in fetcher.read(list(by_range)):
            yield _with_columns(records, by_range[offset_range], schema)
    finally:
        fetcher.close()


def _with_columns(
    records: pa.RecordBatch, task_range: TaskRange, schema: pa.Schema
) -> pa.RecordBatch:
    """Add the columns that are constant over a range."""
    constants: dict[str, Any] = {
        "topic": task_range.range.topic,
        "partition": task_range.range.partition,
        "revoking": task_range.revoking,
        "lost": task_range.lost,
        "generation": task_range.generation,
        "event": None,
    }
    rows = records.num_rows
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), rows)
        if field.name in constants
        else records.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _event_rows(task: ReadTask, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each rebalance event: null key and value, and what happened to the partition."""
    columns: dict[str, list[Any]] = {
        "topic": [event.topic for event in task.events],
        "partition": [event.partition for event in task.events],
        "revoking": [event.event == "revoke_requested" for event in task.events],
        "lost": [event.event == "lost" for event in task.events],
        "generation": [event.generation for event in task.events],
        "event": [event.event for event in task.events],
    }
    nulls = [None] * len(task.events)
    return pa.RecordBatch.from_arrays(
        [pa.array(columns.get(field.name, nulls), field.type) for field in schema], schema=schema
    )
