"""CommitLog: which batches the query has committed, from its checkpoint.

Spark tells a source that a batch is committed only when it builds the next one. The query's own
commit log knows it earlier, and after the last batch it alone knows it.

Layout (Spark's ``OffsetSeqLog`` and ``CommitLog``): ``offsets/N`` is written before batch N runs
and holds a version line, a metadata line, and one line of JSON for each source; ``commits/N``
appears when batch N is committed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class CommitLog:
    """The checkpoint of one query, read only.

    Parameters
    ----------
    location : str
        The query's ``checkpointLocation``, a local path.
    """

    def __init__(self, location: str) -> None:
        self._root = Path(location)

    def is_committed(self, offset: dict[str, Any]) -> bool:
        """Whether the newest batch ends at this offset, for one of its sources, and is committed.

        False also while the checkpoint has no batch yet. Raises OSError when it cannot be read.
        """
        newest = self._newest_batch()
        if newest is None or not (self._root / "commits" / str(newest)).exists():
            return False
        lines = (self._root / "offsets" / str(newest)).read_text("utf-8").splitlines()
        return any(_is_offset(line, offset) for line in lines[2:])

    def _newest_batch(self) -> int | None:
        try:
            names = [entry.name for entry in (self._root / "offsets").iterdir()]
        except FileNotFoundError:
            return None
        return max((int(name) for name in names if name.isdigit()), default=None)


def _is_offset(line: str, offset: dict[str, Any]) -> bool:
    try:
        return bool(json.loads(line) == offset)
    except ValueError:
        return False  # another source's offset need not be JSON
