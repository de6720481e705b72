"""Command line of the demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from measuring.rebalance_figures import Delivery, RebalanceFigures, deliveries_of, figures_of
from measuring.scenario import READERS, Course, Scenario, Settings
from pyspark_kafka_rebalance.testing import KafkaCluster
from pyspark_kafka_rebalance.testing.ledger import Tally, read_ledger, tally

from ..command import add_figures, kafka_topic_and_folder, run_demo
from .comparison import KINDS, Run, save_comparison, verdict
from .picture import save_picture
from .report import print_report, summary
from .screen import Screen

_TITLE = "One consumer group, three Spark queries that come and go"

#: In a comparison, the reader that works on each batch for long, and for how long.
_SLOW, _SLOW_S = "B", 5.0

_Watched = tuple[Course, list[Delivery], Tally, list[RebalanceFigures]]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demos.rebalance",
        description="Three readers share a consumer group while they join and leave. "
        "KAFKA_BOOTSTRAP_SERVERS names a cluster to use; without it a broker is started.",
    )
    parser.add_argument(
        "--peer",
        choices=("deferred", "blocking"),
        default="deferred",
        help="deferred (default): Spark queries with kafka_deferred; blocking: the same, and then "
        "consumers that drain inside their rebalance listener, under the same load. There reader "
        f"{_SLOW} works on each batch for {_SLOW_S:g} s",
    )
    add_figures(
        parser,
        Settings(),
        seconds_per_phase="calm before each change of the group",
        rate="records per second in total",
        partitions="partitions of the topic, at least 3",
    )
    parser.add_argument(
        "--picture",
        type=Path,
        metavar="FILE",
        help="default: artifacts/rebalance.png, with --peer blocking rebalance-blocking.png",
    )
    parser.add_argument("--keep", action="store_true", help="keep ledger, checkpoints and logs")
    given = parser.parse_args(arguments)
    if given.partitions < 3:
        parser.error("--partitions: three readers need at least 3")
    if given.picture is None:
        suffix = "" if given.peer == "deferred" else f"-{given.peer}"
        given.picture = Path("artifacts", f"rebalance{suffix}.png")
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns
    -------
    int
        0; 1 if Spark queries lost or duplicated a record; 2 if the demo did not run to its end;
        130 after Ctrl-C.
    """
    given = parse(arguments)
    settings = Settings(
        seconds_per_phase=given.seconds_per_phase, rate=given.rate, partitions=given.partitions
    )
    run = _run if given.peer == "deferred" else _compare
    return run_demo(partial(run, settings=settings, picture=given.picture, keep=given.keep))


def _run(console: Console, settings: Settings, picture: Path, keep: bool) -> bool:
    with kafka_topic_and_folder(console, "rebalance-demo", settings.partitions, keep) as (
        kafka,
        name,
        work,
    ):
        course, deliveries, found, figures = _watch(console, settings, kafka, name, work)
    print_report(console, _TITLE, sum(course.end_offsets.values()), found, figures)
    save_picture(picture, _TITLE, summary(found, figures), course, deliveries)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return not (found.lost or found.duplicated)


def _compare(console: Console, settings: Settings, picture: Path, keep: bool) -> bool:
    runs: dict[str, Run] = {}
    reports = []
    with kafka_topic_and_folder(console, "rebalance-demo", settings.partitions, keep) as (
        kafka,
        name,
        work,
    ):
        for peer, (kind, _) in KINDS.items():
            console.print(f"\n{kind}", style="bold", highlight=False)
            topic = f"{name}-{peer}"
            kafka.create_topic(topic, partitions=settings.partitions)
            chosen = replace(settings, peer=peer, slow={_SLOW: _SLOW_S})
            course, deliveries, found, figures = _watch(
                console, chosen, kafka, topic, work / peer, slow=(_SLOW,)
            )
            kafka.delete_topic(topic)
            (drained,) = (one for one in figures if one.rebalance.name == f"{READERS[2]} joins")
            runs[peer] = Run(found, deliveries, drained)
            produced = sum(course.end_offsets.values())
            reports.append(partial(print_report, console, kind, produced, found, figures))
    sentence = verdict(runs, _SLOW_S)
    console.print(f"\n{sentence}", style="bold", highlight=False)
    for report in reports:
        report()
    save_comparison(picture, sentence, runs, (_SLOW,))
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    ours = runs["deferred"].tally
    return not (ours.lost or ours.duplicated)


def _watch(
    console: Console,
    settings: Settings,
    kafka: KafkaCluster,
    name: str,
    work: Path,
    slow: Collection[str] = (),
) -> _Watched:
    """Run a group's course on the topic, and evaluate its ledger."""
    work.mkdir(exist_ok=True)
    scenario = Scenario(settings, kafka.bootstrap_servers, name, name, work)
    where = f"group {name} at {kafka.bootstrap_servers}"
    with Screen(console, where, scenario.lines) as screen:
        course = scenario.run(screen)
    ledger = read_ledger(scenario.ledger)
    deliveries = deliveries_of(ledger)
    figures = figures_of(deliveries, course.rebalances, slow)
    return course, deliveries, tally(ledger, course.end_offsets), figures


if __name__ == "__main__":
    sys.exit(main())
