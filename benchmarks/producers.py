"""The cost of a producer group, and of a rebalance for its members.

Throughput: records per second of ``send`` and ``send_batch``, kafka-python, confluent-kafka and
Java's performance test, each in a process of its own. One source partition, one topic of six
partitions, one broker. Each form sends the same records for the same time, in transactions of the
same length; the forms take turns, and ratios are taken within a round. The others commit no restart
points.

Hand-over: members in their own processes share twelve source partitions, join and leave. Measures
the time from the old owner's last commit of a source partition to the new owner's first record, and
the longest silence of source partitions that stay, compared with that in the calm before.

Connect: lines of a file by a producer group, and by Kafka Connect's file source with exactly-once
support. Only if asked for: it fetches Connect's jars.

Prints tables and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import uuid
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka

from .connect.report import compare_paces, compare_silences
from .machine import about_this_machine
from .producer_forms import BATCH_BYTES, FORMS, LINGER_MS, Figures, Task, run
from .producer_hand_overs import PROTOCOLS, HandOvers, measured_hand_overs

#: One form, another, and how many times as fast it must be.
GOALS = (
    ("send", "kafka-python", 6.0),
    ("send_batch", "confluent-kafka", 1.0),
    ("send_batch", "confluent-kafka produce_batch", 1.0),
    ("send_batch", "perf-test", 1.0),
)
#: The columns of a table with their digits; those with -1 are shown in another way.
_COLUMNS = {
    "records_per_s": -1,
    "cpu_us": 2,
    "broker_cpu_us": 2,
    "commit_ms": 0,
    "peak_mib": 0,
}
PARTITIONS = 6
#: The median hand-over in heartbeat intervals.
GOAL_HAND_OVER = 1.3
#: The longest silence during a rebalance, as a multiple of that before.
GOAL_SILENCE = 2.0
_LONG_MS, _SHORT_MS = 1_000, 100
#: Figures of large files are of no use to anyone after their run.
_BROKER = {
    "log.segment.delete.delay.ms": 100,
    "log.segment.bytes": 100_000_000,
    "log.retention.bytes": 500_000_000,
    "log.retention.check.interval.ms": 5_000,
}
#: The heap and collector of kafka-server-start.sh.
_JAVA = ("-Xmx1G", "-Xms1G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--what",
        choices=("throughput", "hand-overs", "connect", "connect-hand-overs"),
        action="append",
        help="may be repeated; default: the first two",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--bytes", type=int, nargs="+", default=[100, 1_000], help="of a value")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=list(FORMS))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument(
        "--lines", type=int, default=4_000_000, help="of the file, which grows if that is too few"
    )
    parser.add_argument("--folder", help="of the broker; by default a temporary one")
    given = parser.parse_args()
    what = given.what or ["throughput", "hand-overs"]
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=110)
    told: dict[str, Any] = {}
    with LocalKafka(broker_config=_BROKER, java_options=_JAVA, folder=given.folder) as kafka:
        if "throughput" in what:
            told |= throughput(console, kafka, given)
        if "hand-overs" in what:
            with tempfile.TemporaryDirectory() as work:
                found = {p: measured_hand_overs(kafka, p, Path(work)) for p in PROTOCOLS}
            told["hand-overs"] = report_hand_overs(console, found)
        if "connect" in what:
            told["connect"] = compare_paces(console, kafka, given.lines, given.runs)
        if "connect-hand-overs" in what:
            told["connect-hand-overs"] = compare_silences(console, kafka)
    print(about_this_machine())
    print(json.dumps(told))


def throughput(console: Console, kafka: LocalKafka, given: argparse.Namespace) -> dict[str, Any]:
    """Measure all forms in turns, after a round that only warms the broker up."""
    broker = kafka.pid()
    assert broker is not None
    found: dict[tuple[int, int, str], list[Figures]] = {}
    for turn in range(-1, given.runs):
        for size in given.bytes:
            for interval_ms in (_LONG_MS, _SHORT_MS):
                forms = list(given.forms)
                for form in forms if turn % 2 else reversed(forms):
                    topic = f"rows-{uuid.uuid4().hex[:8]}"
                    kafka.create_topic(topic, PARTITIONS)
                    task = Task(
                        form,
                        kafka.bootstrap_servers,
                        topic,
                        size,
                        interval_ms,
                        given.seconds,
                        broker,
                    )
                    figures = run(task)
                    kafka.delete_topic(topic)
                    if turn >= 0:
                        found.setdefault((size, interval_ms, form), []).append(figures)
    return report_throughput(console, found)


def report_throughput(
    console: Console, found: dict[tuple[int, int, str], list[Figures]]
) -> dict[str, Any]:
    """Report medians; ratios are medians of the rounds' ratios, which other load affects less."""
    console.print(
        f"{PARTITIONS} partitions, linger {LINGER_MS} ms, acks=all, no compression; "
        f"send and send_batch with their defaults, the others with batches of {BATCH_BYTES:,} B"
    )
    told: dict[str, Any] = {"settings": {"partitions": PARTITIONS, "batch_bytes": BATCH_BYTES}}
    for size in dict.fromkeys(size for size, _, _ in found):
        table = Table(box=SIMPLE_HEAD, title=f"records of {size:,} B")
        columns = ("", "transactions", "records/s", "MB/s", "1 s = 1", "CPU µs", "broker", "commit")
        for column in (*columns, "MiB"):
            table.add_column(column, justify="right" if column else "left")
        for (of, interval_ms, form), each in found.items():
            if of != size:
                continue
            short = median_ratio(each, found[size, _LONG_MS, form])
            middle = {name: median(getattr(one, name) for one in each) for name in _COLUMNS}
            rate = middle["records_per_s"]
            table.add_row(
                form,
                f"{interval_ms} ms",
                f"{rate:,.0f}",
                f"{rate * size / 1e6:.0f}",
                "" if interval_ms == _LONG_MS else f"{short:.2f}",
                *(_shown(middle[name], digits) for name, digits in _COLUMNS.items() if digits >= 0),
            )
            told[f"{form}, {size} B, {interval_ms} ms"] = middle | {"to a second's": short}
        console.print(table)
        told |= report_ratios(console, size, found)
    return told


