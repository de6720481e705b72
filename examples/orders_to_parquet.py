"""Orders from Kafka to Parquet files, as a member of a consumer group.

    spark-submit examples/orders_to_parquet.py --bootstrap-servers broker:9092 --topic orders \
        --group-id orders-etl --checkpoint /data/orders/1/checkpoint --output /data/orders/1/files

An order is JSON: {"id": 17, "customer": "c-3", "amount": 12.5}. Any other value is also written,
but only as text.

Start a second instance, here or on another machine, with the same group but its own checkpoint and
output, and the two share the topic. SIGTERM to the process id that it prints, or Ctrl-C if it was
started with python, stops it between two batches: the other continues where it ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from threading import Event

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json, to_date

from pyspark_kafka_rebalance import progress, stop_gracefully

ORDER = "id BIGINT, customer STRING, amount DOUBLE"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Orders from Kafka to Parquet files.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group-id", required=True, help="shared by all that share the topic")
    parser.add_argument("--checkpoint", required=True, help="of this instance alone")
    parser.add_argument("--output", required=True, help="folder of this instance alone")
    parser.add_argument("--trigger-seconds", type=float, default=10.0, metavar="S")
    parser.add_argument("--max-offsets-per-trigger", type=int, default=1_000_000, metavar="N")
    parser.add_argument(
        "--kafka",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="more of the client's settings, as in: --kafka security.protocol=SSL",
    )
    return parser.parse_args(arguments)


def options_of(given: argparse.Namespace) -> dict[str, str]:
    more = (setting.partition("=") for setting in given.kafka)
    return {
        "kafka.bootstrap.servers": given.bootstrap_servers,
        "kafka.group.id": given.group_id,
        "subscribe": given.topic,
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(given.max_offsets_per_trigger),
        "checkpointLocation": given.checkpoint,
        **{f"kafka.{name}": value for name, _, value in more},
    }


def orders_of(records: DataFrame) -> DataFrame:
    text = col("value").cast("string")
    parsed = records.withColumns(
        {"parsed": from_json(text, ORDER), "text": text, "day": to_date("timestamp")}
    )
    return parsed.select("parsed.*", "text", "timestamp", "partition", "offset", "day")


def main() -> int:
    given = parse()
    spark = (
        SparkSession.builder.appName(f"{given.topic} to parquet")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .getOrCreate()
    )
    records = spark.readStream.format("kafka_deferred").options(**options_of(given)).load()
    query = (
        orders_of(records)
        .writeStream.queryName(given.group_id)
        .format("parquet")
        .option("path", given.output)
        .option("checkpointLocation", given.checkpoint)
        .partitionBy("day")
        .trigger(processingTime=f"{given.trigger_seconds:g} seconds")
        .start()
    )
    stop = Event()
    # Set after the session has started, as PySpark sets its own handler for Ctrl-C.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    print(f"query {query.id} runs; SIGTERM to {os.getpid()} stops it", flush=True)
    complete = True
    while not query.awaitTermination(1):  # raises the query's error, if it has one
        if stop.is_set():
            complete = stop_gracefully(query)
    print(progress(query), flush=True)
    spark.stop()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
