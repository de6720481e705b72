"""A client in its own process: polls, logs and commits records, and reports how long they waited.

Orders: "go" joins the group, "begin" starts to collect the waits of live records, "figures" reports
the waits collected since, "stop" closes.
"""

from __future__ import annotations

import json
import logging
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing.child_process import orders, tell

from .figures import waits_of
from .runs import RunLog

_POLL_MS = 100


class Application:
    """Logs the polled records and measures their waits.

    Parameters
    ----------
    settings : dict
        As :mod:`.client` makes them: ``ends`` are the ends of the backlog by partition,
        ``backlog`` is its number of records.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self._log = RunLog(Path(settings["log"]))
        self._partitions = settings["partitions"]
        self._ends = {int(p): end for p, end in settings["ends"].items()}
        self._left: int = settings["backlog"]
        self._backlog = self._left
        self._owned: set[int] = set()
        self._assigned_ms: float | None = None
        self._cpu_s = 0.0
        self._first_live_at: float | None = None
        self._collecting = self._left > 0
        self._waits: list[float] = []

    def assigned(self, partitions: Sequence[int], at: float) -> None:
        """Note assigned partitions; the last of them starts the clock."""
        self._owned |= set(partitions)
        if self._assigned_ms is None and len(self._owned) == self._partitions:
            self._assigned_ms = at * 1000
            self._cpu_s = time.process_time()
            tell("assigned")

    def polled(self, partition: int, records: Sequence[Any], at: float) -> None:
        """Process the records that a poll returned, at least one, in order."""
        self._log.write(0, partition, [record.offset for record in records])
        if self._assigned_ms is None:
            return
        end = self._ends.get(partition, 0)
        if records[0].offset < end:
            # Nearly all polls of a backlog return only records of the backlog.
            within = len(records)
            if records[-1].offset >= end:
                within = sum(record.offset < end for record in records)
            self._left -= within
            if self._left == 0:
                self._caught_up(at)
            records = records[within:]
        at_ms = at * 1000
        for record in records:
            if record.timestamp >= self._assigned_ms:
                if self._first_live_at is None:
                    self._first_live_at = at
                    after_s = at - self._assigned_ms / 1000
                    tell("live", after_s=after_s)
                if self._collecting:
                    self._waits.append(at_ms - record.timestamp)

    def order(self, given: str) -> None:
        if given == "begin":
            self._waits, self._collecting = [], True
        elif given == "figures":
            tell("figures", **waits_of(self._waits))

    def _caught_up(self, at: float) -> None:
        assert self._assigned_ms is not None
        took_s = at - self._assigned_ms / 1000
        tell(
            "caught up",
            took_s=took_s,
            cpu_s=time.process_time() - self._cpu_s,
            records=self._backlog,
            waits=waits_of(self._waits),
        )
        self._collecting = False


def main(settings: dict[str, Any]) -> None:
    """Consume from "go" until "stop"."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    given = orders()
    tell("ready")
    if next(given) != "go":
        return
    application = Application(settings)
    ordered: queue.SimpleQueue[str] = queue.SimpleQueue()

    def listen() -> None:
        for order in given:
            ordered.put(order)
            if order == "stop":
                return

    threading.Thread(target=listen, daemon=True).start()
    consumer = DeferredRevokeConsumer(settings["topic"], **settings["config"])
    while True:
        result = consumer.poll_with_rebalance(timeout_ms=_POLL_MS)
        at = time.time()
        if result.assigned:
            application.assigned([p.partition for p in result.assigned], at)
        for found in (result.records, result.catch_up):
            for partition, records in found.items():
                application.polled(partition.partition, records, at)
                consumer.commit_processed({TopicPartition(*partition): records[-1].offset + 1})
        if not ordered.empty():
            order = ordered.get()
            if order == "stop":
                break
            application.order(order)
    consumer.close()
    tell("stopped")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
