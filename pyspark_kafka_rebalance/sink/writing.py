"""What the writers of streams and of batches have in common. Pickled with them.

Spark starts Python processes for the plan of a write, for its tasks and for its commit. What only
tasks or only a commit need is imported there: see the source's ``stream_reader``.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..transport.kafka_python_version import require_supported_version

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import WriterCommitMessage

    from .columns import Columns
    from .options.sink_options import SinkOptions


class Writing:
    """One write: that of a micro-batch, or of a DataFrame.

    Parameters
    ----------
    options : SinkOptions
    columns : Columns
    """

    def __init__(self, options: SinkOptions, columns: Columns) -> None:
        self._options = options
        self._columns = columns
        self._id = secrets.token_hex(8)

    def write(self, rows: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write or encode a task's rows: see `write_task`."""
        require_supported_version()
        from .task_writer import write_task

        return write_task(self._options, self._columns, self._id, rows)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batch_id: int | None) -> None:
        """Write the tasks' output in one transaction, unless the tasks have written it."""
        if self._options.delivery == "at_least_once":
            return
        require_supported_version()
        from .once.commit import commit_batch

        assert batch_id is not None
        commit_batch(self._options, messages, batch_id)
        _remove_files(messages, is_committed=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove the files of the tasks that have ended. Others may still run."""
        _remove_files(messages, is_committed=False)


def _remove_files(messages: Sequence[WriterCommitMessage | None], *, is_committed: bool) -> None:
    from .task_output import outputs_of

    files = [output.spilled for output in outputs_of(messages) if output.spilled is not None]
    if not files:
        return
    from .spill.spill_folder import remove_batch, remove_other_runs

    remove_batch(files)
    if is_committed:
        remove_other_runs(files)
