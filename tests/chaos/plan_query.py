"""The queries of a plan in a process of their own, one after another, each with a ledger.

The ledger is a file of JSON lines for each run: what the sink got, and what it completed. A line is
one write, so a ``kill -9`` leaves whole lines, and at most a part of a last one.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sys
import threading
import time
from io import FileIO
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from pyspark_kafka_rebalance import stop_gracefully
from pyspark_kafka_rebalance.testing.child_process import tell
from pyspark_kafka_rebalance.testing.query_process import start_spark, warm_up

_LOOK_EVERY_S = 0.1
_STOP_TIMEOUT_S = 60.0


class LedgerLines:
    """A file of JSON lines that only grows."""

    def __init__(self, path: str) -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        self._file = FileIO(path, "a")  # without a buffer: each line is there at once

    def write(self, **fields: Any) -> None:
        line = (json.dumps(fields) + "\n").encode()
        assert self._file.write(line) == len(line)

    def close(self) -> None:
        """A sink that still hangs gets an error instead of a line."""
        self._file.close()


class Sink:
    """Completes batches, or does not, as it is told."""

    def __init__(self, ledger: LedgerLines) -> None:
        self._ledger = ledger
        self._next: list[tuple[str, float]] = []
        self._is_over = threading.Event()

    def is_told(self, what: str, seconds: float) -> None:
        """What is to happen in the next batch with rows."""
        self._next.append((what, seconds))

    def end(self) -> None:
        """The query has ended: what still hangs completes nothing."""
        self._is_over.set()
        self._ledger.close()

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        at = time.time()
        columns = ["topic", "partition", "offset", "value", "lost"]
        with_gaps = "catch_up" in batch.columns
        table = batch.select(*columns, *(["catch_up"] if with_gaps else [])).toArrow()
        lists = [table[name].to_pylist() for name in table.column_names]
        rows = [(*row, *([] if with_gaps else [False])) for row in zip(*lists, strict=True)]
        rows = [(t, p, o, v.decode(), lost, gap) for t, p, o, v, lost, gap in rows if o is not None]
        logs = sorted({(t, p) for t, p, *_ in rows})
        self._ledger.write(event="began", at=at, batch=batch_id, logs=logs)
        if not rows:
            return
        told, self._next = self._next, []
        for what, seconds in told:
            if what == "slow":
                time.sleep(seconds)
            if what == "hang":
                tell("hangs")
                self._is_over.wait(seconds)
        if self._is_over.is_set():
            return
        if any(what == "fail before" for what, _ in told):
            raise RuntimeError("the sink fails before it has the batch")
        self._ledger.write(event="batch", at=at, completed=time.time(), batch=batch_id, rows=rows)
        if any(what == "fail after" for what, _ in told):
            raise RuntimeError("the sink fails after it has the batch")


def run(spark: SparkSession, settings: dict[str, Any], given: queue.Queue[str]) -> None:
    """Run one query to its end, which is ordered or its own; tells how it ended."""
    sink = Sink(LedgerLines(settings["ledger"]))
    try:
        _run(spark, settings, given, sink)
    finally:
        sink.end()


def _run(
    spark: SparkSession, settings: dict[str, Any], given: queue.Queue[str], sink: Sink
) -> None:
    has_an_end = "processingTime" not in settings["trigger"]
    frame = spark.readStream.format("kafka_deferred").options(**settings["options"]).load()
    running = (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(**settings["trigger"])
        .start()
    )
    tell("started")
    while True:
        try:
            if running.awaitTermination(_LOOK_EVERY_S):
                if has_an_end:
                    tell("ended")
                else:
                    tell("failed", error="the query has ended by itself")
                return
        except Exception as error:
            tell("failed", error=str(error)[:4_000])
            return
        while not given.empty():
            order = given.get()
            if order == "stop":
                tell("stopped", complete=stop_gracefully(running, timeout_s=_STOP_TIMEOUT_S))
                return
            if order == "interrupt":
                running.stop()
                tell("stopped", complete=False)
                return
            sink.is_told(**json.loads(order))


def main(settings: dict[str, Any]) -> None:
    """Run what is ordered until standard input ends."""
    spark = start_spark(settings)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    warm_up(spark)
    given: queue.Queue[str] = queue.Queue()

    def listen() -> None:
        for order in sys.stdin:
            given.put(order.strip())
        os._exit(0)  # whoever started this is gone

    threading.Thread(target=listen, daemon=True).start()
    while True:
        tell("ready")
        order = given.get()
        while not order.startswith('{"options"'):  # too late for the query before
            order = given.get()
        run(spark, json.loads(order), given)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
