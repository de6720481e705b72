"""How long a small micro-batch takes, compared with Spark's built-in source, and its parts.

A few records come every 100 ms; Spark triggers as fast as it can. Each form has a Spark session in
its own process, and they take turns. The parts are Spark's own ``durationMs``; ``addBatch`` is
planning the read, and running the tasks and their Python workers. Prints a table and a line of
JSON, and draws.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from confluent_kafka import Producer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka

from .chart import bars
from .machine import about_this_machine
from .throughput.forms import BUILT_IN, OURS, ran, spark

GOAL = 1.5
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
_PARTITIONS = 6
_EVERY_S = 0.1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--triggers", type=int, default=60, help="to measure, in each run")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--records", default="1,1000", help="every 100 ms")
    parser.add_argument("--picture", type=Path, default=Path("artifacts/latency.png"))
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=130)
    figures = []
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kafka = stack.enter_context(LocalKafka())
        sparks = {form: stack.enter_context(spark(form, 2, work)) for form in (OURS, BUILT_IN)}
        for process in sparks.values():
            process.wait_for("ready")
        for records in map(int, given.records.split(",")):
            console.print(f"{records} records every 100 ms", highlight=False)
            figures += measure(kafka, sparks, records, given.triggers, given.runs)
        for process in sparks.values():
            process.stop()
    console.print(table(figures))
    bars(
        given.picture,
        "ms (median)",
        ["trigger", *PARTS],
        {
            "A micro-batch of few records": {
                f"{one['form']}, {one['records']} records": [
                    one["trigger_ms"],
                    *(one["parts_ms"][part] for part in PARTS),
                ]
                for one in figures
            }
        },
    )
    console.print(f"drawn: {given.picture}", highlight=False)
    print(json.dumps({"benchmark": "latency", **about_this_machine(), "results": figures}))


def measure(
    kafka: LocalKafka, sparks: dict[str, Any], records: int, triggers: int, runs: int
) -> list[dict[str, Any]]:
    parts: dict[str, dict[str, list[float]]] = {form: defaultdict(list) for form in sparks}
    topic = f"latency-{records}"
    kafka.create_topic(topic, partitions=_PARTITIONS)
    for _ in range(runs):
        for form, process in sparks.items():
            options = {"startingOffsets": "latest"}
            with steady_input(kafka, topic, records):
                measured = ran(
                    process, form, kafka.bootstrap_servers, topic, options, triggers=triggers
                )
            for durations in measured["durations_ms"]:
                for part in (*PARTS, "triggerExecution"):
                    parts[form][part].append(durations.get(part, 0))
    base = median(parts[BUILT_IN]["triggerExecution"])
    return [
        {
            "form": form,
            "records": records,
            "triggers": len(of_form["triggerExecution"]),
            "trigger_ms": median(of_form["triggerExecution"]),
            "ratio": round(median(of_form["triggerExecution"]) / base, 2),
            "parts_ms": {part: median(of_form[part]) for part in PARTS},
        }
        for form, of_form in parts.items()
    ]


@contextmanager
def steady_input(kafka: LocalKafka, topic: str, records: int) -> Iterator[None]:
    """Write this many records every 100 ms, over all partitions."""
    ended = threading.Event()

    def run() -> None:
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0, "log_level": 0}
        )
        while not ended.wait(_EVERY_S):
            for n in range(records):
                producer.produce(topic, bytes(100), partition=n % _PARTITIONS)
            producer.flush()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def table(figures: list[dict[str, Any]]) -> Table:
    made = Table(title="a micro-batch, medians in ms", box=SIMPLE_HEAD)
    made.add_column("records")
    made.add_column("source", no_wrap=True)
    for column in ("trigger", "÷ built-in", "goal", *PARTS):
        made.add_column(column, justify="right")
    for one in figures:
        made.add_row(
            str(one["records"]),
            one["form"],
            f"{one['trigger_ms']:.0f}",
            f"{one['ratio']:.2f}",
            f"≤ {GOAL}",
            *(f"{one['parts_ms'][part]:.0f}" for part in PARTS),
        )
    return made


if __name__ == "__main__":
    main()
