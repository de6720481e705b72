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

SEEDS = [SystemRandom().randrange(10**6) for _ in range(2)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_churn_while_brokers_restart_breaks_nothing(
    kafka3: LocalKafka, protocol: str, seed: int, tmp_path: Path
):
    plan = make_plan(seed, 100, {"process": 10})
    churn = Churn(kafka3, plan, tmp_path, name=a_name(), protocol=protocol, rounds=2)
    assert churn.run().violations == ()


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_long_churn_with_librdkafka_breaks_nothing(
    kafka3: LocalKafka, protocol: str, seed: int, tmp_path: Path
):
    plan = make_plan(seed, 100, {"process": 10, "librdkafka": 40}, brokers=())
    churn = Churn(kafka3, plan, tmp_path, name=a_name(), protocol=protocol)
    assert churn.run().violations == ()


def a_name() -> str:
    return f"churn-{uuid.uuid4().hex[:8]}"
