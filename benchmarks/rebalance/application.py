"""How every member handles its records and partitions, whatever its client.

The client's module calls :meth:`Application.assigned` and :meth:`Application.polled`, commits what
:meth:`Application.commit_due` returns, and calls these when partitions are revoked:

 1. :meth:`Application.revoking` stops taking their records and returns how long to wait,
 2. :meth:`Application.drained` returns the offsets to commit,
 3. :meth:`Application.revoked` forgets them.

A member that does not drain waits for nothing and commits nothing there. The order of the calls is
the same in ``clients/Member.java``. Partitions are numbers, since there is only one topic.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import tell

from .polls import PollLog
from .processing import Processing

#: How often to commit all partitions at once, as a careful application does.
COMMIT_EVERY_S = 0.1


class Application:
    """One member's application; its methods can be called from several threads.

    Parameters
    ----------
    member : mapping
        The member's settings, as :mod:`.scenario` makes them.
    """

    def __init__(self, member: Mapping[str, Any]) -> None:
        self.stopping = threading.Event()
        self._drain: bool = member["drain"]
        self._log = PollLog(Path(member["ledger"]), member["name"])
        self._processing = Processing(member["longest_s"], Random(member["name"]))
        self._owned: set[int] = set()
        self._committed: dict[int, int] = {}
        self._committed_at = 0.0
        # Some clients call the listener on another thread than the one that polls.
        self._lock = threading.Lock()

    def assigned(self, partitions: Collection[int]) -> None:
        """Add partitions to those owned."""
        with self._lock:
            self._owned |= set(partitions)
            tell("owns", partitions=sorted(self._owned))

    def polled(self, offsets: Mapping[int, Sequence[int]]) -> None:
        """Process the offsets of a poll, except those of partitions revoked since the poll."""
        with self._lock:
            now = time.time()
            ours = {p: of for p, of in offsets.items() if p in self._owned and of}
            if ours:
                self._log.write(now, ours)
            for partition, of_partition in ours.items():
                self._processing.begin(partition, of_partition[-1] + 1, now)

    def commit_due(self) -> dict[int, int]:
        """The offsets to commit now; none if the last commit was a moment ago."""
        with self._lock:
            now = time.time()
            if now - self._committed_at < COMMIT_EVERY_S:
                return {}
            self._committed_at = now
            found = self._processed(self._owned)
            due = {p: offset for p, offset in found.items() if self._committed.get(p) != offset}
            self._committed |= due
            return due

    def busy(self, partitions: Collection[int]) -> set[int]:
        """The partitions with records that are still being processed."""
        with self._lock:
            now = time.time()
            return {p for p in partitions if self._processing.done_at([p]) > now}

    def revoking(self, partitions: Collection[int]) -> float:
        """Stop taking records of these; return the seconds until their records are processed."""
        with self._lock:
            self._owned -= set(partitions)
            if not self._drain:
                return 0.0
            return max(0.0, self._processing.done_at(partitions) - time.time())

    def drained(self, partitions: Collection[int]) -> dict[int, int]:
        """Note that all records of these are processed; return the offsets to commit."""
        if not self._drain:
            return {}
        with self._lock:
            tell("drained", partitions=sorted(partitions))
            # All offsets: a client may have refused the last commit while the group rebalances.
            return self._processed(partitions)

    def revoked(self, partitions: Collection[int]) -> None:
        """Forget partitions that were revoked or lost."""
        with self._lock:
            self._owned -= set(partitions)
            self._processing.forget(partitions)
            for partition in partitions:
                self._committed.pop(partition, None)
            tell("owns", partitions=sorted(self._owned))

    def _processed(self, partitions: Collection[int]) -> dict[int, int]:
        processed = self._processing.processed(time.time())
        return {p: offset for p, offset in processed.items() if p in partitions}
