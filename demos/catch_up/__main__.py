"""Command line of the catch-up demo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from pyspark_kafka_rebalance.testing.ledger import read_ledger

from ..command import add_figures, add_outputs, kafka_topic_and_folder, run_demo
from .course import LIVE, ORDERED, Outage, Settings
from .figures import figures_of, histories_of
from .picture import save_picture
from .report import print_report, summary
from .screen import Screen

#: A backlog of at most this many offsets is no gap: the default of ``catchUpThreshold``.
_THRESHOLD = 10_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m demos.catch_up",
        description="Two queries, one with parallelRebalance=live, are killed and restarted with "
        "a backlog. KAFKA_BOOTSTRAP_SERVERS names a cluster to use; without it a broker is "
        "started.",
    )
    add_figures(
        parser,
        Settings(),
        backlog="records produced while the queries are down",
        rate="records per second all along, in total",
        partitions="partitions of the topic",
        seconds_of_calm="before the kill, and after the backlog",
    )
    add_outputs(parser, Path("artifacts", "catch-up.png"), "ledger, checkpoints and logs")
    given = parser.parse_args(arguments)
    if given.backlog <= _THRESHOLD * given.partitions:
        parser.error(
            f"--backlog: {_THRESHOLD:,} offsets of a partition or less are no gap "
            f"(catchUpThreshold); with {given.partitions} partitions pass more than "
            f"{_THRESHOLD * given.partitions}"
        )
    return given


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo.

    Returns
    -------
    int
        0; 1 if a record is missing, or came twice without having been in flight at the kill;
        2 if the demo did not run to its end; 130 after Ctrl-C.
    """
    given = parse(arguments)
    settings = Settings(given.backlog, given.rate, given.partitions, given.seconds_of_calm)
    return run_demo(partial(_run, settings=settings, picture=given.picture, keep=given.keep))


def _run(console: Console, settings: Settings, picture: Path, keep: bool) -> bool:
    with kafka_topic_and_folder(console, "catch-up-demo", settings.partitions, keep) as (
        kafka,
        topic,
        work,
    ):
        outage = Outage(settings, kafka, topic, work)
        where = f"topic {topic} at {kafka.bootstrap_servers}"
        with Screen(console, where, outage.lines) as screen:
            course = outage.run(screen)
        ledger = read_ledger(outage.ledger)
    histories = histories_of(ledger, (LIVE, ORDERED))
    figures = {
        name: figures_of(
            ledger, name, history, course.end_offsets, course.killed_at, course.restarted_at
        )
        for name, history in histories.items()
    }
    produced = sum(course.end_offsets.values())
    title = f"Two queries after a kill -9 that made them miss {settings.backlog:,} records"
    print_report(console, title, produced, figures)
    save_picture(picture, title, summary(produced, figures), course, histories)
    console.print(f"picture: {picture}", highlight=False, soft_wrap=True)
    return all(of.is_right for of in figures.values())


if __name__ == "__main__":
    sys.exit(main())
