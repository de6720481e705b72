"""The cost of a producer group, and of a rebalance for its members.

Throughput: records per second compared with kafka-python's plain transactional producer. One source
partition, one topic of six partitions, one broker. Each form sends the same records for the same
time, in transactions of the same length; the forms take turns, and ratios are taken within a round.
The plain producer begins and commits transactions without restart points.

Hand-over: members in their own processes share twelve source partitions, join and leave. Measures
the time from the old owner's last commit of a source partition to the new owner's first record, and
the longest silence of source partitions that stay, compared with that in the calm before.

Connect: lines of a file by the example of a folder's files, and by Kafka Connect's file source with
exactly-once support. Only if asked for: it fetches Connect's jars.

Prints tables and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from kafka import KafkaProducer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance import ProducerGroup
from pyspark_kafka_rebalance.testing import LocalKafka

from .connect.report import compare_paces, compare_silences
from .machine import about_this_machine
from .producer_hand_overs import PROTOCOLS, HandOvers, measured_hand_overs

#: The share of the plain producer's records per second.
GOAL = 0.9
#: The share that transactions of 100 ms must reach of the rate of transactions of a second.
GOAL_SHORT = 0.9
#: The median hand-over in heartbeat intervals.
GOAL_HAND_OVER = 1.3
#: The longest silence during a rebalance, as a multiple of that before.
GOAL_SILENCE = 2.0
_TOPIC = "rows"
_LONG_MS, _SHORT_MS = 1_000, 100

#: A function that sends a record, and one that commits the transaction.
Form = tuple[Callable[[bytes], Any], Callable[[int], None]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--what",
        choices=("throughput", "hand-overs", "connect", "connect-hand-overs"),
        action="append",
        help="may be repeated; default: the first two",
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--bytes", type=int, default=100, help="of a value")
    parser.add_argument("--runs", type=int, default=7, help="connect: 3 will do")
    parser.add_argument("--lines", type=int, default=500_000, help="of the file; connect alone")
    given = parser.parse_args()
    what = given.what or ["throughput", "hand-overs"]
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console()
    told: dict[str, Any] = {}
    with LocalKafka() as kafka:
        if "throughput" in what:
            told |= throughput(console, kafka, b"x" * given.bytes, given.seconds, given.runs)
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


def throughput(
    console: Console, kafka: LocalKafka, value: bytes, seconds: float, runs: int
) -> dict[str, Any]:
    """Measure all forms in turns, after a first round that only warms up."""
    kafka.create_topic(_TOPIC, 6)
    rates: dict[str, list[float]] = {}
    cpu_us: dict[str, list[float]] = {}
    for run in range(-1, runs):
        for interval_ms in (_LONG_MS, _SHORT_MS):
            forms = [("plain", plain), ("group", group)]
            for name, form in forms if run % 2 else reversed(forms):
                with form(kafka.bootstrap_servers) as (send, commit):
                    rate, cpu = measured(send, commit, value, seconds, interval_ms)
                if run >= 0:
                    key = f"{name}, {interval_ms} ms"
                    rates.setdefault(key, []).append(rate)
                    cpu_us.setdefault(key, []).append(cpu)
    return report_throughput(console, rates, cpu_us)


def measured(
    send: Callable[[bytes], Any],
    commit: Callable[[int], None],
    value: bytes,
    seconds: float,
    interval_ms: int,
) -> tuple[float, float]:
    """Records per second, including commits, and microseconds of CPU time per record."""
    sent = 0
    began, cpu_began = time.perf_counter(), time.process_time()
    while (now := time.perf_counter()) < began + seconds:
        until = now + interval_ms / 1000
        while time.perf_counter() < until:
            for _ in range(50):
                send(value)
            sent += 50
        commit(sent)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return sent / took, cpu / sent * 1e6


@contextmanager
def plain(servers: str) -> Iterator[Form]:
    """kafka-python's own producer."""
    producer = KafkaProducer(
        bootstrap_servers=servers, transactional_id=uuid.uuid4().hex, linger_ms=5
    )
    producer.init_transactions()
    producer.begin_transaction()

    def commit(_: int) -> None:
        producer.commit_transaction()
        producer.begin_transaction()

    try:
        yield (lambda value: producer.send(_TOPIC, value)), commit
    finally:
        producer.close()


@contextmanager
def group(servers: str) -> Iterator[Form]:
    """A member that owns the whole source."""
    with ProducerGroup(uuid.uuid4().hex, 1, bootstrap_servers=servers, linger_ms=5) as member:
        member.subscribe()

        def commit(restart_point: int) -> None:
            member.commit_transaction(str(restart_point))

        yield (lambda value: member.send(_TOPIC, value, source_partition=0)), commit


def report_throughput(
    console: Console, rates: dict[str, list[float]], cpu_us: dict[str, list[float]]
) -> dict[str, Any]:
    """Report medians; ratios are medians of the rounds' ratios, which other load affects less."""

    def ratio(of: str, to: str) -> float:
        return median(a / b for a, b in zip(rates[of], rates[to], strict=True))

    ratios = {
        f"group / plain, {ms} ms": ratio(f"group, {ms} ms", f"plain, {ms} ms")
        for ms in (_LONG_MS, _SHORT_MS)
    }
    ratios["group, 100 ms / 1000 ms"] = ratio("group, 100 ms", "group, 1000 ms")
    ratios["plain, 100 ms / 1000 ms"] = ratio("plain, 100 ms", "plain, 1000 ms")
    goals = dict.fromkeys(ratios, f"≥ {GOAL:g}")
    goals["group, 100 ms / 1000 ms"] = f"≥ {GOAL_SHORT:g}"
    goals["plain, 100 ms / 1000 ms"] = ""
    table = Table(box=SIMPLE_HEAD, title="producer groups, transactions by length")
    for column in ("", "records/s", "CPU µs", "ratio", "goal"):
        table.add_column(column, justify="left" if not column else "right")
    for name, each in rates.items():
        table.add_row(name, f"{median(each):,.0f}", f"{median(cpu_us[name]):.1f}", "", "")
    for name, found in ratios.items():
        table.add_row(name, "", "", f"{found:.2f}", goals[name])
    console.print(table)
    return {
        "rates": {name: median(each) for name, each in rates.items()},
        "cpu_us": {name: median(each) for name, each in cpu_us.items()},
        "ratios": ratios,
    }


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
