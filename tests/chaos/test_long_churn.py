"""Churns of another plan every time; the seed is in the test's name.

``python -m tests.chaos --seed SEED --protocol PROTOCOL`` repeats one.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from random import SystemRandom

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka

from .churn import PROTOCOLS, Churn
from .plan import make_plan


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", [SystemRandom().randrange(10**6) for _ in range(3)])
def test_a_long_churn_breaks_nothing(kafka3: LocalKafka, protocol: str, seed: int, tmp_path: Path):
    name = f"churn-{uuid.uuid4().hex[:8]}"
    plan = make_plan(seed, joins=100, children=10)
    outcome = Churn(kafka3, plan, tmp_path, name=name, protocol=protocol, rounds=2).run()
    assert outcome.violations == ()
