"""A hundred bounces of producers, of another plan every time; the seed is in the test's name.

``python -m tests.chaos.producer_bounces --seed SEED --protocol PROTOCOL`` repeats one.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from random import SystemRandom

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka

from .bounce_plan import make_bounces
from .churn import PROTOCOLS
from .producer_bounces import ProducerBounces

SEEDS = [SystemRandom().randrange(10**6)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_hundred_bounces_lose_and_repeat_no_row(
    kafka3: LocalKafka, protocol: str, seed: int, tmp_path: Path
) -> None:
    name = f"bounces-{uuid.uuid4().hex[:8]}"
    bounces = make_bounces(seed, 100)
    outcome = ProducerBounces(kafka3, bounces, tmp_path, name=name, protocol=protocol).run()
    assert outcome.violations == ()
    assert outcome.rows > 1_000
    assert outcome.hand_overs > 100, "too little changed hands for this to prove anything"
