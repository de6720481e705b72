"""A task's record batches, until its message leaves: in memory, or in a file if they are many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError
from .task_output import TaskOutput

if TYPE_CHECKING:
    from ..produce.encoder.encoded_batch import EncodedBatch
    from .spill.spill_file import SpillFile, SpillWriter
    from .task_context import TaskIdentity

#: A task's message has no more than this, in bytes: the driver holds those of all tasks.
MOST_INLINE_BYTES = 1024 * 1024

#: More than this fits in no message of Spark's.
_MOST_BYTES = 2**30


class CollectedBatches:
    """The batches of one task attempt, in order. Not thread-safe.

    Parameters
    ----------
    file : SpillFile, optional
        Where they go if they are many; None: they stay in memory.
    """

    def __init__(self, file: SpillFile | None) -> None:
        self._file = file
        self._writer: SpillWriter | None = None
        self._inline: list[tuple[str, EncodedBatch]] = []
        self._records = self._bytes = 0

    def add(self, topic: str, batches: Iterable[EncodedBatch]) -> None:
        """Take batches.

        Raises
        ------
        KafkaRebalanceError
            They are too many for memory, and there is no file.
        OSError
            The file cannot be written.
        """
        for batch in batches:
            self._records += batch.records
            self._bytes += len(batch.data)
            if self._writer is not None:
                self._writer.write(topic, batch)
                continue
            self._inline.append((topic, batch))
            if self._bytes > MOST_INLINE_BYTES:
                self._spill()

    def _spill(self) -> None:
        if self._file is not None:
            self._writer = self._file.writer()
            for topic, batch in self._inline:
                self._writer.write(topic, batch)
            self._inline.clear()
        elif self._bytes > _MOST_BYTES:
            raise KafkaRebalanceError(
                f"a task's output is larger than {_MOST_BYTES} bytes: set the sink's option "
                "checkpointLocation to a folder that executors and driver share, for files"
            )

    def output(self, task: TaskIdentity) -> TaskOutput:
        """Return all of them; nothing can be added any more."""
        if self._writer is not None:
            self._writer.close()
        return TaskOutput(
            task.task,
            task.query_id,
            task.run_id,
            task.session_checkpoint,
            tuple(self._inline),
            self._file if self._writer is not None else None,
            self._records,
            self._bytes,
        )

    def drop(self) -> None:
        """Remove the file: the attempt has failed."""
        if self._writer is not None:
            self._writer.drop()
