"""What a user of Spark Connect runs who catches up: URL OPTIONS FOLDER RECORDS.

Until the table has so many records; then it stops gracefully, and tells whether gaps were left.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance import progress, stop_gracefully

PATIENCE_S = 240.0


def main(url: str, options: str, rows: str, records: str) -> None:
    spark = SparkSession.builder.remote(url).getOrCreate()
    frame = spark.readStream.format("kafka_deferred").options(**json.loads(options)).load()
    query = (
        frame.writeStream.format("parquet")
        .option("path", rows)
        .option("checkpointLocation", f"{rows}.checkpoint")
        .trigger(processingTime="0 seconds")
        .start()
    )
    deadline = time.monotonic() + PATIENCE_S
    while records_in(Path(rows)) < int(records):
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, progress(query)
        time.sleep(0.2)
    assert stop_gracefully(query, timeout_s=PATIENCE_S)
    print("catches up:", progress(query).catch_up_lag > 0)
    spark.stop()


def records_in(rows: Path) -> int:
    try:
        return sum(pq.read_metadata(file).num_rows for file in rows.glob("*.parquet"))
    except pa.ArrowInvalid:  # one is being written
        return 0


if __name__ == "__main__":
    main(*sys.argv[1:])
