"""One instance of examples/folder_of_files.py, in a process of its own.

Runs the example itself, which commits after each read of up to 1,000 lines, or a loop that reads as
fast as it can, with automatic commits at an interval, like Connect's
``transaction.boundary=interval``.
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

import pyarrow as pa

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
        arguments += ["--blocks"] if settings["blocks"] else []
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
    """Reads as the example's produce_blocks does, without keys, as Connect; commits come later."""

    def __init__(
        self, example: dict[str, Any], group: ProducerGroup, settings: dict[str, Any]
    ) -> None:
        self.behind: dict[int, str] = {}
        self._blocks_after = example["blocks_after"]
        self._group = group
        self._folder = Path(settings["folder"])
        self._topic = settings["topic"]
        self._send = self._send_rows if settings["blocks"] else self._send_each

    def next(self) -> int:
        """Send the next lines of each source partition; return how many."""
        sent = 0
        for partition, point in self._group.restart_points.items():
            since = self.behind.get(partition, point)
            with contextlib.suppress(PartitionsLostError):
                for block, behind in islice(self._blocks_after(self._folder, partition, since), 1):
                    if partition not in self.behind:
                        print(READS, time.time(), flush=True)
                    lines = block.removesuffix(b"\n").split(b"\n")
                    self._send(lines, partition, behind)
                    self.behind[partition] = behind
                    sent += len(lines)
        return sent

    def _send_each(self, lines: list[bytes], partition: int, behind: str) -> None:
        send, topic, last = self._group.send, self._topic, lines.pop()
        for line in lines:
            send(topic, line, source_partition=partition)
        send(topic, last, source_partition=partition, restart_point=behind)
        lines.append(last)

    def _send_rows(self, lines: list[bytes], partition: int, behind: str) -> None:
        rows = pa.table({"value": lines})
        self._group.send_batch(self._topic, rows, source_partition=partition, restart_point=behind)


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
