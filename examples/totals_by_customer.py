"""Totals of each customer's orders, kept in Spark's state and written out when a partition moves.

    spark-submit examples/totals_by_customer.py --bootstrap-servers broker:9092 --topic orders \
        --group-id order-totals --checkpoint /data/totals/1/checkpoint --output /data/totals/1/files

An order is JSON: {"id": 17, "customer": "c-3", "amount": 12.5}. All instances have the same group;
each has its own checkpoint and output. Each adds up the orders of its partitions, and writes the
totals as Parquet after --flush-seconds at the latest. When the group wants a partition back, its
totals are written before it moves. So the files of all instances add up:

    SELECT customer, sum(orders), sum(amount) FROM … GROUP BY customer

What to know about state in a shared group: docs/stateful-queries.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

ORDER = "customer STRING, amount DOUBLE"
TOTAL = "topic STRING, partition INT, customer STRING, orders BIGINT, amount DOUBLE"
#: The number and sum of orders by customer, as JSON, and when the first of them came.
STATE = "totals STRING, since_ms BIGINT"

#: After these events the partition belongs to another member, as far as this query knows.
GOING = ("revoke_requested", "lost")


def totals_of(records: DataFrame, flush_seconds: float) -> DataFrame:
    """Totals of records read with ``includeRebalanceEvents``.

    Keyed by partition, not by customer, because a rebalance moves partitions.
    """
    flush_ms = int(flush_seconds * 1000)

    def add_up(
        key: tuple[str, int], frames: Iterator[pd.DataFrame], state: GroupState
    ) -> Iterator[pd.DataFrame]:
        now_ms = state.getCurrentProcessingTimeMs()
        kept, since_ms = state.get if state.exists else ("{}", now_ms)
        totals: dict[str, list[float]] = json.loads(kept)
        goes = False
        for frame in frames:  # none if the state has timed out
            goes = goes or bool(frame["event"].isin(GOING).any())
            for customer, amounts in frame.groupby("customer")["amount"]:
                count, amount = totals.get(str(customer), (0, 0.0))
                totals[str(customer)] = [count + len(amounts), amount + float(amounts.sum())]
        if not totals:
            return
        left_ms = since_ms + flush_ms - now_ms
        if not goes and left_ms > 0:
            state.update((json.dumps(totals), since_ms))
            state.setTimeoutDuration(left_ms)
            return
        if state.exists:
            state.remove()
        yield pd.DataFrame(
            [(*key, customer, int(count), amount) for customer, (count, amount) in totals.items()],
            columns=["topic", "partition", "customer", "orders", "amount"],
        )

    # Lost records are left out: another member committed them, and has them in its totals.
    mine = records.where(col("event").isNotNull() | ~col("lost"))
    parsed = mine.withColumn("order", from_json(col("value").cast("string"), ORDER))
    return (
        parsed.select("topic", "partition", "event", "order.*")
        .groupBy("topic", "partition")
        .applyInPandasWithState(
            add_up, TOTAL, STATE, "append", GroupStateTimeout.ProcessingTimeTimeout
        )
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Totals of each customer's orders.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--group-id", required=True, help="shared by all that share the topic")
    parser.add_argument("--checkpoint", required=True, help="of this instance alone")
    parser.add_argument("--output", required=True, help="folder of this instance alone")
    parser.add_argument("--flush-seconds", type=float, default=60.0, metavar="S")
    given = parser.parse_args(arguments)
    spark = (
        SparkSession.builder.appName(f"totals of {given.topic}")
        .config("spark.python.unix.domain.socket.enabled", "true")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    records = (
        spark.readStream.format("kafka_deferred")
        .option("kafka.bootstrap.servers", given.bootstrap_servers)
        .option("kafka.group.id", given.group_id)
        .option("subscribe", given.topic)
        .option("startingOffsets", "earliest")
        .option("includeRebalanceEvents", "true")
        .option("checkpointLocation", given.checkpoint)
        .load()
    )
    query = (
        totals_of(records, given.flush_seconds)
        .writeStream.format("parquet")
        .option("path", given.output)
        .option("checkpointLocation", given.checkpoint)
        .trigger(processingTime="1 second")
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main()
