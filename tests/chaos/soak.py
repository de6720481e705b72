"""A soak: an hour of steady traffic and a rebalance a minute, in which nothing may grow.

``python -m tests.chaos.soak --minutes 60``. Two queries and two members share a group on three
brokers. One query and one member stay; every minute the other query stops gracefully, or the other
member leaves, and is back twenty seconds later. At the end the oracle judges every delivery, and
``flatness`` what the processes took and how far the group was behind.
"""

from __future__ import annotations

import argparse
import csv
import logging
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import SystemRandom
from typing import Literal, get_args

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka

from . import soak_picture
from .flatness import WHAT, Row, judge, unbounded
from .oracle import summary
from .plan_history import Outcome, broken_off
from .plan_run import PlanRun
from .plan_sparks import Sparks
from .process_samples import Sample, take_samples
from .random_plans import Fault, Plan, Reader
from .run_log import log_into
from .surroundings import PATIENCE_S, Background

Protocol = Literal["classic", "consumer"]

SAMPLE_EVERY_S = 5.0
AWAY_S = 20.0
GROUP = "g"
READERS = (Reader("q1"), Reader("q2"), Reader("m1", "member"), Reader("m2", "member"))
#: Who comes and goes, in turn.
RESTLESS = ("q2", "m2")
#: What Spark 4.3 leaves of each query that ends, with any Python data source and ``foreachBatch``:
#: the thread and the socket of its callbacks (py4j), and in the JVM the socket to its planner and a
#: selector, which has two descriptors.
LEFT_BY_A_QUERY = {"driver": {"fds": 1, "threads": 1}, "JVM": {"fds": 4, "threads": 1}}
#: The process that carries out the soak, which keeps everything for the judge.
SOAK = "soak"


def make_soak(minutes: float, every_s: float, rate: int, protocol: Protocol) -> Plan:
    """A plan whose faults are graceful stops; the last one has as long as all others to end in."""
    faults = tuple(
        Fault(n * every_s, "stop", RESTLESS[n % len(RESTLESS)], AWAY_S)
        for n in range(1, int(minutes * 60 / every_s))
    )
    seed = SystemRandom().randrange(10**6)  # of the records' partitions
    return Plan(seed, protocol, READERS, faults, rate=rate, lasts_s=minutes * 60)


class Sampling(Background):
    """Looks at all processes and the group's lag every five seconds.

    Parameters
    ----------
    soak : Soak
    on_sample : callable
        Called with the seconds since the beginning and the lag.
    """

    def __init__(self, soak: Soak, on_sample: Callable[[float, int], None]) -> None:
        super().__init__()
        self._soak = soak
        self._on_sample = on_sample
        self.samples: list[Sample] = []
        self.lags: list[tuple[float, float]] = []
        self.ends: list[tuple[float, float]] = []

    def run(self) -> None:
        consumer = DeferredRevokeConsumer(  # not subscribed: no member
            bootstrap_servers=self._soak.kafka.bootstrap_servers,
            group_id=self._soak.group(GROUP),
            isolation_level="read_committed",
            reconnect_backoff_max_ms=200,
        )
        began = time.time()
        try:
            while not self._stop.wait(max(0.0, self._next_at(began) - time.time())):
                self.samples += take_samples(self._soak.named_processes())
                partitions = self._soak.partitions()
                committed = consumer.committed_offsets(partitions, PATIENCE_S * 1_000)
                ends = consumer.end_offsets(partitions, PATIENCE_S * 1_000)
                now = time.time()
                # What was added between the two questions counts.
                lag = sum(end - committed.get(p, 0) for p, end in ends.items())
                self.lags.append((now, float(lag)))
                self.ends.append((now, float(sum(ends.values()))))
                self._on_sample(now - began, lag)
        finally:
            consumer.close()

    def _next_at(self, began: float) -> float:
        return began + len(self.lags) * SAMPLE_EVERY_S

    @property
    def rate(self) -> float:
        """Offsets that were added in a second."""
        (since, first), (until, last) = self.ends[0], self.ends[-1]
        return (last - first) / (until - since)


class Soak(PlanRun):
    """One run of a soak; ``sampling`` has what was seen meanwhile, once everybody has begun."""

    sampling: Sampling | None = None
    began_at = 0.0

    def on_sample(self, seconds: float, lag: int) -> None:
        """Show how far it has come."""

    def carry_out(self) -> None:
        self.began_at = time.time()
        with Sampling(self, self.on_sample) as self.sampling:
            super().carry_out()
            self.sampling.stop()

    def named_processes(self) -> dict[int, str]:
        """The soak itself, brokers and readers, by process id."""
        brokers = {self.kafka.pid(n): f"broker {n}" for n in self.kafka.broker_ids}
        readers = {reader.pid: reader.name for reader in self.readers}
        named = {os.getpid(): SOAK, **brokers, **readers}
        return {pid: name for pid, name in named.items() if pid is not None}


