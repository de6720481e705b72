"""The cost of a rebalance for Spark queries: kept partitions, hand-over, losses and duplicates.

Runs the demo's scenario several times on one broker (A alone, B joins, C joins, B stops; JVMs are
warm before anything is measured; windows start at the actual joins) and prints a table and a line
of JSON. ``make bench-handover`` uses batches of 0.3 s, for which the goals hold.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

import kafka
import pyspark
from rich.console import Console
from rich.table import Table

from measuring.rebalance_figures import RebalanceFigures, deliveries_of, figures_of
from measuring.scenario import Scenario, Settings
from pyspark_kafka_rebalance.testing import kafka_from_environment
from pyspark_kafka_rebalance.testing.ledger import Tally, read_ledger, tally

#: The goal: seconds, by the change of the group.
GOALS_S = {"joins": 1.5, "stops": 1.0}
RATIO_GOAL = 0.95


class Unheard:
    """An announcer that shows nothing."""

    def say(self, status: str) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--batch-s", type=float, default=0.3)
    parser.add_argument("--rate", type=int, default=4_000, help="records per second in total")
    given = parser.parse_args()
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=100)
    settings = Settings(rate=given.rate, batch_s=given.batch_s)
    runs: list[tuple[Tally, list[RebalanceFigures]]] = []
    with kafka_from_environment() as cluster, tempfile.TemporaryDirectory() as folder:
        for run in range(given.runs):
            console.print(f"run {run + 1} of {given.runs}, about 90 s", highlight=False)
            topic = f"handover-{os.getpid()}-{run}"
            cluster.create_topic(topic, partitions=settings.partitions)
            work = Path(folder, str(run))
            work.mkdir()
            scenario = Scenario(settings, cluster.bootstrap_servers, topic, topic, work)
            course = scenario.run(Unheard())
            ledger = read_ledger(scenario.ledger)
            found = figures_of(deliveries_of(ledger), course.rebalances)
            runs.append((tally(ledger, course.end_offsets), found))
            cluster.delete_topic(topic)
    report(console, runs, settings)


def report(
    console: Console, runs: list[tuple[Tally, list[RebalanceFigures]]], settings: Settings
) -> None:
    """Print the table and the line of JSON."""
    by_name: dict[str, list[RebalanceFigures]] = defaultdict(list)
    for _, figures in runs:
        for one in figures:
            by_name[one.rebalance.name].append(one)
    table = Table(title="Spark queries in one group, over all runs")
    for column in ("", "hand-over median", "longest", "goal", "rows/s kept ÷ before", "goal"):
        table.add_column(column, justify="right")
    summary = {}
    for name, figures in by_name.items():
        seconds = [h.seconds for one in figures for h in one.hand_overs]
        ratios = [one.rate_ratio for one in figures if one.rate_ratio is not None]
        goal = GOALS_S[name.split()[-1]]
        summary[name] = {
            "hand_over_s": {"median": median(seconds), "max": max(seconds), "goal": goal},
            "kept_rate_ratio": {"median": median(ratios), "min": min(ratios), "goal": RATIO_GOAL},
        }
        table.add_row(
            name,
            f"{median(seconds):.2f} s",
            f"{max(seconds):.2f} s",
            f"≤ {goal:.1f} s",
            f"{median(ratios):.2f} (least {min(ratios):.2f})",
            f"≥ {RATIO_GOAL}",
        )
    console.print(table)
    records = sum(tally.records for tally, _ in runs)
    lost = sum(len(offsets) for tally, _ in runs for offsets in tally.lost.values())
    duplicated = sum(tally.duplicated for tally, _ in runs)
    console.print(f"{records:,} records, {lost} lost, {duplicated} duplicated", highlight=False)
    about = {
        "runs": len(runs),
        "records": records,
        "bytes": records * settings.value_bytes,
        "lost": lost,
        "duplicated": duplicated,
        "batch_s": settings.batch_s,
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "pyspark": pyspark.__version__,
        "kafka-python": kafka.__version__,
    }
    console.print_json(json.dumps({"benchmark": "handover", **about, "rebalances": summary}))


if __name__ == "__main__":
    main()
