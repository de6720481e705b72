"""Command line of the benchmark: how long live records wait after a failure with a backlog.

For the client and for Spark queries, each form in turn: an owner reads a steady input and is killed
(kill -9), a backlog is written, and another takes over. Prints tables, goals and a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.machine import about_this_machine
from pyspark_kafka_rebalance.testing import LocalKafka, LocalKafkaError

from . import client, query
from .client import QUICK, Settings, run_client
from .memory import run_memory
from .query import run_query
from .report import print_report

_CLIENT, _QUERY = "client", "query"
_QUICK_PER_PARTITION = 5_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.catch_up", description=__doc__)
    parser.add_argument("--records", type=int, help="of the backlog (default: 3000000)")
    parser.add_argument("--bytes", type=int, help="of a record (default: 100)")
    parser.add_argument("--per-second", type=int, help="records of the input (default: 600)")
    parser.add_argument(
        "--protocol", default="consumer", choices=["consumer", "classic", "both"], help="of groups"
    )
    parser.add_argument(
        "--what", default=f"{_CLIENT},{_QUERY}", type=_words((_CLIENT, _QUERY)), metavar="A,B"
    )
    parser.add_argument("--forms", type=_words((*client.FORMS, *query.FORMS)), metavar="A,B")
    parser.add_argument(
        "--memory",
        action="store_true",
        help="watch a client with 50 partitions of a million records each, and nothing else",
    )
    parser.add_argument(
        "--memory-records", type=int, help="of each of the 50 partitions (default: 1000000)"
    )
    parser.add_argument(
        "--memory-seconds", type=float, default=300, help="to watch it at most (default: 300)"
    )
    parser.add_argument("--quick", action="store_true", help="a small backlog, to try it")
    return parser.parse_args(arguments)


def _words(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        if unknown := set(text.split(",")) - set(allowed):
            raise argparse.ArgumentTypeError(f"{unknown.pop()!r}: choose of {', '.join(allowed)}")
        return text.split(",")

    return split


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark.

    Returns
    -------
    int
        0; 1 if a form failed; 2 without a broker; 130 after Ctrl-C.
    """
    given = parse(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s: %(message)s")
    logging.getLogger("kafka").setLevel(logging.ERROR)
    console = Console(width=None if sys.stdout.isatty() else 130)
    settings = settings_of(given)
    try:
        with LocalKafka() as cluster, tempfile.TemporaryDirectory() as folder:
            plan = planned(given, settings, cluster, Path(folder))
            figures = run_all(console, plan)
    except KeyboardInterrupt:
        console.print("interrupted; everything that was started has ended")
        return 130
    except LocalKafkaError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return 2
    found = {
        kind: [one for of, one in figures if of == kind] for kind in (_CLIENT, _QUERY, "memory")
    }
    goals = print_report(console, *found.values())
    about = {"settings": asdict(settings), **about_this_machine()}
    results = {**found, "goals": [goal._asdict() for goal in goals]}
    print(json.dumps({"benchmark": "catch_up", **about, **results}))
    return 0 if len(figures) == len(plan) else 1


def settings_of(given: argparse.Namespace) -> Settings:
    """The settings that the command line asks for."""
    wanted = {
        "records": given.records,
        "value_bytes": given.bytes,
        "per_second": given.per_second,
    }
    return replace(
        QUICK if given.quick else Settings(),
        **{name: value for name, value in wanted.items() if value is not None},
    )


#: The kind of figures, the name of the measurement, and the function that measures.
Planned = tuple[str, str, Callable[[Callable[[str], None]], dict[str, Any]]]


def planned(
    given: argparse.Namespace, settings: Settings, cluster: LocalKafka, work: Path
) -> list[Planned]:
    """The measurements to run, one after the other."""
    protocols = ("consumer", "classic") if given.protocol == "both" else (given.protocol,)
    if given.memory:
        records = given.memory_records or (_QUICK_PER_PARTITION if given.quick else 1_000_000)
        return [
            (
                "memory",
                f"memory, {protocol}",
                lambda say, protocol=protocol: run_memory(
                    cluster,
                    protocol,
                    records,
                    given.memory_seconds,
                    f"memory-{protocol}",
                    work,
                    say,
                ),
            )
            for protocol in protocols
        ]
    found: list[Planned] = []
    for what, forms, run in (
        (_CLIENT, client.FORMS, run_client),
        (_QUERY, query.FORMS, run_query),
    ):
        for protocol in protocols if what in given.what else ():
            for number, form in enumerate(forms):
                if given.forms and form not in given.forms:
                    continue

                def one(
                    say: Callable[[str], None],
                    run: Any = run,
                    form: str = form,
                    protocol: str = protocol,
                    topic: str = f"{what}-{protocol}-{number}",
                ) -> dict[str, Any]:
                    return run(
                        cluster, replace(settings, protocol=protocol), form, topic, work, say
                    )

                found.append((what, f"{what}, {form}, {protocol}", one))
    return found


def run_all(console: Console, plan: Sequence[Planned]) -> list[tuple[str, dict[str, Any]]]:
    """Run each measurement; print an error for one that fails, and leave it out."""
    figures = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task("", total=len(plan))
        for kind, name, run in plan:

            def say(stage: str, name: str = name) -> None:
                progress.update(task, description=f"{name}: {stage}")

            try:
                found = run(say)
            except (TimeoutError, RuntimeError) as error:
                console.print(f"{name} failed: {error}", style="red", markup=False, highlight=False)
            else:
                figures.append((kind, found))
                console.print(f"{name}: {in_short(kind, found)}", highlight=False)
            progress.advance(task)
    return figures


def in_short(kind: str, found: dict[str, Any]) -> str:
    """The figures in one line."""
    if kind == "memory":
        return f"{found['peak_mb']:.0f} MB at most, {found['read']:,} records read"
    of_query = f"replay {found['replay_s']:.2f} s, " if kind == _QUERY else ""
    return (
        f"{of_query}first live {found['first_live_s']:.2f} s, "
        f"{found['backlog']:,} records in {found['caught_up_s']:.1f} s"
    )


if __name__ == "__main__":
    sys.exit(main())
