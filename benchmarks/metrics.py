"""What OpenTelemetry's metrics cost a consumer: processor time per record, with and without them.

One consumer reads the same records of twelve partitions on one broker over and over; it is observed
in every other round. The cost is that of the calls to the observer, for each kind of call their
number times their median, relative to the processor time of the rounds without an observer. To that
it adds the collections on the SDK's thread, one every ten seconds. It also shows how much longer an
observed round takes than the round next to it, but on a busy machine that says more about the
machine. Prints a table and one line of JSON; exits with 1 if the goal is missed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable
from statistics import median, quantiles
from typing import Any

from confluent_kafka import Producer
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance import DeferredRevokeConsumer, PollResult
from pyspark_kafka_rebalance.consumer.offsets.found_records import count
from pyspark_kafka_rebalance.metrics import observe
from pyspark_kafka_rebalance.testing import LocalKafka

from .machine import about_this_machine

#: The highest cost, as a share of the processor time of a consumer without an observer.
GOAL = 0.01
PARTITIONS = 12
COLLECTED_EVERY_S = 10.0
_TOPIC = "measured"

Poll = Callable[[DeferredRevokeConsumer], PollResult]

#: The ways to read: a name, the records in a round, and the poll.
FORMS: tuple[tuple[str, int, Poll], ...] = (
    ("poll, 500 records", 40_000, lambda consumer: consumer.poll_with_rebalance(1_000, 500)),
    ("poll, 50 records", 20_000, lambda consumer: consumer.poll_with_rebalance(1_000, 50)),
    ("poll_arrow", 400_000, lambda consumer: consumer.poll_arrow(1_000)),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30, help="of either kind")
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    with LocalKafka() as kafka:
        fill(kafka, max(records for _, records, _ in FORMS))
        consumer = DeferredRevokeConsumer(
            _TOPIC,
            group_id="measured",
            bootstrap_servers=kafka.bootstrap_servers,
            auto_offset_reset="earliest",
        )
        while len(consumer.assignment()) < PARTITIONS:
            consumer.poll(timeout_ms=100)
        reader = InMemoryMetricReader()
        provider = MeterProvider([reader])
        figures = []
        for name, records, poll in FORMS:
            figures.append(measured(name, records, poll, consumer, provider, reader, given.rounds))
        consumer.close()
    show(figures)
    print(json.dumps({"figures": figures, "on": about_this_machine()}))
    sys.exit(any(figure["share"] > GOAL for figure in figures))


def measured(
    name: str,
    records: int,
    poll: Poll,
    consumer: DeferredRevokeConsumer,
    provider: MeterProvider,
    reader: InMemoryMetricReader,
    rounds: int,
) -> dict[str, Any]:
    """Measure one way to poll: processor time per record, and what an observer adds to it."""
    for _ in range(2):
        round_of(consumer, poll, records)
    absent, present, collections = [], [], []
    timed = TimedObserver()
    for number in range(rounds):
        for observed in (False, True) if number % 2 else (True, False):
            if not observed:
                absent.append(round_of(consumer, poll, records))
                continue
            with observe(consumer, provider):
                present.append(round_of(consumer, poll, records))
                began = time.thread_time()
                reader.get_metrics_data()
                collections.append(time.thread_time() - began)
    with observe(consumer, provider):
        timed.observer, consumer._observed.by = consumer._observed.by, timed
        for _ in range(3):
            round_of(consumer, poll, records)
        consumer._observed.by = timed.observer
    added = [after / before - 1 for before, after in zip(absent, present, strict=True)]
    calls_s = sum(len(took) * median(took) for took in timed.took_s.values()) / (3 * records)
    collection_s = median(collections)
    calls = calls_s / median(absent)
    return {
        "what": name,
        "us_per_record": median(absent) * 1e6,
        "us_per_call": {name: median(took) * 1e6 for name, took in timed.took_s.items()},
        "calls": calls,
        "rounds": quantiles(added, n=4),
        "collection_ms": collection_s * 1e3,
        "share": calls + collection_s / COLLECTED_EVERY_S,
    }


class TimedObserver:
    """Passes calls on to an observer, and records how long they take."""

    def __init__(self) -> None:
        self.observer: Any = None
        self.took_s: dict[str, list[float]] = {}

    def __getattr__(self, name: str) -> Callable[..., None]:
        told, took_s = getattr(self.observer, name), self.took_s.setdefault(name, [])

        def tell(*arguments: Any) -> None:
            began = time.perf_counter()
            told(*arguments)
            took_s.append(time.perf_counter() - began)

        return tell


def round_of(consumer: DeferredRevokeConsumer, poll: Poll, records: int) -> float:
    """Read this many records from the beginning; return the processor time per record."""
    consumer.seek_to_beginning()
    began, read = time.process_time(), 0
    while read < records:
        read += sum(count(found) for found in poll(consumer).records.values())
    return (time.process_time() - began) / read


def fill(kafka: LocalKafka, records: int) -> None:
    """Make a topic of records of 100 bytes, the same in each partition."""
    kafka.create_topic(_TOPIC, partitions=PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50})
    for number in range(records + PARTITIONS):
        if number % 10_000 == 0:
            producer.flush()  # else its queue would be full
        producer.produce(_TOPIC, b"x" * 100, partition=number % PARTITIONS)
    producer.flush()


def show(figures: list[dict[str, Any]]) -> None:
    table = Table(box=SIMPLE_HEAD, title="What being observed costs")
    for heading in ("", "µs a record", "calls", "a collection", "together", "rounds: quartiles"):
        table.add_column(heading, justify="right" if heading else "left")
    for each in figures:
        table.add_row(
            each["what"],
            f"{each['us_per_record']:.2f}",
            f"{each['calls']:.2%}",
            f"{each['collection_ms']:.1f} ms",
            f"{each['share']:.2%}",
            ", ".join(f"{more:+.1%}" for more in each["rounds"]),
        )
    Console(width=120).print(table)
    print(f"goal: at most {GOAL:.0%} together, with a collection every {COLLECTED_EVERY_S:.0f} s")


if __name__ == "__main__":
    main()
