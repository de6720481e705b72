"""Sizes of logs out of what their leaders answer to DescribeLogDirs."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source.group.logs import log_sizes as log_sizes_module
from pyspark_kafka_rebalance.source.group.logs.log_sizes import log_sizes

P, Q = (TopicPartition("t", n) for n in range(2))
CONFIG = {"bootstrap_servers": "h:1"}


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


class Admin:
    """Knows what each broker answers, log dirs or an error, and notes what it is asked."""

    def __init__(self) -> None:
        self.answers: dict[int, list[dict[str, Any]] | Exception] = {}
        self.asked: list[tuple[int, dict[str, list[int]]]] = []
        self.closed = 0

    def describe_log_dirs(
        self, topics: dict[str, list[int]], brokers: list[int]
    ) -> list[dict[str, Any]]:
        (broker,) = brokers
        self.asked.append((broker, topics))
        answer = self.answers[broker]
        if isinstance(answer, Exception):
            raise answer
        return [{"broker": broker, "log_dirs": answer}]

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> Admin:
    made = Admin()

    def admin_client(config: dict[str, Any]) -> Admin:
        assert config == CONFIG
        return made

    monkeypatch.setattr(log_sizes_module, "admin_client", admin_client)
    return made


def test_leaders_alone_are_asked_and_no_copy_that_is_under_way_counts(admin: Admin) -> None:
    admin.answers = {
        1: [log_dir((0, 1_000, False)), log_dir((0, 9_999, True))],
        2: [log_dir((1, 70, False))],
        3: kafka_errors.KafkaConnectionError("away"),
    }
    assert log_sizes(CONFIG, {P: 1, Q: 2}) == {P: 1_000, Q: 70}
    assert admin.asked == [(1, {"t": [0]}), (2, {"t": [1]})]
    assert admin.closed == 1


@pytest.mark.parametrize(
    "error", [kafka_errors.KafkaConnectionError("away"), kafka_errors.UnknownBrokerIdError(1)]
)
def test_a_leader_that_does_not_answer_leaves_out_its_own_partitions(
    admin: Admin, error: Exception
) -> None:
    admin.answers = {1: error, 2: [log_dir((1, 70, False))]}
    assert log_sizes(CONFIG, {P: 1, Q: 2}) == {Q: 70}


def test_what_is_led_elsewhere_by_now_is_left_out(admin: Admin) -> None:
    admin.answers = {1: [log_dir((1, 70, False))]}
    assert log_sizes(CONFIG, {P: 1, Q: 1}) == {Q: 70}


def test_what_no_broker_may_tell_is_named(admin: Admin) -> None:
    """A broker that does not allow to ask answers with nothing, as kafka-python has it."""
    admin.answers = {1: [log_dir((0, 900, False))], 2: []}
    with pytest.raises(KafkaRebalanceError, match=r"maxBytesPerTrigger.* t-1;.*DESCRIBE"):
        log_sizes(CONFIG, {P: 1, Q: 2})
    assert admin.closed == 1


def test_a_refusal_for_good_is_raised(admin: Admin) -> None:
    admin.answers = {1: kafka_errors.ClusterAuthorizationFailedError()}
    with pytest.raises(kafka_errors.ClusterAuthorizationFailedError):
        log_sizes(CONFIG, {P: 1})
    assert admin.closed == 1
