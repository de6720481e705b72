"""Reads one task's ranges, on an executor, as record batches with the source's columns."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from ..fetch.fetcher import RangeFetcher
from .flag_columns import ConstantColumns, event_rows
from .spark.schema import arrow_schema

if TYPE_CHECKING:
    from .options.source_options import SourceOptions
    from .plan.tasks import ReadTask


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
        yield event_rows(task, schema)
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
