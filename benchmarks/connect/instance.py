"""One instance of examples/folder_of_files.py, in a process of its own.

Runs the example itself, which commits after each read of up to 1,000 lines, or the same reads with
automatic commits at an interval, like Connect's ``transaction.boundary=interval``.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import signal
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance import PartitionsLostError, ProducerGroup, TransactionAbortedError

#: Printed, with the time, when it begins to read a source partition.
READS = "reads the file"

_EXAMPLE = Path(__file__).parents[2] / "examples" / "folder_of_files.py"


def run(settings: dict[str, Any]) -> None:
    """Read the folder's files until SIGTERM."""
    example = runpy.run_path(str(_EXAMPLE))
    if settings["commit_interval_ms"] is None:
        arguments = ["--bootstrap-servers", settings["servers"]]
        arguments += ["--group-id", settings["group_id"]]
        arguments += ["--folder", settings["folder"], "--topic", settings["topic"]]
        example["main"](arguments)
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (
        ProducerGroup(
            settings["group_id"],
            example["PARTITIONS"],
            bootstrap_servers=settings["servers"],
            commit_interval_ms=settings["commit_interval_ms"],
            session_timeout_ms=settings["session_timeout_ms"],
            linger_ms=5,  # as in Connect
        ) as group,
        contextlib.suppress(KeyboardInterrupt),
    ):
        group.subscribe()
        reads = _Reads(example, group, settings)
        while True:
            try:
                sent = reads.next()
                events = group.poll(timeout_ms=0 if sent else 200)
                for partition in events.revoked | events.lost:
                    reads.behind.pop(partition, None)
            except TransactionAbortedError:
                reads.behind.clear()


class _Reads:
    """Like the example's produce_lines, but notes how far it has read instead of committing."""

    def __init__(
        self, example: dict[str, Any], group: ProducerGroup, settings: dict[str, Any]
    ) -> None:
        self.behind: dict[int, str] = {}
        self._lines_after = example["lines_after"]
        self._lines_at_once = example["LINES_AT_ONCE"]
        self._group = group
        self._folder = Path(settings["folder"])
        self._topic = settings["topic"]

    def next(self) -> int:
        """Send the next lines of each source partition; return how many."""
        sent = 0
        for partition, point in self._group.restart_points.items():
            since = self.behind.get(partition, point)
            lines = islice(self._lines_after(self._folder, partition, since), self._lines_at_once)
            with contextlib.suppress(PartitionsLostError):
                for line, behind in lines:
                    if partition not in self.behind:
                        print(READS, time.time(), flush=True)
                    key = behind.rpartition(":")[0].encode()
                    self._group.send(
                        self._topic, line, key, source_partition=partition, restart_point=behind
                    )
                    self.behind[partition] = behind
                    sent += 1
        return sent


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
