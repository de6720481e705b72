"""What a user of Spark Connect runs: connect_client.py URL OPTIONS OPTIONS_OF_A_STREAM FOLDER.

Of this package nothing but stop_gracefully is imported here: the rest only the server needs.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

PATIENCE_S = 120.0


def main(url: str, options: str, options_of_a_stream: str, folder: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    given = json.loads(options)
    query = start(load(spark, given), Path(folder, "rows"), availableNow=True)
    assert query.awaitTermination(PATIENCE_S), "the query did not end"
    assert query.exception() is None, query.exception()
    try:
        frames = spark.readStream.format("kafka_deferred").options(**given)
        print(frames.option("readers", "none").load().schema)
    except AnalysisException as error:
        print(error)
    stop_in_mid_stream(spark, json.loads(options_of_a_stream), Path(folder, "streamed"))
    spark.stop()


def load(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    return spark.readStream.format("kafka_deferred").options(**options).load()


def start(frame: DataFrame, rows: Path, **trigger: object) -> StreamingQuery:
    return (
        frame.writeStream.format("parquet")
        .option("path", str(rows))
        .option("checkpointLocation", f"{rows}.checkpoint")
        .trigger(**trigger)
        .start()
    )


def stop_in_mid_stream(spark: SparkSession, options: dict[str, str], rows: Path) -> None:
    """Stop a query gracefully while it reads, and print how that went."""
    from pyspark_kafka_rebalance import stop_gracefully  # not installed where it is not used

    frame = load(spark, options)
    query = start(frame, rows, processingTime="0 seconds")
    deadline = time.monotonic() + PATIENCE_S
    while not any(rows.glob("*.parquet")):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "it does not read"
        time.sleep(0.05)
    second = start(frame, rows.with_name("second"), processingTime="0 seconds")
    try:
        second.awaitTermination(PATIENCE_S)
    except StreamingQueryException as error:
        print(error)
    print("stopped gracefully:", stop_gracefully(query, timeout_s=PATIENCE_S))


if __name__ == "__main__":
    main(*sys.argv[1:])
