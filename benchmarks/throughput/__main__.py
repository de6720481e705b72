"""Rows per second into Spark, decoded by C or Python, compared with Spark's built-in Kafka source.

Each form has a warm Spark session in its own process; they take turns, so that other load on the
machine affects all of them. A figure is the rows of a query ÷ the time of its triggers
(``triggerExecution``), the median of several runs. Prints a table and a line of JSON, and draws.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.chart import bars
from benchmarks.machine import about_this_machine
from pyspark_kafka_rebalance.testing import KafkaCluster, kafka_from_environment
from pyspark_kafka_rebalance.testing.child_process import ChildProcess

from .forms import BUILT_IN, FLOOR, OURS, PURE, ran, spark
from .spark_process import AGGREGATION, NOOP
from .topics import fill

FORMS = {"ours": OURS, "pure": PURE, "floor": FLOOR, "built-in": BUILT_IN}
CODECS = ("none", "lz4", "zstd", "snappy", "gzip")
#: Rows per second ÷ those of Spark's built-in source.
GOAL, GOAL_GZIP = 1.5, 1.2
_PARTITIONS = 6
#: Triggers in a query; the last is half as large as the others.
_TRIGGERS = 4.5
#: Queries that each form runs before it is measured, so that the JVM has compiled its code.
_WARM_UPS = 2


def main() -> None:
    given = arguments()
    console = Console(width=110)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    figures: list[dict[str, Any]] = []
    with ExitStack() as stack:
        work = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(kafka_from_environment())
        sparks = {
            FORMS[form]: stack.enter_context(spark(FORMS[form], given.cores, work))
            for form in given.forms
        }
        for process in sparks.values():
            process.wait_for("ready")
        for size in given.sizes:
            for codec in given.codecs:
                topic = f"throughput-{codec}-{size}-{os.getpid()}"
                rows = given.megabytes * 1_000_000 // size
                console.print(f"{codec}, {size} bytes: writing {rows:,} records", highlight=False)
                fill(cluster, topic, _PARTITIONS, codec, size, rows, work)
                for sink in given.sinks:
                    what = {"codec": codec, "bytes": size, "sink": sink, "rows": rows}
                    figures += measure(console, cluster, sparks, topic, what, given.runs)
                cluster.delete_topic(topic)
        for process in sparks.values():
            process.stop()
    console.print(table(figures))
    if given.picture:
        draw(figures, given.picture)
        console.print(f"drawn: {given.picture}", highlight=False)
    print(json.dumps({"benchmark": "throughput", **about_this_machine(), "results": figures}))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--megabytes", type=int, default=800, help="of values in a topic")
    parser.add_argument("--codecs", type=words(CODECS), default=CODECS)
    parser.add_argument("--sizes", type=lambda text: [int(n) for n in text.split(",")])
    parser.add_argument("--sinks", type=words((NOOP, AGGREGATION)), default=(NOOP, AGGREGATION))
    parser.add_argument(
        "--forms",
        type=words(tuple(FORMS)),
        default=("ours", "pure", "built-in"),
        help="also floor: what no source in Python can be faster than",
    )
    parser.add_argument("--picture", type=Path, default=Path("artifacts/throughput.png"))
    parser.set_defaults(sizes=[100, 1_000])
    return parser.parse_args()


def words(allowed: tuple[str, ...]) -> Any:
    def parse(text: str) -> list[str]:
        chosen = text.split(",")
        if unknown := set(chosen) - set(allowed):
            raise argparse.ArgumentTypeError(f"{unknown.pop()!r}: choose of {', '.join(allowed)}")
        return chosen

    return parse


def measure(
    console: Console,
    cluster: KafkaCluster,
    sparks: dict[str, ChildProcess],
    topic: str,
    what: dict[str, Any],
    runs: int,
) -> list[dict[str, Any]]:
    """Warm up each form, then measure the runs, the forms taking turns."""
    rates: dict[str, list[float]] = {form: [] for form in sparks}
    rows: set[int] = set()
    options = {
        "startingOffsets": "earliest",
        "maxOffsetsPerTrigger": str(int(what["rows"] / _TRIGGERS)),
    }
    for run in range(_WARM_UPS + runs):
        for form, process in sparks.items():
            given = {**options, "valueBytes": str(what["bytes"])} if form == FLOOR else options
            measured = ran(
                process, form, cluster.bootstrap_servers, topic, given, sink=what["sink"]
            )
            rows.add(measured["every_row"])
            if run >= _WARM_UPS:
                rates[form].append(measured["rows"] / measured["seconds"])
    if rows != {what["rows"]}:
        raise RuntimeError(f"{topic} has {what['rows']} rows, and {rows} were read")
    base = median(rates[BUILT_IN]) if BUILT_IN in rates else None
    found = [
        {
            **what,
            "form": form,
            "rows_per_second": round(median(rate)),
            "of_runs": [round(one) for one in rate],
            "ratio": round(median(rate) / base, 2) if base else None,
        }
        for form, rate in rates.items()
    ]
    for one in found:
        line = f"  {one['sink']}, {one['form']}: {one['rows_per_second']:,} rows/s"
        console.print(f"{line}, {one['ratio']} of the built-in", highlight=False)
    return found


def table(figures: list[dict[str, Any]]) -> Table:
    forms = list(dict.fromkeys(one["form"] for one in figures))
    made = Table(title="rows a second, and ÷ Spark's built-in source", box=SIMPLE_HEAD)
    for column in ("codec", "bytes", "sink"):
        made.add_column(column)
    for form in forms:
        made.add_column(form, justify="right")
    made.add_column("goal", justify="right")
    places = dict.fromkeys((one["codec"], one["bytes"], one["sink"]) for one in figures)
    for codec, size, sink in places:
        here = {
            one["form"]: one
            for one in figures
            if (one["codec"], one["bytes"], one["sink"]) == (codec, size, sink)
        }
        cells = [
            f"{here[form]['rows_per_second']:,}"
            + (f"  {here[form]['ratio']:.2f}" if here[form]["ratio"] else "")
            for form in forms
        ]
        goal = GOAL_GZIP if codec == "gzip" else GOAL
        made.add_row(codec, str(size), sink, *cells, f"≥ {goal}")
    return made


def draw(figures: list[dict[str, Any]], path: Path) -> None:
    """Draw a panel per sink and size, in it a group of bars per codec and a bar per form."""
    panels: dict[str, dict[str, list[float]]] = {}
    for one in figures:
        panel = panels.setdefault(f"{one['sink']}, records of {one['bytes']:,} bytes", {})
        panel.setdefault(one["form"], []).append(one["rows_per_second"] / 1e6)
    codecs = list(dict.fromkeys(one["codec"] for one in figures))
    bars(path, "million rows a second", codecs, panels)


if __name__ == "__main__":
    main()
