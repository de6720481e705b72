"""What a version of Apache Kafka needs to run; as Maven Central and the brokers have it."""

from __future__ import annotations

import pytest

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.kafka_versions import KAFKA_VERSION, KafkaVersion


@pytest.mark.parametrize(
    ("number", "scala", "needs_zookeeper"),
    [
        ("1.1.1", "2.12", True),
        ("2.3.1", "2.12", True),
        ("2.4.0", "2.13", True),
        ("2.10.0", "2.13", True),  # numbers, not text
        ("3.2.3", "2.13", True),
        ("3.3.0", "2.13", False),
        (KAFKA_VERSION, "2.13", False),
    ],
)
def test_a_version(number: str, scala: str, needs_zookeeper: bool) -> None:
    version = KafkaVersion(number)
    assert (version.scala, version.needs_zookeeper) == (scala, needs_zookeeper)
    assert (version.zookeeper is not None) == (scala == "2.12"), "its client would not run"


@pytest.mark.parametrize("number", ["", "4", "3.9", "3.9.x", "0.11.0.3", "0.9.0", "4.3.0-rc1"])
def test_what_is_no_version(number: str) -> None:
    with pytest.raises(ValueError, match=r"allowed: a version of Apache Kafka such as 3\.9\.1"):
        LocalKafka(version=number)


def test_features_need_a_quorum() -> None:
    with pytest.raises(ValueError, match=r"Kafka 2\.8\.2 has none to choose from"):
        LocalKafka(version="2.8.2", features={"group.version": 0})
