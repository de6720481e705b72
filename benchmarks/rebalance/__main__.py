"""Command line of the rebalance benchmark."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pyspark_kafka_rebalance.testing import KafkaCluster, LocalKafkaError, kafka_from_environment

from .judge import Verdict, judge
from .peers import HEARTBEAT_INTERVAL_MS, PEERS, Peer, chosen
from .picture import save_picture
from .report import as_json, in_short, markdown, print_report
from .scenario import Settings, Trial, run

#: A local broker sets the heartbeat interval of consumer protocol members (default 5 s).
_BROKER_CONFIG = {"group.consumer.heartbeat.interval.ms": HEARTBEAT_INTERVAL_MS}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.rebalance",
        description="What a rebalance costs the partitions that stay, for one client after the "
        "other. KAFKA_BOOTSTRAP_SERVERS names a cluster to use; without it a broker is started.",
    )
    names = ", ".join(peer.name for peer in PEERS)
    parser.add_argument(
        "--peers",
        type=_peers,
        default=list(PEERS),
        metavar="A,B",
        help=f"names or how they begin (default: all; {names})",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=Settings.calm_s,
        metavar="S",
        help="calm before each join, to compare with (default: %(default)g)",
    )
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("docs", "rebalance-peers.png"),
        metavar="FILE",
        help="the picture, of the first run; the JSON is put beside it (default: %(default)s)",
    )
    parser.add_argument(
        "--markdown", action="store_true", help="print the first run's table for the docs as well"
    )
    return parser.parse_args(arguments)


def _peers(text: str) -> list[Peer]:
    try:
        return chosen(text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns
    -------
    int
        0; 1 if a peer did not complete the scenario; 2 without a broker; 130 after Ctrl-C.
    """
    given = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else 130)
    settings = Settings(calm_s=given.seconds)
    plan = [(peer, drain) for peer in given.peers for drain in peer.drains]
    try:
        with (
            kafka_from_environment(broker_config=_BROKER_CONFIG) as cluster,
            tempfile.TemporaryDirectory() as folder,
        ):
            runs = [
                _one_run(console, settings, plan, cluster, Path(folder), f"run {n} of {given.runs}")
                for n in range(1, given.runs + 1)
            ]
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    except LocalKafkaError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 2
    print_report(console, settings, runs)
    if runs[0]:
        save_picture(given.output, settings, runs[0])
        results = given.output.with_suffix(".json")
        results.write_text(json.dumps(as_json(settings, runs)) + "\n")
        console.print(f"picture: {given.output}, results: {results}", highlight=False)
        if given.markdown:
            print(markdown(runs[0]))
    return 0 if all(len(run) == len(plan) for run in runs) else 1


def _one_run(
    console: Console,
    settings: Settings,
    plan: Sequence[tuple[Peer, bool]],
    cluster: KafkaCluster,
    folder: Path,
    title: str,
) -> list[Verdict]:
    """Run every peer, one after another; print an error for one that fails, and leave it out."""
    verdicts = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(title, total=len(plan))
        for peer, drain in plan:
            what = f"{peer.name}, {'drains' if drain else 'does not drain'}"

            def say(stage: str, what: str = what) -> None:
                progress.update(task, description=f"{title}: {what}: {stage}")

            began = time.monotonic()
            topic = f"rebalance-{uuid.uuid4().hex[:8]}"
            work = folder / topic
            work.mkdir()
            try:
                course = run(Trial(settings, peer, drain, cluster, topic, work), say)
            except (TimeoutError, RuntimeError) as error:
                console.print(f"{what} failed: {error}", style="red", markup=False, highlight=False)
            else:
                verdicts.append(judge(peer, course, drain=drain))
                took = time.monotonic() - began
                console.print(f"{what}: {in_short(verdicts[-1])} ({took:.0f} s)", highlight=False)
            progress.advance(task)
    return sorted(verdicts, key=lambda verdict: not verdict.ours)


if __name__ == "__main__":
    sys.exit(main())
