"""The comparison with Kafka Connect: makes all runs in turn and prints their tables."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.kafka_jars import connect_jars

from .runs import (
    BOUNDARIES,
    HAND_OVER_INTERVAL_MS,
    KILLED,
    LINE_BYTES,
    SIDES,
    STOPPED,
    Job,
    Pace,
    Silence,
    pace,
    silence,
    write_file,
)

#: So many that the reader is not through with the file before it is stopped or killed.
_LINES_OF_HAND_OVERS = 6_000_000


def compare_paces(console: Console, kafka: LocalKafka, lines: int, runs: int) -> dict[str, Any]:
    """Have one process of each side read a file of this many lines; the sides take turns."""
    found: dict[str, dict[str, list[Pace]]] = {}
    with _Jobs(kafka, lines) as job:
        for run in range(runs):
            for name, interval_ms in BOUNDARIES.items():
                of_name = found.setdefault(name, {side: [] for side in SIDES})
                for side in list(SIDES) if run % 2 else reversed(SIDES):
                    of_name[side].append(pace(side, job(interval_ms), lines))
                    console.print(f"{name}, {side}: {of_name[side][-1]}")
    table = Table(box=SIMPLE_HEAD, title=f"{lines:,} lines of {LINE_BYTES} B of one file")
    columns = ("transactions of", "", "records/s", "÷ Connect", "CPU µs", "MiB", "start")
    for column in columns:
        table.add_column(column, justify="right" if column in columns[2:] else "left")
    ratios = {}
    for name, sides in found.items():
        ours, theirs = sides.values()
        ratios[name] = median(
            a.records_per_s / b.records_per_s for a, b in zip(ours, theirs, strict=True)
        )
        for side, paces in sides.items():

            def middle(of: Callable[[Pace], float], paces: list[Pace] = paces) -> float:
                return median(map(of, paces))

            table.add_row(
                name,
                side,
                f"{middle(lambda p: p.records_per_s):,.0f}",
                f"{ratios[name]:.2f}" if paces is ours else "",
                f"{middle(lambda p: p.cpu_us):.1f}",
                f"{middle(lambda p: p.peak_mib):,.0f}",
                f"{middle(lambda p: p.start_s):.1f} s",
            )
    console.print(table)
    return {
        "lines": lines,
        "line_bytes": LINE_BYTES,
        "ratios": ratios,
        "runs": {
            name: {side: [asdict(p) for p in paces] for side, paces in sides.items()}
            for name, sides in found.items()
        },
    }


def compare_silences(console: Console, kafka: LocalKafka) -> dict[str, Any]:
    """Run two processes of each side, and stop or kill the one that reads the file."""
    found: dict[str, dict[str, Silence]] = {}
    with _Jobs(kafka, _LINES_OF_HAND_OVERS) as job:
        for how in (STOPPED, KILLED):
            found[how] = {
                side: silence(side, job(HAND_OVER_INTERVAL_MS), how) for side in reversed(SIDES)
            }
    table = Table(box=SIMPLE_HEAD, title="longest time without a new record")
    for column in ("the reader gets", "", "before", "hand-over"):
        table.add_column(column, justify="right" if column in ("before", "hand-over") else "left")
    for how, sides in found.items():
        for side, each in sides.items():
            table.add_row(how, side, f"{each.before_s:.2f} s", f"{each.during_s:.2f} s")
    console.print(table)
    return {how: {s: each._asdict() for s, each in sides.items()} for how, sides in found.items()}


class _Jobs:
    """The file, and a new topic for each job."""

    def __init__(self, kafka: LocalKafka, lines: int) -> None:
        self._kafka = kafka
        self._lines = lines
        self._work = tempfile.TemporaryDirectory()

    def __enter__(self) -> Callable[[int | None], Job]:
        connect_jars()
        work = Path(self._work.name)
        file = work / "folder" / "lines.txt"
        write_file(file, self._lines)

        def job(interval_ms: int | None) -> Job:
            topic = f"lines-{uuid.uuid4().hex[:8]}"
            self._kafka.create_topic(topic, 1)
            return Job(self._kafka.bootstrap_servers, file, topic, interval_ms, work)

        return job

    def __exit__(self, *exception: object) -> None:
        self._work.cleanup()
