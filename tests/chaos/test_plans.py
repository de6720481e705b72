"""A few random plans, other ones each time, and the named ones; the first seed is in a test's name.

``python -m tests.chaos.plans --seed SEED`` repeats one and shrinks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import SystemRandom

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka

from .named_plans import NAMED
from .oracle import summary
from .plan_admin import RETENTION_AT_ONCE
from .plan_sparks import Sparks
from .plans import carry_out
from .random_plans import Plan, as_python, make_plan

PLANS = 5


@pytest.fixture(scope="module")
def brokers() -> Iterator[LocalKafka]:
    with LocalKafka(3, broker_config=RETENTION_AT_ONCE) as local:
        yield local


@pytest.mark.parametrize("first_seed", [SystemRandom().randrange(10**6)])
def test_random_plans_break_no_promise(
    brokers: LocalKafka, first_seed: int, tmp_path: Path
) -> None:
    plans = [make_plan(seed) for seed in range(first_seed, first_seed + PLANS)]
    carry_out_all(brokers, plans, tmp_path)


def test_named_plans_break_no_promise(brokers: LocalKafka, tmp_path: Path) -> None:
    carry_out_all(brokers, NAMED.values(), tmp_path)


def carry_out_all(kafka: LocalKafka, plans: Iterable[Plan], work: Path) -> None:
    sparks = Sparks(work)
    try:
        for plan in plans:
            outcome = carry_out(kafka, sparks, plan, work)
            found = [*outcome.problems, *summary(outcome.verdicts)]
            assert not found, "\n".join([*found, as_python(plan)])
    finally:
        sparks.close()
