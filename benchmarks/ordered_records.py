"""The cost of timestamp order for the client: rows per second with and without it.

The timestamps of twelve partitions on one broker alternate with some disorder, so that almost every
row comes from another partition than the row before. Compares ``poll_arrow``, ``poll`` and the
iteration of a ``DeferredRevokeConsumer`` with those of ``TimestampOrderedRecords`` over it. The
first figure is only the merge, of record batches in memory. Figures are rows ÷ CPU time of the
whole process, and rows ÷ elapsed time. Prints a table and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import pyarrow as pa
from confluent_kafka import Producer
from kafka.structs import TopicPartition
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance import DeferredRevokeConsumer, TimestampOrderedRecords
from pyspark_kafka_rebalance.consumer.ordered.arrow_merge import ArrowGroup, merged
from pyspark_kafka_rebalance.consumer.ordered.idling import Idling
from pyspark_kafka_rebalance.fetch.columns import record_schema
from pyspark_kafka_rebalance.testing import LocalKafka

from .machine import about_this_machine

#: Rows per second and core of the merge.
GOAL_ROWS_PER_SECOND = 300_000
PARTITIONS = 12
_TOPIC = "ordered"
_BEGAN_MS = 1_700_000_000_000
_DISORDER_MS = 30
_FETCHED_ROWS = 10_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_200_000, help="in the topic")
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    figures = [measured("merge alone, Arrow", lambda: merge_alone(given.bytes), given.runs)]
    with LocalKafka() as kafka:
        fill(kafka, given.rows, given.bytes)
        servers = kafka.bootstrap_servers
        # One object per record is slow, and fewer records give the same figures.
        few = given.rows // 10
        for form, rows, read in (
            ("poll_arrow", given.rows, plain_arrow),
            ("poll_arrow in order", given.rows, ordered_arrow),
            ("poll", few, plain_records),
            ("poll in order", few, ordered_records),
            ("iteration", few, plain_iteration),
            ("iteration in order", few, ordered_iteration),
        ):
            again = partial(lambda read, rows: in_all(read(servers), rows), read, rows)
            figures.append(measured(form, again, given.runs))
    report(Console(width=140), figures)
    print(json.dumps({"about": about_this_machine(), "figures": figures}))


def measured(form: str, read: Callable[[], int], runs: int) -> dict[str, Any]:
    """Medians over ``runs`` runs, after one run that is not counted."""
    cpu, wall = [], []
    for run in range(runs + 1):
        cpu_began, began = time.process_time(), time.perf_counter()
        rows = read()
        if run:
            cpu.append(rows / (time.process_time() - cpu_began))
            wall.append(rows / (time.perf_counter() - began))
    return {
        "form": form,
        "rows_per_second_and_core": round(median(cpu)),
        "rows_per_second": round(median(wall)),
    }


def timestamp_of(place: int, rng: random.Random) -> int:
    return _BEGAN_MS + place + rng.randrange(-_DISORDER_MS, _DISORDER_MS)


def fill(kafka: LocalKafka, rows: int, size: int) -> None:
    kafka.create_topic(_TOPIC, PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    value, rng = b"v" * size, random.Random(1)
    for place in range(rows):
        stamp = timestamp_of(place, rng)
        while True:
            try:
                producer.produce(_TOPIC, value, partition=place % PARTITIONS, timestamp=stamp)
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def merge_alone(size: int, rounds: int = 10) -> int:
    """Merge rows of every partition, in batches as fetches return them; return their number."""
    group, rows = ArrowGroup(Idling(0)), 0
    partitions = [TopicPartition(_TOPIC, n) for n in range(PARTITIONS)]
    for partition in partitions:
        group.add(partition, now=0)
    for fetched in fetches(size):
        for _ in range(rounds):
            for partition, batch in zip(partitions, fetched, strict=True):
                group.extend(partition, [batch])
                group.idling.answered(partition, 1, now=0)
            while taken := group.take(100_000, now=0):
                rows += merged(taken, include_headers=False).num_rows
            for partition in partitions:
                group.clear(partition, now=0)
    return rows


_MADE: list[pa.RecordBatch] = []


def fetches(size: int) -> Iterator[list[pa.RecordBatch]]:
    """One fetched record batch per partition; made once."""
    schema, rng = record_schema(False), random.Random(1)
    while len(_MADE) < PARTITIONS:
        number = len(_MADE)
        offsets = range(_FETCHED_ROWS)
        stamps = [timestamp_of(at * PARTITIONS + number, rng) * 1_000 for at in offsets]
        columns = [
            pa.nulls(_FETCHED_ROWS, pa.binary()),
            pa.array([b"v" * size] * _FETCHED_ROWS),
            pa.array(offsets, pa.int64()),
            pa.array(stamps, pa.int64()).cast(schema.field("timestamp").type),
            pa.array([0] * _FETCHED_ROWS, pa.int32()),
        ]
        _MADE.append(pa.RecordBatch.from_arrays(columns, schema=schema))
    yield _MADE


def in_all(counts: Iterator[int], rows: int) -> int:
    found = 0
    for count in counts:
        found += count
        if found >= rows:
            break
    return found


def consumer_of(servers: str) -> DeferredRevokeConsumer:
    consumer = DeferredRevokeConsumer(
        bootstrap_servers=servers, group_id="bench", auto_offset_reset="earliest"
    )
    consumer.assign([TopicPartition(_TOPIC, n) for n in range(PARTITIONS)])
    return consumer


def plain_arrow(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        while True:
            found = consumer.poll_arrow(timeout_ms=1_000).records
            yield sum(batch.num_rows for batches in found.values() for batch in batches)


def ordered_arrow(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
        while True:
            yield ordered.poll_arrow(timeout_ms=1_000).records.num_rows


def plain_records(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        while True:
            yield sum(map(len, consumer.poll(timeout_ms=1_000).values()))


def ordered_records(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        ordered = TimestampOrderedRecords(consumer, max_task_idle_ms=0)
        while True:
            yield len(ordered.poll(timeout_ms=1_000).records)


def plain_iteration(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        for _ in consumer:
            yield 1


def ordered_iteration(servers: str) -> Iterator[int]:
    with consumer_of(servers) as consumer:
        for _ in TimestampOrderedRecords(consumer, max_task_idle_ms=0):
            yield 1


def report(console: Console, figures: list[dict[str, Any]]) -> None:
    table = Table(title=f"{PARTITIONS} partitions, timestamps that take turns", box=SIMPLE_HEAD)
    table.add_column("form")
    table.add_column("rows/s a core", justify="right")
    table.add_column("rows/s", justify="right")
    for one in figures:
        table.add_row(
            one["form"], f"{one['rows_per_second_and_core']:,}", f"{one['rows_per_second']:,}"
        )
    console.print(table)
    merge = figures[0]["rows_per_second_and_core"]
    console.print(
        f"the merge alone: {merge:,} rows/s a core, goal ≥ {GOAL_ROWS_PER_SECOND:,}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