def report_ratios(
    console: Console, size: int, found: dict[tuple[int, int, str], list[Figures]]
) -> dict[str, float]:
    """Report how we compare with others, in transactions of a second."""
    ratios = {}
    for ours, other, goal in GOALS:
        one, another = found.get((size, _LONG_MS, ours)), found.get((size, _LONG_MS, other))
        if one and another:
            ratios[f"{ours} / {other}, {size} B"] = median_ratio(one, another)
            console.print(f"{ours} ÷ {other}: {median_ratio(one, another):.2f} (goal: ≥ {goal:g})")
    return ratios


def median_ratio(ours: list[Figures], others: list[Figures]) -> float:
    """The median of the rounds' ratios of records per second."""
    pairs = zip(ours, others, strict=True)
    return median(one.records_per_s / other.records_per_s for one, other in pairs)


def _shown(figure: float, digits: int) -> str:
    return "" if figure < 0 else f"{figure:.{digits}f}"


def report_hand_overs(console: Console, found: dict[str, HandOvers]) -> dict[str, Any]:
    """Report the hand-overs, a row per protocol."""
    table = Table(box=SIMPLE_HEAD, title="source partitions that move, and those that stay")
    for column in (
        "protocol",
        "moved",
        "last commit → first, median",
        "÷ heartbeat interval",
        "goal",
        "longest silence before",
        "during",
        "÷",
        "goal",
    ):
        table.add_column(column, justify="left" if column == "protocol" else "right")
    for protocol, each in found.items():
        table.add_row(
            protocol,
            str(len(each.took_s)),
            f"{each.median_s:.2f} s",
            f"{each.intervals:.2f}",
            f"≤ {GOAL_HAND_OVER:g}",
            f"{each.silence_before_s * 1000:.0f} ms",
            f"{each.silence_during_s * 1000:.0f} ms",
            f"{each.silence_ratio:.1f}",
            f"≤ {GOAL_SILENCE:g}",
        )
    console.print(table)
    return {protocol: each.as_dict() for protocol, each in found.items()}


if __name__ == "__main__":
    main()
