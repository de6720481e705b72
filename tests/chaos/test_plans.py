"""A few random plans, other ones each time; the first seed is in the test's name.

``python -m tests.chaos.plans --seed SEED`` repeats one and shrinks it.
"""

from __future__ import annotations

from pathlib import Path
from random import SystemRandom

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka

from .oracle import summary
from .plan_run import PlanRun
from .plan_sparks import Sparks
from .random_plans import as_python, make_plan

PLANS = 5


@pytest.mark.parametrize("first_seed", [SystemRandom().randrange(10**6)])
def test_random_plans_break_no_promise(kafka3: LocalKafka, first_seed: int, tmp_path: Path) -> None:
    sparks = Sparks(tmp_path)
    try:
        for seed in range(first_seed, first_seed + PLANS):
            plan = make_plan(seed)
            outcome = PlanRun(kafka3, sparks, plan, tmp_path).run()
            found = [*outcome.problems, *summary(outcome.verdicts)]
            assert not found, "\n".join([*found, as_python(plan)])
    finally:
        sparks.close()
