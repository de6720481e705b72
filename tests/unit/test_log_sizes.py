"""Sizes of logs out of what DescribeLogDirs answers."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source import log_sizes as log_sizes_module
from pyspark_kafka_rebalance.source.log_sizes import log_sizes

P, Q = (TopicPartition("t", n) for n in range(2))


def log_dir(*logs: tuple[int, int, bool]) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": "t",
                "partitions": [
                    {"partition_index": index, "partition_size": size, "is_future_key": future}
                    for index, size, future in logs
                ],
            }
        ]
    }


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the brokers answer."""
    answer: list[dict[str, Any]] = []

    class Admin:
        def __init__(self, **config: Any) -> None:
            assert config == {"bootstrap_servers": "h:1"}

        def describe_log_dirs(self, topics: dict[str, list[int]]) -> list[dict[str, Any]]:
            assert topics == {"t": [0, 1]}
            return answer

        def close(self) -> None: ...

    monkeypatch.setattr(log_sizes_module, "admin_client", lambda config: Admin(**config))
    return answer


def test_the_largest_replica_counts_and_no_copy_that_is_under_way(
    described: list[dict[str, Any]],
) -> None:
    described += [
        {"broker": 1, "log_dirs": [log_dir((0, 900, False)), log_dir((1, 70, False))]},
        {"broker": 2, "log_dirs": [log_dir((0, 1_000, False), (1, 9_999, True))]},
        {"broker": 3, "log_dirs": []},
    ]
    assert log_sizes({"bootstrap_servers": "h:1"}, {P, Q}) == {P: 1_000, Q: 70}


def test_what_no_broker_tells_is_named(described: list[dict[str, Any]]) -> None:
    """A broker that does not allow to ask answers with nothing, as kafka-python has it."""
    described.append({"broker": 1, "log_dirs": [log_dir((0, 900, False))]})
    with pytest.raises(KafkaRebalanceError, match=r"maxBytesPerTrigger.* t-1;.*DESCRIBE"):
        log_sizes({"bootstrap_servers": "h:1"}, {P, Q})