def main() -> int:
    given = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    log_into(work)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    plan = make_soak(given.minutes, given.every, given.rate, given.protocol)
    console.print(
        f"{given.minutes:g} minutes, {plan.rate} records a second, group protocol "
        f"{plan.protocol}; logs: {work}"
    )
    soak, outcome = _run(plan, work, console)
    problems = [*outcome.problems, *summary(outcome.verdicts)]
    if soak.sampling is not None and len(soak.sampling.lags) > 1:
        problems += _report(soak, soak.sampling, given.out, console)
    console.print(
        f"{outcome.records:,} records, {outcome.deliveries:,} deliveries, {outcome.runs} runs"
    )
    for problem in problems:
        console.print(problem, style="red", markup=False)
    if problems:
        console.print(f"FAILED; kept: {work}", style="red")
        return 1
    console.print("nothing climbs, the lag is bounded, the ledger is clean")
    shutil.rmtree(work)
    return 0


def _report(soak: Soak, sampling: Sampling, folder: Path, console: Console) -> list[str]:
    """Show and write what was seen; return what is wrong with it."""
    left = {
        f"{name} {part}": {what: n * _stops_per_hour(soak.plan, name) for what, n in of_one.items()}
        for name in RESTLESS
        for part, of_one in LEFT_BY_A_QUERY.items()
    }
    rows = judge(sampling.samples, frozenset({SOAK}), left)
    _write(folder, sampling, soak.began_at)
    marks = {
        who: [soak.began_at + fault.at for fault in soak.plan.faults if fault.target == who]
        for who in RESTLESS
    }
    drawn = [sample for sample in sampling.samples if sample.role != SOAK]  # it keeps everything
    soak_picture.save(folder / "soak.png", drawn, rows, sampling.lags, marks, soak.began_at)
    console.print(_table(rows))
    highest = max(lag for _, lag in sampling.lags)
    console.print(f"lag {highest:,.0f} at most, {sampling.rate:,.0f} offsets a second")
    if all(row.is_short for row in rows):
        console.print("too short to say what is flat")
    console.print(f"drawn: {folder / 'soak.png'}; samples: {folder}")
    return [
        *unbounded(sampling.lags, sampling.rate),
        *(f"{row.role}: {row.verdict}" for row in rows if row.climbing),
    ]


def _stops_per_hour(plan: Plan, name: str) -> float:
    """As they follow each other; there is none at the beginning and the end."""
    times = [fault.at for fault in plan.faults if fault.target == name]
    return 3_600 * (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0


def _run(plan: Plan, work: Path, console: Console) -> tuple[Soak, Outcome]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with LocalKafka(3, folder=work / "kafka") as kafka, Progress(*columns, console=console) as bars:
        bar = bars.add_task("starting", total=plan.lasts_s)
        sparks = Sparks(work)

        class Shown(Soak):
            def on_sample(self, seconds: float, lag: int) -> None:
                stops = sum(fault.at <= seconds for fault in plan.faults)
                what = f"{stops} stops, lag {lag:,}"
                bars.update(bar, completed=seconds, description=what)

            def carry_out(self) -> None:
                bars.reset(bar)
                super().carry_out()
                bars.update(bar, completed=plan.lasts_s, description="settling, then judging")

        soak = Shown(kafka, sparks, plan, work)
        try:
            return soak, soak.run()
        except (Exception, KeyboardInterrupt) as error:  # what was seen until then may tell why
            logging.exception("the soak")
            return soak, broken_off(f"the soak: {error!r}", soak.folder)
        finally:
            sparks.close()


def _write(folder: Path, sampling: Sampling, began: float) -> None:
    """Two files of what was seen, in seconds since the beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "processes.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["at_s", "role", "pid", *WHAT])
        for one in sampling.samples:
            at, memory = f"{one.at - began:.1f}", f"{one.memory_mb:.2f}"
            lines.writerow([at, one.role, one.pid, memory, one.fds, one.threads])
    with (folder / "lag.csv").open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["at_s", "lag"])
        lines.writerows([f"{at - began:.1f}", int(lag)] for at, lag in sampling.lags)


def _table(rows: list[Row]) -> Table:
    title = "From the end of the warm-up to the end, and by the hour"
    table = Table(title=title, caption="in brackets: not judged by the slope")
    table.add_column("process", no_wrap=True)
    for name in ("runs", "samples", "memory MB", "MB/h", "fds", "fds/h", "threads", "threads/h"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict")
    for row in rows:
        cells = [row.role, str(row.runs), f"{row.samples:,}"]
        for what in WHAT:
            found = row.trends[what]
            gain = f"{found.per_hour:+.1f} ±{found.error:.1f}"
            if what == "memory_mb" and not row.memory_by_slope:
                gain = f"({gain})"
            cells += [f"{found.start:.0f} → {found.end:.0f}", "" if row.is_short else gain]
        style = "red" if row.climbing else "dim" if row.is_short else None
        table.add_row(*cells, row.verdict, style=style)
    return table


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds from stop to stop")
    parser.add_argument("--rate", type=int, default=100, help="records a second")
    parser.add_argument("--protocol", choices=get_args(Protocol), default="consumer")
    parser.add_argument("--out", type=Path, default=Path("build/soak"), help="table and picture")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
