"""Topics that come, grow and go while the query runs and is restarted: the short form.

``make test-chaos`` has fifty rounds, of other seeds each time.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka
from tests.chaos.topic_stress import TopicStress, make_rounds


@pytest.mark.newest_spark
def test_eight_rounds_lose_nothing_and_deliver_nothing_twice(
    kafka: LocalKafka, spark: SparkSession, group_id: str, tmp_path: Path
) -> None:
    rounds = make_rounds(seed=27, count=8)
    assert {one.action for one in rounds} == {"create", "delete", "grow", "restart", "produce"}
    stress = TopicStress(kafka, spark, rounds, group_id, tmp_path)
    stress.run()
    assert stress.batches >= len(rounds) / 2
