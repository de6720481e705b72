"""Fifty rounds of other topics every time; the seed is in the test's name."""

from __future__ import annotations

import uuid
from pathlib import Path
from random import SystemRandom

import pytest
from pyspark.sql import SparkSession

from pyspark_kafka_rebalance.testing import LocalKafka

from .topic_stress import TopicStress, make_rounds


@pytest.mark.parametrize("seed", [SystemRandom().randrange(10**6)])
def test_topics_that_come_grow_and_go_for_fifty_rounds(
    kafka: LocalKafka, spark: SparkSession, seed: int, tmp_path: Path
) -> None:
    name = f"stress-{uuid.uuid4().hex[:8]}"
    TopicStress(kafka, spark, make_rounds(seed, 50), name, tmp_path).run()
