"""The cost of a trigger in the planner (latestOffset, partitions, commit) by number of partitions.

Every partition gets a record before each trigger, so that all of them are planned, handed out and
committed. Spark's own part (the socket, the WAL) is not included. Prints a table and a line of
JSON, and draws.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.source.group.logs.log_ends import END_OFFSETS_MAX_AGE_S
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader
from pyspark_kafka_rebalance.testing import LocalKafka

from .chart import lines
from .machine import about_this_machine

#: For 1,000 partitions.
GOAL_MS = 15.0
_PER_TOPIC = 1_000
_PARTS = ("latestOffset", "partitions", "commit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="10,100,1000,10000")
    parser.add_argument("--triggers", type=int, default=20)
    parser.add_argument("--picture", type=Path, default=Path("artifacts/control.png"))
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    console = Console(width=100)
    figures = []
    for partitions in map(int, given.partitions.split(",")):
        console.print(f"{partitions:,} partitions", highlight=False)
        figures.append(measure(partitions, given.triggers))
    table = Table(title="a trigger in the planner, medians in ms", box=SIMPLE_HEAD)
    for column in ("partitions", *_PARTS, "together", "per 1,000", "offset in JSON"):
        table.add_column(column, justify="right")
    for one in figures:
        table.add_row(
            f"{one['of_partitions']:,}",
            *(f"{one[part]:.2f}" for part in _PARTS),
            f"{one['together']:.2f}",
            f"{one['together'] / one['of_partitions'] * 1_000:.1f}",
            f"{one['offset_bytes']:,} B",
        )
    console.print(table)
    console.print(f"goal for 1,000 partitions: ≤ {GOAL_MS:g} ms", highlight=False)
    lines(
        given.picture,
        "latestOffset + partitions + commit",
        "partitions",
        "ms",
        {
            "measured": [(one["of_partitions"], one["together"]) for one in figures],
            "goal": [(1_000, GOAL_MS), (10_000, 10 * GOAL_MS)],
        },
    )
    console.print(f"drawn: {given.picture}", highlight=False)
    print(json.dumps({"benchmark": "control", **about_this_machine(), "results": figures}))


def measure(partitions: int, triggers: int) -> dict[str, Any]:
    """Measure on a new broker, as this many partitions would slow down later measurements."""
    with LocalKafka(broker_config={"log.flush.interval.messages": 10**9}) as kafka:
        # A controller creates at most 10,000 partitions at once.
        sizes = [min(_PER_TOPIC, left) for left in range(partitions, 0, -_PER_TOPIC)]
        topics = {f"control-{n}": size for n, size in enumerate(sizes)}
        for topic, size in topics.items():
            kafka.create_topic(topic, partitions=size)
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0}
        )

        def produce() -> None:
            for topic, size in topics.items():
                for partition in range(size):
                    producer.produce(topic, b"value", partition=partition)
                producer.poll(0)
            producer.flush()

        produce()
        reader = KafkaDeferredStreamReader(
            SourceOptions.parse(
                {
                    "kafka.bootstrap.servers": kafka.bootstrap_servers,
                    "kafka.group.id": "control",
                    "subscribe": ",".join(topics),
                    "startingOffsets": "earliest",
                },
                default_readers=2,
            )
        )
        try:
            return of_triggers(reader, partitions, triggers, produce)
        finally:
            reader.stop()


def of_triggers(
    reader: KafkaDeferredStreamReader, partitions: int, triggers: int, produce: Any
) -> dict[str, Any]:
    took: dict[str, list[float]] = {part: [] for part in (*_PARTS, "together")}
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    reader.partitions(start, end)
    size = 0
    for _ in range(triggers):
        reader.commit(end)
        start = end
        produce()
        time.sleep(END_OFFSETS_MAX_AGE_S)  # otherwise the broker would not be asked
        marks = [time.perf_counter()]
        end = reader.latestOffset(start, ReadMaxRows(2**62))
        marks.append(time.perf_counter())
        tasks = reader.partitions(start, end)
        marks.append(time.perf_counter())
        reader.commit(end)
        marks.append(time.perf_counter())
        planned = sum(len(one.range) for task in tasks for one in task.value.ranges)
        if planned != partitions:
            raise RuntimeError(f"{planned} records of {partitions} were planned")
        for part, (began, ended) in zip(_PARTS, pairwise(marks), strict=True):
            took[part].append((ended - began) * 1_000)
        took["together"].append((marks[-1] - marks[0]) * 1_000)
        size = len(json.dumps(end))
    medians = {part: round(median(values), 3) for part, values in took.items()}
    return {"of_partitions": partitions, "triggers": triggers, **medians, "offset_bytes": size}


if __name__ == "__main__":
    main()
