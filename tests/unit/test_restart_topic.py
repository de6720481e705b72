"""The topic of a producer group, where brokers go down while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.producer import restart_topic


class Admin:
    """An administration client whose brokers are away at first."""

    def __init__(self, failures: Iterator[Exception]) -> None:
        self._failures = failures

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        failure = next(self._failures, None)
        if failure is not None:
            raise failure
        leader = {"leader_id": 1}
        return [{"error_code": 0, "partitions": [leader, leader, leader]}]

    def describe_configs(self, *_: Any, **__: Any) -> dict[str, Any]:
        settings = {"cleanup.policy": "compact", "max.message.bytes": "9999999"}
        return {"topic": {"t": {name: {"value": value} for name, value in settings.items()}}}

    def close(self) -> None:
        pass


def looked_at(monkeypatch: pytest.MonkeyPatch, *failures: Exception) -> list[Any]:
    """The clients that it took."""
    made: list[Any] = []
    left = iter(failures)

    def make(_: Any) -> Admin:
        made.append(Admin(left))
        return made[-1]

    monkeypatch.setattr(restart_topic, "admin_client", make)
    monkeypatch.setattr(restart_topic, "offered_versions", lambda admin: {28: (0, 3), 9: (0, 7)})
    restart_topic.ensure_topic({}, "g", "t", 3)
    return made


def test_a_broker_that_is_gone_is_asked_for_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next client bootstraps anew, and may come to another one."""
    gone = (kafka_errors.KafkaConnectionError(), kafka_errors.NotControllerError())
    assert len(looked_at(monkeypatch, *gone)) == 3


def test_what_brokers_refuse_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(kafka_errors.ClusterAuthorizationFailedError):
        looked_at(monkeypatch, kafka_errors.ClusterAuthorizationFailedError())


def test_brokers_that_stay_away_are_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restart_topic, "_PATIENCE_S", 0.2)
    with pytest.raises(kafka_errors.KafkaConnectionError):
        looked_at(monkeypatch, *[kafka_errors.KafkaConnectionError()] * 99)
