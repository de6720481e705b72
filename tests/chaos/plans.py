"""Carry out random plans: ``python -m tests.chaos.plans --plans 100 --seed 7``.

The seeds are 7, 8, 9 and so on. A plan that fails is printed, and shrunk to the few faults that
matter, as Python for a regression test. What its readers, brokers and the judge saw is kept.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

from pyspark_kafka_rebalance.testing import LocalKafka

from .named_plans import NAMED
from .oracle import summary
from .plan_admin import RETENTION_AT_ONCE
from .plan_history import Outcome, broken_off
from .plan_run import PlanRun
from .plan_sparks import Sparks
from .random_plans import Plan, as_python, make_plan, shrink
from .run_log import log_into


def main() -> int:
    given = _arguments()
    work = Path(tempfile.mkdtemp(prefix="plans-"))
    log_into(work)
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # brokers come and go
    if given.named:
        plans = [NAMED[name] for name in given.named.split(",")]
    else:
        plans = [make_plan(seed) for seed in range(given.seed, given.seed + given.plans)]
    print(f"{len(plans)} plans from seed {plans[0].seed}; logs: {work}", flush=True)
    done, failed = 0, []
    with LocalKafka(3, folder=work / "kafka", broker_config=RETENTION_AT_ONCE) as kafka:
        sparks = Sparks(work)
        try:
            for plan in plans:
                outcome = carry_out(kafka, sparks, plan, work)
                done += 1
                if outcome.failed:
                    failed.append(plan.seed)
                    _shrink(kafka, sparks, plan, outcome, work, given.shrink_s)
                    if given.until_failed:
                        break
                elif not given.keep:
                    shutil.rmtree(outcome.work)
        finally:
            sparks.close()
    print(f"{done} plans, {len(failed)} failed: {failed}", flush=True)
    return 1 if failed else 0


def carry_out(kafka: LocalKafka, sparks: Sparks, plan: Plan, work: Path) -> Outcome:
    """Carry one plan out and print what came of it, also if that was not possible."""
    one = PlanRun(kafka, sparks, plan, work)
    try:
        outcome = one.run()
    except Exception as error:  # a query that does not start, brokers that do not come up
        logging.exception("seed %d", plan.seed)
        outcome = broken_off(f"the plan itself: {error}", one.folder)
    print(
        f"seed {plan.seed}: {plan.protocol}, {len(plan.readers)} readers, {len(plan.faults)} "
        f"faults, {outcome.runs} runs, {outcome.records} records, {outcome.deliveries} deliveries, "
        f"{outcome.took_s:.0f} s: {'FAILED' if outcome.failed else 'ok'}",
        flush=True,
    )
    for line in (*outcome.problems, *summary(outcome.verdicts)):
        print(f"  {line}", flush=True)
    return outcome


def _shrink(
    kafka: LocalKafka, sparks: Sparks, plan: Plan, outcome: Outcome, work: Path, seconds: float
) -> None:
    """Leave faults out as long as a verdict of the same name comes of the rest."""
    print(as_python(plan), flush=True)
    deadline = time.monotonic() + seconds
    names = {verdict.name for verdict in outcome.verdicts}

    def still_fails(smaller: Plan) -> bool:
        again = carry_out(kafka, sparks, smaller, work)
        same = names & {verdict.name for verdict in again.verdicts}
        return bool(same) or (not names and bool(again.problems))

    smallest = shrink(plan, still_fails, lambda: time.monotonic() < deadline)
    if smallest != plan:
        print(f"shrunk:\n{as_python(smallest)}", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.plans", description=__doc__)
    parser.add_argument("--seed", type=int, default=SystemRandom().randrange(10**6))
    parser.add_argument("--plans", type=int, default=1, help="how many, from that seed on")
    parser.add_argument("--named", default="", help=f"instead, some of {', '.join(NAMED)}")
    parser.add_argument(
        "--shrink-s", type=float, default=300.0, help="how long a failing plan is shrunk"
    )
    parser.add_argument("--until-failed", action="store_true", help="stop after one that fails")
    parser.add_argument("--keep", action="store_true", help="also what is left of those that pass")
    given = parser.parse_args()
    if unknown := {name for name in given.named.split(",") if name} - NAMED.keys():
        parser.error(f"--named {', '.join(sorted(unknown))}; allowed: {', '.join(NAMED)}")
    return given


if __name__ == "__main__":
    sys.exit(main())
