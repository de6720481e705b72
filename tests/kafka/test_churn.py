"""Many joins and leaves, and brokers that restart: nothing lost, nothing twice, no promise broken.

What is checked, at every poll and afterwards, is in ``tests/chaos/invariants.py``; longer runs
with other seeds are made by ``make test-chaos``.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka
from tests.chaos.churn import Churn
from tests.chaos.plan import make_plan


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_fifty_joins_and_leaves_while_brokers_restart_break_nothing(
    kafka3: LocalKafka, group_id: str, protocol: str, seed: int, tmp_path: Path
):
    plan = make_plan(seed, 50, {"process": 3})
    outcome = Churn(kafka3, plan, tmp_path, name=group_id, protocol=protocol).run()
    assert outcome.violations == ()
    assert outcome.leaves == 50
    assert outcome.restarts >= 3
    assert outcome.hand_overs > 100, "too little changed hands for this to prove anything"
