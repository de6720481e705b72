"""The columns of a row that its task fills, not its record: ``revoking``, ``lost`` and others.

They are filled beside the records of a range, and for rows of rebalance events, which have no
record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:
    from .plan.tasks import ReadTask, TaskRange


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


def event_rows(task: ReadTask, schema: pa.Schema) -> pa.RecordBatch:
    """One row for each rebalance event: null key and value, and the partition's event."""
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
