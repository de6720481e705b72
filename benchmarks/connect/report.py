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
    PACES,
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
    """Have one process of each side read a file of this many lines or more; they take turns."""
    found: dict[str, dict[str, list[Pace]]] = {}
    with _Jobs(kafka, lines) as jobs:
        for run in range(runs):
            for name, interval_ms in BOUNDARIES.items():
                sides = [side for side in PACES if interval_ms is not None or side != "send_batch"]
                of_name = found.setdefault(name, {side: [] for side in sides})
                for side in sides if run % 2 else reversed(sides):
                    of_name[side].append(jobs.pace(side, interval_ms))
                    console.print(f"{name}, {side}: {of_name[side][-1]}")
    table = Table(box=SIMPLE_HEAD, title=f"lines of {LINE_BYTES} B of one file")
    columns = ("transactions of", "", "records/s", "÷ Connect", "CPU µs", "MiB", "÷", "start")
    for column in columns:
        table.add_column(column, justify="right" if column in columns[2:] else "left")
    ratios = {}
    for name, of_name in found.items():
        for side, paces in of_name.items():

            def middle(of: Callable[[Pace], float], paces: list[Pace] = paces) -> float:
                return median(map(of, paces))

            def ratio(
                of: Callable[[Pace], float],
                paces: list[Pace] = paces,
                others: list[Pace] = of_name["Connect"],
            ) -> float:
                return median(of(a) / of(b) for a, b in zip(paces, others, strict=True))

            ratios[f"{name}, {side}"] = faster = ratio(lambda p: p.records_per_s)
            memory = ratio(lambda p: p.peak_mib)
            table.add_row(
                name,
                side,
                f"{middle(lambda p: p.records_per_s):,.0f}",
                "" if side == "Connect" else f"{faster:.2f}",
                f"{middle(lambda p: p.cpu_us):.1f}",
                f"{middle(lambda p: p.peak_mib):,.0f}",
                "" if side == "Connect" else f"{memory:.2f}",
                f"{middle(lambda p: p.start_s):.1f} s",
            )
    console.print(table)
    console.print("goals of send, 1 s: ≥ 2 of Connect's rate, ≤ 0.25 of its memory")
    return {
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
    with _Jobs(kafka, _LINES_OF_HAND_OVERS) as jobs:
        for how in (STOPPED, KILLED):
            found[how] = {
                side: silence(side, jobs.job(HAND_OVER_INTERVAL_MS), how)
                for side in reversed(SIDES)
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

    def __enter__(self) -> _Jobs:
        connect_jars()
        self._write()
        return self

    def _write(self) -> None:
        self._file = Path(self._work.name) / "folder" / "lines.txt"
        write_file(self._file, self._lines)

    def job(self, interval_ms: int | None) -> Job:
        """A job with a topic of its own."""
        topic = f"lines-{uuid.uuid4().hex[:8]}"
        self._kafka.create_topic(topic, 1)
        work = Path(self._work.name)
        return Job(self._kafka.bootstrap_servers, self._file, topic, interval_ms, work)

    def pace(self, side: str, interval_ms: int | None) -> Pace:
        """Measure a side; again with twice the lines, as long as it is done with them too soon."""
        while True:
            job = self.job(interval_ms)
            found = pace(side, job, self._lines)
            self._kafka.delete_topic(job.topic)
            if found is not None:
                return found
            self._lines *= 2
            self._write()

    def __exit__(self, *exception: object) -> None:
        self._work.cleanup()
