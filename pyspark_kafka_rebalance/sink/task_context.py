"""What Spark lets a task know: of which query and batch it is part, and which attempt."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TaskIdentity:
    """One attempt of a task.

    Attributes
    ----------
    task : int
        The number of its partition within the stage.
    attempt : int
        Unique within the application.
    query_id, run_id, batch : str, optional
        Of the streaming query, also in foreachBatch; None outside of queries.
    session_checkpoint : str, optional
        The setting ``spark.sql.streaming.checkpointLocation``.
    is_local : bool
        Whether driver and tasks are on one machine, in one JVM.
    """

    task: int = 0
    attempt: int = 0
    query_id: str | None = None
    run_id: str | None = None
    batch: str | None = None
    session_checkpoint: str | None = None
    is_local: bool = False

    @classmethod
    def current(cls) -> TaskIdentity:
        """Return that of the task that calls."""
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        query_id = context.getLocalProperty("sql.streaming.queryId")
        return cls(
            context.partitionId(),
            context.taskAttemptId(),
            query_id,
            # A query's run gives its jobs its id as their group.
            context.getLocalProperty("spark.jobGroup.id") if query_id else None,
            context.getLocalProperty("streaming.sql.batchId"),
            context.getLocalProperty("spark.sql.streaming.checkpointLocation"),
            (context.getLocalProperty("spark.master") or "").startswith("local"),
        )
