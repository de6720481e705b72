"""CommitLog: which batches the query has committed, from its checkpoint.

Spark tells a source that a batch is committed only when it builds the next one. The query's own
commit log knows it earlier, and after the last batch it alone knows it.

Layout (Spark's ``OffsetSeqLog`` and ``CommitLog``): ``offsets/N`` is written before batch N runs
and holds a version line, a metadata line, and one line of JSON for each source; ``commits/N``
appears when batch N is committed. ``metadata`` is there before the first batch is planned.
"""

from __future__ import annotations

import json
from typing import Any

from .checkpoint_files import CheckpointFiles, open_checkpoint


class CommitLog:
    """The checkpoint of one query, read only.

    Parameters
    ----------
    location : str
        The query's ``checkpointLocation``, parsed: an absolute path or a URI.
    """

    def __init__(self, location: str) -> None:
        self._location = location
        self._opened: CheckpointFiles | None = None

    def is_committed(self, offset: dict[str, Any]) -> bool:
        """Whether the newest batch ends at this offset, for one of its sources, and is committed.

        False also while the checkpoint has no batch yet.

        Raises
        ------
        OSError
            The checkpoint cannot be read, or is not there; whatever else pyarrow raises.
        """
        files = self._files()
        newest = _newest_batch(files)
        if newest is None:
            if not files.exists("metadata"):
                raise FileNotFoundError("no query has its checkpoint there")
            return False
        if not files.exists(f"commits/{newest}"):
            return False
        lines = files.read(f"offsets/{newest}").splitlines()
        return any(_is_offset(line, offset) for line in lines[2:])

    def _files(self) -> CheckpointFiles:
        if self._opened is None:
            self._opened = open_checkpoint(self._location)
        return self._opened


def _newest_batch(files: CheckpointFiles) -> int | None:
    names = files.names("offsets")
    return max((int(name) for name in names if name.isdigit()), default=None)


def _is_offset(line: str, offset: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(line) == offset)
    except ValueError:
        return False  # another source's offset need not be JSON
