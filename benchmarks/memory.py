"""How much memory Spark's Python workers take to read a range of gigabytes in one task.

Prints a table and a line of JSON, and draws the highest peak (``VmHWM``) of the query's workers,
for a small topic and a large one. Bounded memory means that the two hardly differ.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka

from .chart import bars
from .machine import about_this_machine
from .throughput.forms import OURS, ran, spark
from .throughput.spark_process import NOOP
from .throughput.topics import fill

GOAL_MB = 300
_SMALL_MB = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=5_000)
    parser.add_argument("--size", type=int, default=1_000, help="bytes of a record")
    parser.add_argument("--codec", default="none")
    parser.add_argument("--picture", type=Path, default=Path("artifacts/memory.png"))
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=100)
    figures = []
    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as folder:
        for megabytes in (_SMALL_MB, given.megabytes):
            topic = f"memory-{megabytes}"
            rows = megabytes * 1_000_000 // given.size
            console.print(f"writing {megabytes:,} MB, and reading them", highlight=False)
            fill(kafka, topic, 1, given.codec, given.size, rows, Path(folder))
            peak, measured = peak_of_workers(kafka, topic, Path(folder))
            if measured["every_row"] != rows:
                raise RuntimeError(f"{measured['every_row']} of {rows} rows were read")
            figures.append({"megabytes": megabytes, "rows": rows, "peak_mb": peak})
            kafka.delete_topic(topic)
    table = Table(title="Peak memory of a worker that reads one partition", box=SIMPLE_HEAD)
    for column in ("range", "rows", "peak", "goal"):
        table.add_column(column, justify="right")
    for one in figures:
        cells = (f"{one['megabytes']:,} MB", f"{one['rows']:,}", f"{one['peak_mb']} MB")
        table.add_row(*cells, f"≤ {GOAL_MB} MB")
    console.print(table)
    bars(
        given.picture,
        "MB",
        [f"{one['megabytes']:,} MB" for one in figures],
        {
            "Peak memory of a worker": {
                "peak": [one["peak_mb"] for one in figures],
                "goal": [GOAL_MB] * len(figures),
            }
        },
    )
    console.print(f"drawn: {given.picture}", highlight=False)
    print(
        json.dumps(
            {
                "benchmark": "memory",
                **about_this_machine(),
                "codec": given.codec,
                "record_bytes": given.size,
                "goal_mb": GOAL_MB,
                "results": figures,
            }
        )
    )


def peak_of_workers(kafka: LocalKafka, topic: str, work: Path) -> tuple[int, dict[str, Any]]:
    """Run a query in a new Spark session; return the workers' peak in MB and the measurements."""
    with spark(OURS, 2, work) as process:
        process.wait_for("ready")
        options = {"startingOffsets": "earliest"}
        measured = ran(
            process, OURS, kafka.bootstrap_servers, topic, options, timeout_s=1_200, sink=NOOP
        )
        peaks = [
            peak_kb(pid)
            for pid in below(process.pid)
            if b"pyspark.daemon\0pyspark.worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        process.stop()
    return max(peaks) // 1_000, measured


def below(pid: int) -> list[int]:
    """The process ids of all descendants of a process.

    ``ChildProcess.descendants`` only finds its process group; Spark's worker daemon has its own.
    """
    children: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        children += map(int, (thread / "children").read_text().split())
    return children + [each for child in children for each in below(child)]


def peak_kb(pid: int) -> int:
    """The peak memory of a process in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1])


if __name__ == "__main__":
    main()
