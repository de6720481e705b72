"""DriverSources: whether another source of this Spark driver is in the same group.

Two queries share a topic this way on purpose. Two ``load()``s of one query do so by mistake: each
gets some of the partitions, and a join or a union of the two lacks the rest. A planner does not
know its query, so it cannot always tell the two cases apart; it only knows that both planners have
the same parent, the JVM. Each planner keeps a file on the driver's host while it is in the group.

Spark plans a batch of one query source by source. A source's members release the partitions in that
batch only once the batch is committed, so another source of the query must not wait for them while
it plans.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .options.source_options import SourceOptions

log = logging.getLogger(__name__)

_ADVICE = "give each load() of a query its own kafka.group.id"


class DriverSources:
    """This planner's entry among the sources of its driver; not for a stream with ``assign``."""

    def __init__(self, options: SourceOptions, run: str) -> None:
        self._options = options
        self._run = run
        told = [options.client_config.get("bootstrap_servers"), options.group_id]
        group = hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]
        self._prefix = f"pyspark-kafka-rebalance-{os.getppid()}-{group}-"
        name = hashlib.sha256(run.encode()).hexdigest()[:16]
        self._path = Path(tempfile.gettempdir(), f"{self._prefix}{name}.source")
        self._file = -1

    def enter(self) -> None:
        """Register this source, and warn of others in the group that may be of the same query."""
        for other in self._others():
            if warning := self._warning(other):
                log.warning("%s", warning)
        entry = {
            "run": self._run,
            "topics": self._options.topics,
            "checkpoint": self._options.checkpoint_location,
        }
        unfinished = self._path.with_suffix(".unfinished")
        try:
            self._file = os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX)
            os.write(self._file, json.dumps(entry).encode())
            unfinished.rename(self._path)  # other planners find it locked and whole
        except OSError as error:
            log.info("other sources of this driver cannot see this one: %s", error)

    def leave(self) -> None:
        """Unregister this source before it leaves the group; idempotent."""
        # Set first: a SIGTERM between the two would close it again, which may be another's by then.
        file, self._file = self._file, -1
        if file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(file)

    def may_have_siblings(self) -> bool:
        """Whether another source in the group belongs to this query, or may belong to it."""
        return any(self._warning(other) for other in self._others())

    def _others(self) -> list[dict[str, Any]]:
        found = []
        for path in sorted(self._path.parent.glob(f"{self._prefix}*.source")):
            if path == self._path:
                continue
            try:
                entry = _entry_in(path)
            except (OSError, ValueError):
                continue  # another user's file, or its source has just left
            if entry is None:
                with suppress(OSError):  # another user's, or another planner was faster
                    path.unlink()
            else:
                found.append(entry)
        return found

    def _warning(self, other: dict[str, Any]) -> str | None:
        """Return the warning about another source in the group; None if the two do not conflict."""
        mine, others = self._options.topics, other["topics"]
        if mine is not None and others is not None and not set(mine) & set(others):
            return None
        checkpoint = self._options.checkpoint_location
        beside = f"group {self._options.group_id!r}:"
        if checkpoint is None or other["checkpoint"] is None:
            return (
                f"{beside} another source of this Spark driver is in the group ({other['run']}). "
                "That is how two queries share topics. But if it is another load() of this query, "
                f"as in a join or a union, each gets only some of the partitions: {_ADVICE}"
            )
        if checkpoint != other["checkpoint"]:
            return None
        return (
            f"{beside} another load() of this query is in the group ({other['run']}), so each gets "
            f"only some of the partitions: {_ADVICE}"
        )


def _entry_in(path: Path) -> dict[str, Any] | None:
    """Return the entry of a source, or None if the source was killed.

    A killed process leaves its file behind but not its lock. Its pid proves nothing: the system may
    have given it to another process.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(file, encoding="utf-8") as opened:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            entry: dict[str, Any] = json.load(opened)
            return entry
    return None
