"""Command line of the producer-group demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from pyspark_kafka_rebalance.testing import postgres_from_environment

from ..command import add_figures, add_outputs, kafka_topic_and_folder, run_demo
from .course import Fleet, Settings
from .picture import save_picture
from .report import print_report, summary
from .screen import Screen

_TITLE = "Three tables of a PostgreSQL to Kafka, by instances that come, go, stall and die"


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demos.producers",
        description="Instances of a producer group read a database while they join, leave, stall "
        "and are killed. KAFKA_BOOTSTRAP_SERVERS and POSTGRES_URL name servers to use; without "
        "them a broker and a PostgreSQL are started.",
    )
    add_figures(
        parser,
        Settings(),
        rate="rows per second that are inserted and updated",
        seconds_per_phase="calm after each change of the group",
    )
    add_outputs(parser, Path("artifacts", "producers.png"), "the logs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns
    -------
    int
        0; 1 if a row is missing, came twice or out of order, or was never committed; 2 if the
        demo did not run to its end; 130 after Ctrl-C.
    """
    given = parse(arguments)
    settings = Settings(given.rate, given.seconds_per_phase)
    return run_demo(partial(_run, settings=settings, picture=given.picture, keep=given.keep))


def _run(console: Console, settings: Settings, picture: Path, keep: bool) -> bool:
    with (
        kafka_topic_and_folder(console, "producers-demo", 1, keep) as (kafka, topic, work),
        postgres_from_environment() as postgres,
        postgres.new_schema() as url,
    ):
        fleet = Fleet(settings, kafka, topic, url, work)
        where = f"group {topic} at {kafka.bootstrap_servers}"
        with Screen(console, where, fleet.lines) as screen:
            course = fleet.run(screen)
    print_report(console, _TITLE, course)
    save_picture(picture, _TITLE, summary(course), course)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return all(verdict.is_right for verdict in course.verdicts)


if __name__ == "__main__":
    sys.exit(main())
