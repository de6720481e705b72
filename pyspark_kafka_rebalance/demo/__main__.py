"""Command line of the demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from ..testing.ledger import read_ledger, tally
from ..testing.rebalances.figures import deliveries_of, figures_of
from ..testing.rebalances.scenario import Scenario, Settings
from .command import add_figures, kafka_topic_and_folder, run_demo
from .picture import save_picture
from .report import print_report, summary
from .screen import Screen

_TITLES = {
    "deferred": "One consumer group, three Spark queries that come and go",
    "blocking": "One consumer group, three consumers that drain inside their rebalance listener",
}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_kafka_rebalance.demo",
        description="Three readers share a consumer group while they join and leave. "
        "KAFKA_BOOTSTRAP_SERVERS names a cluster to use; without it a broker is started.",
    )
    parser.add_argument(
        "--peer",
        choices=("deferred", "blocking"),
        default="deferred",
        help="deferred (default): Spark queries with kafka_deferred; blocking: consumers that "
        "drain inside their rebalance listener",
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
    settings = Settings(given.peer, given.seconds_per_phase, given.rate, given.partitions)
    return run_demo(partial(_run, settings=settings, picture=given.picture, keep=given.keep))


def _run(console: Console, settings: Settings, picture: Path, keep: bool) -> bool:
    with kafka_topic_and_folder(console, "rebalance-demo", settings.partitions, keep) as (
        kafka,
        name,
        work,
    ):
        scenario = Scenario(settings, kafka.bootstrap_servers, name, name, work)
        where = f"group {name} at {kafka.bootstrap_servers}"
        with Screen(console, where, scenario.lines) as screen:
            course = scenario.run(screen)
        ledger = read_ledger(scenario.ledger)
    deliveries = deliveries_of(ledger)
    found = tally(ledger, course.end_offsets)
    figures = figures_of(deliveries, course.rebalances)
    title = _TITLES[settings.peer]
    print_report(console, title, sum(course.end_offsets.values()), found, figures)
    save_picture(picture, title, summary(found, figures), course, deliveries)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return settings.peer != "deferred" or not (found.lost or found.duplicated)


if __name__ == "__main__":
    sys.exit(main())
