"""The checkpoint of the query that a batch is part of: who the query is, and what its batch reads.

Spark writes ``metadata`` before a query's first batch, and ``offsets/N`` before batch N runs; with
asynchronous progress tracking it does so later, and then nobody can say what a batch has read. A
stateful query has a folder ``state``. In a folder of its own the sink notes which runs of the query
have taken the transactional id over.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...errors import KafkaRebalanceError, OffsetFormatError
from ...source.checkpoint.checkpoint_files import (
    CheckpointFiles,
    open_checkpoint,
    parse_location,
    redacted,
)
from ...source.checkpoint.offset_log import parse_offset_log
from ...source.offsets.offset_json import is_own, parse_offset
from ..spill.spill_file import SINK_FOLDER

_OWNERS = f"{SINK_FOLDER}/owners"

#: How many runs of a query are noted: a driver that wakes up after so many restarts is not told
#: from a new one.
_MOST_OWNERS = 100

#: In the offset log, of a source that has no offset yet.
_NO_OFFSET = "-"


@dataclass(frozen=True, slots=True)
class GroupSource:
    """A source of this package, and where the batch ends for it.

    Attributes
    ----------
    run : str
        The run of the source that has planned the batch.
    end : dict
        The offset, as Spark has logged it.
    """

    run: str
    end: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class BatchInput:
    """What one batch reads, by Spark's offset log.

    Attributes
    ----------
    batch : int
        Spark's number.
    digest : str
        Of the ends of all sources: a replay has the same, another batch of this number has not.
    group_sources : tuple of GroupSource
        Those that have anything in the batch.
    has_others : bool
        Whether sources of another kind have.
    """

    batch: int
    digest: str
    group_sources: tuple[GroupSource, ...]
    has_others: bool


class QueryCheckpoint:
    """A query's checkpoint; ``location`` is parsed.

    Raises
    ------
    KafkaRebalanceError
        It cannot be read.
    """

    def __init__(self, location: str) -> None:
        self._files = open_checkpoint(location)
        self._shown = redacted(location)
        self.query_id = _query_id(self._files)
        if self.query_id is None:
            raise KafkaRebalanceError(f"{self._shown} is no query's checkpoint: it has no metadata")

    def input_of(self, batch: int) -> BatchInput:
        """Return what a batch reads.

        Raises
        ------
        KafkaRebalanceError
            Spark has not logged it.
        """
        try:
            text = self._files.read(f"offsets/{batch}")
        except FileNotFoundError:
            raise KafkaRebalanceError(
                f"batch {batch} is not in the offset log of {self._shown}: exactly once needs a "
                "query that logs what a batch reads before it runs. Leave out "
                "asyncProgressTrackingEnabled, or set delivery=at_least_once"
            ) from None
        try:
            return batch_input(batch, text, self._logged_before(batch))
        except (ValueError, OffsetFormatError) as error:
            raise KafkaRebalanceError(
                f"offsets/{batch} of {self._shown} cannot be read: {error}"
            ) from error

    def _logged_before(self, batch: int) -> str | None:
        try:
            return self._files.read(f"offsets/{batch - 1}")
        except FileNotFoundError:
            return None

    @property
    def is_stateful(self) -> bool:
        """Whether the query keeps state."""
        return bool(self._files.names("state"))

    @property
    def owners(self) -> tuple[str, ...]:
        """The runs that have taken the transactional id over from this checkpoint, in order."""
        try:
            return tuple(self._files.read(_OWNERS).split())
        except FileNotFoundError:
            return ()

    def note_owner(self, run: str) -> None:
        """Note that a run has taken it over."""
        runs = [*self.owners, run][-_MOST_OWNERS:]
        with self._files.create(_OWNERS) as file:
            file.write("\n".join(runs).encode())


def batch_input(batch: int, text: str, before: str | None = None) -> BatchInput:
    """Parse the offset log's file of a batch; ``before`` is that of the batch before. Pure.

    A source whose offset is the same in both has nothing in the batch. No run may know it then:
    the one that planned it for an earlier batch may have ended.

    Raises
    ------
    ValueError, OffsetFormatError
        It is of an unknown version.
    """
    ends = parse_offset_log(text)  # first: it knows the versions
    logged = text.split("\n")[2:]
    digest = hashlib.sha256("\n".join(logged).encode()).hexdigest()[:32]
    unchanged = set() if before is None else set(_named(before))
    new = [
        (end, line)
        for (_, end), line, named in zip(ends, logged, _named(text), strict=True)
        if named not in unchanged
    ]
    sources = [GroupSource(run, end) for end, _ in new if is_own(end) and (run := _run(end))]
    has_others = any(
        not is_own(end) and line.rpartition(":")[2] not in ("", _NO_OFFSET) for end, line in new
    )
    return BatchInput(batch, digest, tuple(sources), has_others)


def _named(text: str) -> list[tuple[int, str]]:
    """The lines of the sources in an offset log's file, each with its place: some have no name."""
    version, _, *sources = text.split("\n")
    return [(0 if version == "v2" else place, line) for place, line in enumerate(sources)]


def checkpoint_of(option: str | None, session: Iterable[str | None], query_id: str | None) -> str:
    """Return the parsed location of a query's checkpoint.

    Parameters
    ----------
    option : str, optional
        The sink's option ``checkpointLocation``, parsed.
    session : iterable of str or None
        The session's ``spark.sql.streaming.checkpointLocation``, as the tasks have it. Each query
        has a folder in it, which has the query's name, or any.
    query_id : str, optional
        By Spark; to find that folder.

    Raises
    ------
    KafkaRebalanceError
        There is none.
    """
    if option is not None:
        return option
    for text in dict.fromkeys(each for each in session if each is not None):
        root = parse_location(text)
        files = open_checkpoint(root)
        for name in files.names("."):
            location = f"{root.rstrip('/')}/{name}"
            if _query_id(open_checkpoint(location)) == query_id:
                return location
    raise KafkaRebalanceError(
        f"the checkpoint of query {query_id} is not known on this host, which exactly once needs: "
        "give the writer the option checkpointLocation"
    )


def _query_id(files: CheckpointFiles) -> str | None:
    try:
        found = json.loads(files.read("metadata"))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return found.get("id") if isinstance(found, dict) else None


def _run(end: Any) -> str | None:
    return parse_offset(end).run
