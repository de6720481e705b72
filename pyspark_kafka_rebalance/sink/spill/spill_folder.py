"""Where the files of a batch's output are, and their removal.

Each run of a query has a folder of its own, and each of its batches one in that: a run that was
replaced removes nothing of its successor's. What a killed run has left is removed after the first
batch that a process of the next one has committed.
"""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ...source.checkpoint.checkpoint_files import open_checkpoint, parse_location, redacted
from .spill_file import SINK_FOLDER, SpillFile

if TYPE_CHECKING:
    from ..task_context import TaskIdentity

log = logging.getLogger(__name__)

_SPILL = f"{SINK_FOLDER}/spill"
_NO_QUERY = "batch"

#: The folders of which the files of other runs were removed by this process.
_tidied: set[tuple[str, str]] = set()


def spill_file_of(task: TaskIdentity, checkpoint: str | None, write_id: str) -> SpillFile | None:
    """Return where a task attempt's file is; None if there is no place for one.

    Parameters
    ----------
    task : TaskIdentity
    checkpoint : str, optional
        The option, parsed.
    write_id : str
        Tells the writes of one batch from one another, and those outside of a query.

    Raises
    ------
    OptionError
        The session's checkpoint location is none that this process can use.
    """
    root = checkpoint
    if root is None and task.session_checkpoint is not None:
        root = parse_location(task.session_checkpoint)
    if root is None and task.is_local:
        root = tempfile.gettempdir()
    if root is None:
        return None
    query, run = task.query_id or _NO_QUERY, task.run_id or write_id
    path = f"{_SPILL}/{query}/{run}/{task.batch or 0}/{write_id}/{task.attempt}"
    return SpillFile(root, path, socket.gethostname())


def remove_batch(files: Iterable[SpillFile]) -> None:
    """Remove the files of one write of a batch, those of lost and superseded attempts too.

    What cannot be removed is logged: the batch is decided already.
    """
    for root, folder in {(file.root, file.path.rpartition("/")[0]) for file in files}:
        _remove(root, folder)


def remove_other_runs(files: Iterable[SpillFile]) -> None:
    """Remove what earlier runs of the query have left; once in each process.

    For who knows that no other run is current: it has committed.
    """
    for root, query, run in {(file.root, *file.path.split("/")[2:4]) for file in files}:
        if query == _NO_QUERY or (root, query) in _tidied:
            continue
        _tidied.add((root, query))
        for other in open_checkpoint(root).names(f"{_SPILL}/{query}"):
            if other != run:
                _remove(root, f"{_SPILL}/{query}/{other}")


def _remove(root: str, path: str) -> None:
    try:
        open_checkpoint(root).remove(path)
    except OSError as error:
        log.warning("%s/%s is not needed any more, but stays: %s", redacted(root), path, error)
