"""Which brokers a producer group refuses; what the versions offer is from Kafka's own answers."""

from __future__ import annotations

import pytest
from kafka.protocol.broker_version_data import BROKER_API_VERSIONS

from pyspark_kafka_rebalance import UnsupportedBrokerError
from pyspark_kafka_rebalance.producer.required_brokers import require_fencing


@pytest.mark.parametrize("version", [v for v in BROKER_API_VERSIONS if v >= (2, 5)], ids=str)
def test_later_brokers_will_do(version: tuple[int, ...]) -> None:
    require_fencing("g", BROKER_API_VERSIONS[version])


@pytest.mark.parametrize("version", [v for v in BROKER_API_VERSIONS if v < (2, 5)], ids=str)
def test_brokers_that_fence_no_member_are_refused(version: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedBrokerError, match=r"'g' needs Apache Kafka 2\.5"):
        require_fencing("g", BROKER_API_VERSIONS[version])


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UnsupportedBrokerError) as raised:
        require_fencing("g", {28: (0, 2)})
    assert "lack TxnOffsetCommit v3 (v2 there) and OffsetFetch v7 (none there)" in str(raised.value)
    with pytest.raises(UnsupportedBrokerError, match=r"lack OffsetFetch v7 \(v6 there\), so"):
        require_fencing("g", {28: (0, 3), 9: (0, 6)})
