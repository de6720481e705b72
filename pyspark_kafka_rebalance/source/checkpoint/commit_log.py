"""CommitLog: which batches the query has committed, from its checkpoint.

Spark reports a commit to a source only when it builds the next batch. The query's own commit log
shows it earlier, and after the last batch only that log shows it.

Layout (Spark's ``OffsetSeqLog`` and ``CommitLog``): ``offsets/N`` is written before batch N runs
(``offset_log.py``); ``commits/N`` appears when batch N is committed. ``metadata`` exists before the
first batch is planned.
"""

from __future__ import annotations

from typing import Any

from .checkpoint_files import CheckpointFiles, open_checkpoint
from .offset_log import parse_offset_log


class CommitLog:
    """Reads which batches the query has committed; the location is parsed."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._opened: CheckpointFiles | None = None

    def is_committed(self, offset: dict[str, Any]) -> bool:
        """Whether the newest batch ends at this offset, for one of its sources, and is committed.

        Also False while the checkpoint has no batch yet.

        Raises
        ------
        OSError
            The checkpoint cannot be read, or does not exist; pyarrow may raise other errors, too.
        ValueError
            Its offset log has an unknown version.
        """
        files = self._files()
        newest = max((int(n) for n in files.names("offsets") if n.isdigit()), default=None)
        if newest is None:
            if not files.exists("metadata"):
                raise FileNotFoundError("no query has its checkpoint there")
            return False
        if not files.exists(f"commits/{newest}"):
            return False
        ends = parse_offset_log(files.read(f"offsets/{newest}"))
        return any(end == offset for _, end in ends)

    def _files(self) -> CheckpointFiles:
        if self._opened is None:
            self._opened = open_checkpoint(self._location)
        return self._opened
