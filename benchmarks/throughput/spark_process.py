"""A warm Spark session in its own process that runs one query after the other."""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import orders, tell
from pyspark_kafka_rebalance.testing.local_spark import local_spark

from .floor import FloorDataSource

AGGREGATION = "aggregation"
NOOP = "noop"


def main(settings: dict[str, Any]) -> None:
    """Follow orders on standard input: a query as JSON, or "stop"."""
    logging.basicConfig(level=logging.WARNING)
    cores = settings["cores"]
    conf = {"spark.driver.memory": "2g", "spark.sql.shuffle.partitions": str(cores)}
    spark = local_spark(settings["name"], cores, {**conf, **settings["conf"]})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(FloorDataSource)
    tell("ready")
    for order in orders():
        if order == "stop":
            break
        given = json.loads(order)
        tell("ran", **(follow if "triggers" in given else run)(spark, **given))
    spark.stop()
    tell("stopped")


def run(spark: Any, format: str, options: dict[str, str], sink: str) -> dict[str, Any]:
    """Read the whole topic with AvailableNow; return the rows and times of triggers with rows.

    The first and the last of these are left out: in the first, the query joins the group or makes
    its first connections; in the last, Spark's built-in source waits for records past the end.
    """
    from pyspark.sql import functions as f

    frame = spark.readStream.format(format).options(**options).load()
    if sink == AGGREGATION:
        frame = frame.agg(f.count("*"), f.sum(f.length("value")), f.max("offset"))
    with tempfile.TemporaryDirectory() as checkpoint:
        began = time.monotonic()
        query = (
            frame.writeStream.format("noop")
            .outputMode("complete" if sink == AGGREGATION else "append")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        took_s = time.monotonic() - began
        progress = [json.loads(progress.json) for progress in query.recentProgress]
    filled = [one for one in progress if one["numInputRows"]]
    every_row = sum(one["numInputRows"] for one in filled)
    filled = filled[1:-1]
    return {
        "every_row": every_row,
        "rows": sum(one["numInputRows"] for one in filled),
        "seconds": sum(one["durationMs"]["triggerExecution"] for one in filled) / 1000,
        "query_seconds": took_s,
        "durations_ms": [one["durationMs"] for one in filled],
    }


def follow(spark: Any, format: str, options: dict[str, str], triggers: int) -> dict[str, Any]:
    """Run triggers back to back until ``triggers`` + 10 had rows; return all but the first ten."""
    frame = spark.readStream.format(format).options(**options).load()
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            frame.writeStream.format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(processingTime="0 seconds")
            .start()
        )
        found: dict[int, dict[str, Any]] = {}
        while len(found) < triggers + 10 and query.isActive:
            for one in query.recentProgress:
                if one.numInputRows:
                    found[one.batchId] = json.loads(one.json)
            time.sleep(0.5)
        query.stop()
    filled = [found[batch] for batch in sorted(found)][10:]
    return {
        "rows": [one["numInputRows"] for one in filled],
        "durations_ms": [one["durationMs"] for one in filled],
    }


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
