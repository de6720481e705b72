"""A Spark query in a process of its own that writes the ledger.

Tests, demo and benchmarks start, stop and kill such processes; users' own tests can, too::

    with QueryProcess("A", options, ledger=folder / "ledger", work=folder) as query:
        query.wait_for_batch(3)
        query.stop()
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .child_process import START_TIMEOUT_S, ChildProcess, orders, tell

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class SparkProcess(ChildProcess):
    """A process with a Spark session and a query in it."""

    def planner(self) -> int:
        """The process id of the planner, Spark's long-lived Python process that runs the source."""
        (pid,) = self.descendants("python_streaming_source_runner")
        return pid

    def jvm(self) -> int:
        """The process id of the driver's JVM."""
        return self.descendants("SparkSubmit")[-1]

    def wait_for_batch(
        self, with_rows: int = 1, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """Return the next completed batch with at least this many rows."""
        while True:
            batch = self.wait_for("batch", timeout_s)
            if batch["rows"] >= with_rows:
                return batch


class QueryProcess(SparkProcess):
    """Starts one query in its own process and follows its batches.

    Parameters
    ----------
    parallelism : int
        Spark's cores.
    master : str, optional
        The master of a Spark cluster; by default the tasks run in the query's own process.
    hold : bool
        Start only Spark, report "ready", and start the query on :meth:`release`.
    on_event : callable, optional
        Called with every event as it comes, on a thread of its own.
    **query_options
        The query's: see :func:`query_settings`.
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, str],
        *,
        work: Path,
        conf: Mapping[str, str] | None = None,
        parallelism: int = 2,
        master: str | None = None,
        hold: bool = False,
        on_event: Callable[[dict[str, Any]], None] | None = None,
        **query_options: Any,
    ) -> None:
        query = query_settings(name, options, work=work, **query_options)
        self.checkpoint = Path(query["checkpoint"])
        settings = {
            **query,
            "conf": dict(conf or {}),
            "parallelism": parallelism,
            "master": master,
            "hold": hold,
        }
        super().__init__(name, __name__, settings, work=work, on_event=on_event)

    def release(self) -> None:
        """Start the query that ``hold`` has held back."""
        self.order("go")


def query_settings(
    name: str,
    options: Mapping[str, str],
    *,
    ledger: Path,
    work: Path,
    trigger: Mapping[str, Any] | None = None,
    batch_s: float = 0.0,
    row_s: float = 0.0,
    source: str = "kafka_deferred",
    writer_options: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return settings for :func:`run_query`.

    Parameters
    ----------
    name : str
        The reader's name in the ledger.
    ledger, work : Path
        The shared ledger; a folder for this query's checkpoint and log (kept between restarts).
    batch_s : float
        A batch takes at least this long: the sink waits, as a slow sink would.
    row_s : float
        A batch also takes at least this long for each of its rows.
    writer_options : mapping
        The sink's options in addition to ``checkpointLocation``.
    """
    checkpoint = str(work / f"checkpoint-{name}")
    return {
        "name": name,
        "source": source,
        "options": {"checkpointLocation": checkpoint, **options},
        "ledger": str(ledger),
        "checkpoint": checkpoint,
        "trigger": dict(trigger or {"processingTime": "0 seconds"}),
        "batch_s": batch_s,
        "row_s": row_s,
        "writer_options": dict(writer_options or {}),
    }


def start_spark(settings: Mapping[str, Any]) -> SparkSession:
    """Start the session of a query process, and its log."""
    from .local_spark import local_spark

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    conf = {"spark.sql.execution.arrow.pyspark.enabled": "true", **settings["conf"]}
    spark = local_spark(settings["name"], settings["parallelism"], conf, settings["master"])
    spark.sparkContext.setLogLevel("WARN")
    return spark


def warm_up(spark: SparkSession) -> None:
    """Run a job, because the first one of a JVM is slow."""
    spark.range(2).toArrow()


def run_query(spark: SparkSession, settings: Mapping[str, Any], given: Iterator[str]) -> bool:
    """Run the query until an order to "stop", which is graceful, or until it ends.

    Returns whether it was ordered to stop.
    """
    import pyarrow.compute as pc
    from pyspark.sql import DataFrame

    from ..source.stop.graceful_stop import stop_gracefully
    from .ledger import RECORD_COLUMNS, LedgerWriter, seconds

    stream = spark.readStream.format(settings["source"]).options(**settings["options"]).load()
    writer = LedgerWriter(Path(settings["ledger"]), settings["name"])
    columns = [name for name in RECORD_COLUMNS if name in stream.columns]

    def sink(batch: DataFrame, batch_id: int) -> None:
        began_at = time.time()
        records = batch.select(*columns).toArrow()
        received_at = time.time()
        tell("began", batch=batch_id, rows=records.num_rows)
        if records.num_rows:
            takes_s = max(settings["batch_s"], records.num_rows * settings["row_s"])
            time.sleep(max(0.0, takes_s - (time.time() - began_at)))
        writer.write(batch_id, records, began_at, received_at)
        lost = pc.sum(records["lost"]).as_py() if "lost" in columns else None
        newest = pc.max(seconds(records["timestamp"])).as_py() if "timestamp" in columns else None
        tell("batch", batch=batch_id, rows=records.num_rows, lost=lost or 0, newest=newest)

    stopping = threading.Event()
    complete: bool | None = None  # None: not stopped, but ended
    query = (
        stream.writeStream.foreachBatch(sink)
        .options(**settings["writer_options"])
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(**settings["trigger"])
        .queryName(settings["name"])
        .start()
    )
    tell("started")

    def obey() -> None:
        while next(given) != "stop":
            pass
        stopping.set()
        nonlocal complete
        complete = stop_gracefully(query)

    obeying = threading.Thread(target=obey, daemon=True)
    obeying.start()
    try:
        query.awaitTermination()
    except Exception as error:
        if not stopping.is_set():
            tell("failed", error=str(error))
            raise
    if stopping.is_set():
        obeying.join()  # the planner is still leaving the group
    progress = [progress.json for progress in query.recentProgress[-3:]]
    # Spark forgets a query after its cleanup. If that fails, as in the last commit of a query with
    # asyncProgressTrackingEnabled whose planner has ended, the query stays listed under its name.
    tell("stopped", complete=complete, progress=progress, forgotten=not spark.streams.active)
    return stopping.is_set()


def main(settings: dict[str, Any]) -> None:
    """Run one query; with ``hold``, only after the first order."""
    spark = start_spark(settings)
    given = orders()
    if settings["hold"]:
        warm_up(spark)
        tell("ready")
        if next(given) == "stop":
            tell("stopped", progress=[])
            spark.stop()
            return
    run_query(spark, settings, given)
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
