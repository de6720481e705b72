"""A Spark query in its own process, which logs the offsets of its batches.

Orders: "go" starts the query, "stop" ends it.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import orders, tell
from pyspark_kafka_rebalance.testing.local_spark import local_spark

from .runs import RunLog


def main(settings: dict[str, Any]) -> None:
    """Run the query from "go" until "stop"."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s %(message)s")
    spark = local_spark(settings["name"], 2, settings["conf"])
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(2).toArrow()  # warms up: the first job of a JVM is slow
    given = orders()
    tell("ready")
    if next(given) != "go":
        return
    log = RunLog(Path(settings["log"]))
    query = start(spark, settings, log)

    def obey() -> None:
        while next(given) != "stop":
            pass
        query.stop()

    threading.Thread(target=obey, daemon=True).start()
    query.awaitTermination()
    tell("stopped", triggers=[trigger_of(progress) for progress in query.recentProgress])
    spark.stop()


def start(spark: Any, settings: dict[str, Any], log: RunLog) -> Any:
    """Start the query; its sink reads every row once, and counts in Spark."""
    from pyspark.sql import functions as f

    frame = spark.readStream.format(settings["format"]).options(**settings["options"]).load()
    kinds = ["partition", *(name for name in frame.columns if name == "catch_up")]

    def sink(batch: Any, batch_id: int) -> None:
        offsets = (f.count("*"), f.min("offset"), f.max("offset"), f.max("timestamp"))
        found = batch.groupBy(*kinds).agg(*offsets).collect()
        at = time.time()
        if not found:
            return
        for row in found:
            rows, first, last = row[-4:-1]
            if last - first + 1 == rows:
                log.write(batch_id, row[0], range(first, last + 1))
            else:  # the offsets are several ranges
                one = batch.where(f.col("partition") == row[0])
                if len(kinds) > 1:
                    one = one.where(f.col("catch_up") == row[1])
                log.write(
                    batch_id, row[0], [o for (o,) in one.select("offset").sort("offset").collect()]
                )
        newest_s = max(row[-1].timestamp() for row in found)
        caught_up = sum(row[-4] for row in found if len(kinds) > 1 and row[1])
        tell(
            "batch",
            batch=batch_id,
            done_at=at,
            newest_s=newest_s,
            rows=sum(row[-4] for row in found),
            caught_up=caught_up,
        )

    return (
        frame.writeStream.foreachBatch(sink)
        .option("checkpointLocation", settings["checkpoint"])
        .trigger(processingTime="0 seconds")
        .start()
    )


def trigger_of(progress: Any) -> dict[str, Any]:
    began = datetime.fromisoformat(progress.timestamp.replace("Z", "+00:00"))
    return {
        "batch": progress.batchId,
        "began_at": began.timestamp(),
        "rows": progress.numInputRows,
        "took_s": progress.durationMs["triggerExecution"] / 1000,
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
