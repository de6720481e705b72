"""What a task hands to the process that commits: record batches, in its message or in a file.

A small output travels in the task's commit message. The driver holds all messages of a batch in its
memory, so what is larger goes to a file: see `spill`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage

if TYPE_CHECKING:
    from ..produce.encoder.encoded_batch import EncodedBatch
    from .spill.spill_file import SpillFile


@dataclass(frozen=True)
class TaskOutput(WriterCommitMessage):
    """What one task attempt made of its rows.

    Attributes
    ----------
    task : int
        The number of the task's partition within its stage, from 0.
    query_id, run_id : str, optional
        Of the streaming query whose batch this is part of, also in foreachBatch.
    session_checkpoint : str, optional
        The session's ``spark.sql.streaming.checkpointLocation``, as it is written.
    batches : tuple of (str, EncodedBatch)
        Topic and batch, in order; empty if they are in a file, or written already (at least once).
    spilled : SpillFile, optional
        Where they are if they are many.
    records, bytes : int
        How many there are in all, and how large the batches are.
    """

    task: int
    query_id: str | None = None
    run_id: str | None = None
    session_checkpoint: str | None = None
    batches: tuple[tuple[str, EncodedBatch], ...] = field(default=(), repr=False)
    spilled: SpillFile | None = None
    records: int = 0
    bytes: int = 0


def outputs_of(messages: Iterable[WriterCommitMessage | None]) -> list[TaskOutput]:
    """Return the tasks' outputs in the order of the tasks; failed tasks have none."""
    outputs = [message for message in messages if isinstance(message, TaskOutput)]
    return sorted(outputs, key=lambda output: output.task)


def read_output(
    messages: Iterable[WriterCommitMessage | None],
) -> Iterator[tuple[str, EncodedBatch]]:
    """Yield topic and batch of all tasks' outputs: a partition's rows in the order of the tasks.

    Files are read while they are iterated over, a batch at a time; nothing is removed.

    Raises
    ------
    KafkaRebalanceError
        A file is not there, or not whole.
    """
    for output in outputs_of(messages):
        yield from output.batches
        if output.spilled is not None:
            yield from output.spilled.read()


def output_size(messages: Iterable[WriterCommitMessage | None]) -> int:
    """Return how many bytes `read_output` yields."""
    return sum(output.bytes for output in outputs_of(messages))
