"""A Spark query in a process of its own that writes the ledger.

Tests, demo and benchmarks start, stop and kill such processes; users' own tests may as well::

    with QueryProcess("A", options, ledger=folder / "ledger", work=folder) as query:
        query.wait_for_batch(3)
        query.stop()
"""

from __future__ import annotations

import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

#: A JVM, a Spark session and Python workers on a busy machine.
START_TIMEOUT_S = 120.0


class QueryProcess:
    """Start one query in its own process and follow its batches.

    Parameters
    ----------
    name : str
        The reader's name in the ledger.
    options : mapping
        The source's options.
    ledger, work : Path
        The shared ledger; a folder for this query's checkpoint and log (kept between restarts).
    trigger : dict
        For ``DataStreamWriter.trigger``.
    batch_s : float
        A batch takes at least this long: the sink waits, as a slow sink would.
    source : str
        The source's format.
    conf : mapping
        More of Spark's settings.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        *,
        ledger: Path,
        work: Path,
        trigger: Mapping[str, Any] | None = None,
        batch_s: float = 0.0,
        source: str = "kafka_deferred",
        conf: Mapping[str, str] | None = None,
        parallelism: int = 2,
    ) -> None:
        self.name = name
        self.checkpoint = work / f"checkpoint-{name}"
        self._log = work / f"{name}.log"
        self._settings = {
            "name": name,
            "source": source,
            "options": {"checkpointLocation": str(self.checkpoint), **options},
            "ledger": str(ledger),
            "checkpoint": str(self.checkpoint),
            "trigger": dict(trigger or {"processingTime": "0 seconds"}),
            "batch_s": batch_s,
            "conf": dict(conf or {}),
            "parallelism": parallelism,
        }
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.events: list[dict[str, Any]] = []

    def start(self) -> QueryProcess:
        """Start the process; again after it ended, with the same checkpoint."""
        self.events = []
        self._lines = queue.Queue()
        with self._log.open("a") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, json.dumps(self._settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,
                text=True,
                # Its own group, so that a kill reaches JVM, planner and workers, and only them.
                start_new_session=True,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable},
            )
        threading.Thread(
            target=self._follow, args=(self._process, self._lines), daemon=True
        ).start()
        return self

    def __enter__(self) -> QueryProcess:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        """Process id of the query's Python driver, and of its process group."""
        assert self._process is not None
        return self._process.pid

    def descendants(self, command: str) -> list[int]:
        """Process ids in this query's group whose command line contains ``command``."""
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                in_group = os.getpgid(int(entry.name)) == self.pid
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except (ProcessLookupError, FileNotFoundError):
                continue
            if in_group and command in line:
                found.append(int(entry.name))
        return sorted(found)

    def planner(self) -> int:
        """Process id of the planner, Spark's long-lived Python process that runs the source."""
        (pid,) = self.descendants("python_streaming_source_runner")
        return pid

    def jvm(self) -> int:
        """Process id of the driver's JVM."""
        return self.descendants("SparkSubmit")[-1]

    def wait_for(
        self, event: str, timeout_s: float = START_TIMEOUT_S, **match: Any
    ) -> dict[str, Any]:
        """The next event of this name whose fields match; raises with the log's end."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError(f"{self.name}: no {event} {match}\n{self.log_end()}") from None
            if line is None:
                self._lines.put(None)
                raise RuntimeError(f"{self.name} ended before {event} {match}\n{self.log_end()}")
            self.events.append(line)
            if line["event"] == event and all(line.get(k) == v for k, v in match.items()):
                return line

    def wait_for_batch(
        self, with_rows: int = 1, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """The next completed batch with at least so many rows."""
        while True:
            batch = self.wait_for("batch", timeout_s)
            if batch["rows"] >= with_rows:
                return batch

    def stop(self, timeout_s: float = 60.0) -> None:
        """``query.stop()``, then wait for the process to end."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        process.stdin.write("stop\n")
        process.stdin.flush()
        self.wait_for("stopped", timeout_s)
        process.wait(timeout_s)

    def wait_until_ended(self, timeout_s: float = 120.0) -> int:
        """Wait until the process ends by itself; its exit code."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill(self) -> None:
        """kill -9 of the whole group: JVM, planner, workers."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    def log_end(self, characters: int = 4_000) -> str:
        """The end of what the process logged."""
        return self._log.read_text(errors="replace")[-characters:]

    @staticmethod
    def _follow(process: subprocess.Popen[str], lines: queue.Queue[dict[str, Any] | None]) -> None:
        assert process.stdout is not None
        with suppress(ValueError):  # closed by kill() in mid-read
            for line in process.stdout:
                if line.startswith("{"):
                    lines.put(json.loads(line))
        lines.put(None)


def _tell(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, "at": time.time(), **fields}), flush=True)


def main(settings: dict[str, Any]) -> None:
    """Run the query until "stop" on standard input, or until it ends."""
    from pyspark.sql import DataFrame, SparkSession

    from .ledger import RECORD_COLUMNS, LedgerWriter

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    builder = (
        SparkSession.builder.master(f"local[{settings['parallelism']}]")
        .appName(settings["name"])
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.execution.arrow.pyspark.enabled", "true")
    )
    for key, value in settings["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    stream = spark.readStream.format(settings["source"]).options(**settings["options"]).load()
    writer = LedgerWriter(Path(settings["ledger"]), settings["name"])
    columns = [name for name in RECORD_COLUMNS if name in stream.columns]

    def sink(batch: DataFrame, batch_id: int) -> None:
        began_at = time.time()
        records = batch.select(*columns).toArrow()
        _tell("began", batch=batch_id, rows=records.num_rows)
        time.sleep(max(0.0, settings["batch_s"] - (time.time() - began_at)))
        writer.write(batch_id, records, began_at)
        _tell("batch", batch=batch_id, rows=records.num_rows)

    query = (
        stream.writeStream.foreachBatch(sink)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(**settings["trigger"])
        .queryName(settings["name"])
        .start()
    )
    _tell("started")

    def obey() -> None:
        for line in sys.stdin:
            if line.strip() == "stop":
                query.stop()
                return

    threading.Thread(target=obey, daemon=True).start()
    try:
        query.awaitTermination()
    except Exception as error:
        _tell("failed", error=str(error))
        raise
    _tell("stopped", progress=[progress.json for progress in query.recentProgress[-3:]])
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
