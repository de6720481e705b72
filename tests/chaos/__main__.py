"""Run one churn and watch it: ``python -m tests.chaos --seed 7 --joins 500``.

A run is repeated by its seed; what the members make of it is up to the machine.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from random import SystemRandom

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from pyspark_kafka_rebalance.testing import LocalKafka

from .churn import PROTOCOLS, Churn, Outcome
from .plan import Step, make_plan
from .run_log import log_into

#: More of them say nothing new.
_SHOWN = 50


def main() -> int:
    arguments = _arguments()
    console = Console()
    plan = make_plan(
        arguments.seed,
        arguments.joins,
        {"process": arguments.processes, "librdkafka": arguments.librdkafka},
        brokers=() if arguments.librdkafka else (1, 2, 3),
    )
    work = Path(tempfile.mkdtemp(prefix="churn-"))
    log_into(work)
    console.print(f"seed {plan.seed}, group protocol {arguments.protocol}; log, ledger: {work}")
    with (
        LocalKafka(3) as kafka,
        Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
        ) as progress,
    ):
        steps = progress.add_task("starting", total=len(plan.steps))
        members = 0

        def on_step(step: Step) -> None:
            nonlocal members
            members += 1 if step.joins else -1
            what = f"{step.member} {'joins' if step.joins else 'leaves'}, {members} members"
            progress.update(steps, advance=1, description=what)

        churn = Churn(
            kafka,
            plan,
            work,
            name="churn",
            protocol=arguments.protocol,
            rate=arguments.rate,
            rounds=arguments.rounds,
            on_step=on_step,
        )
        outcome = churn.run()
    _report(console, outcome)
    return 1 if outcome.violations else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--protocol", choices=PROTOCOLS, default=PROTOCOLS[0])
    parser.add_argument("--joins", type=int, default=50)
    parser.add_argument("--processes", type=int, default=3, help="members in one of their own")
    parser.add_argument(
        "--librdkafka",
        type=int,
        default=0,
        help="members that use librdkafka; then no broker restarts",
    )
    parser.add_argument("--rate", type=int, default=400, help="records a second")
    parser.add_argument("--rounds", type=int, default=1, help="restarts of every broker, at least")
    return parser.parse_args()


def _report(console: Console, outcome: Outcome) -> None:
    table = Table("what", "how many")
    for name in ("joins", "leaves", "hand_overs", "restarts", "records", "polls", "commits_seen"):
        table.add_row(name.replace("_", " "), f"{getattr(outcome, name):,}")
    table.add_row("violations", f"{len(outcome.violations):,}")
    table.add_row("seconds", f"{outcome.took_s:.0f}")
    console.print(table)
    for violation in outcome.violations[:_SHOWN]:
        console.print(violation, style="red", highlight=False)


if __name__ == "__main__":
    sys.exit(main())
