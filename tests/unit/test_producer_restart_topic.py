"""The topic of restart points, as brokers tell of it."""

from __future__ import annotations

from typing import Any

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.producer.restart_topic import _check_settings


class Admin:
    def __init__(self, **settings: str) -> None:
        self.settings = {name.replace("_", "."): {"value": v} for name, v in settings.items()}

    def describe_configs(self, *_: Any, **__: Any) -> dict[str, Any]:
        return {"topic": {"points": self.settings}}


def test_a_broker_that_has_not_heard_of_the_new_topic_is_asked_again() -> None:
    """It says nothing, which was taken for a topic that would forget restart points."""
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError) as refused:
        _check_settings(Admin(), "points")  # type: ignore[arg-type]
    assert refused.value.retriable


def test_a_topic_that_would_forget_restart_points_is_refused() -> None:
    with pytest.raises(OptionError, match="not delete"):
        _check_settings(Admin(cleanup_policy="delete"), "points")  # type: ignore[arg-type]
    _check_settings(
        Admin(cleanup_policy="compact", max_message_bytes="2000000"),  # type: ignore[arg-type]
        "points",
    )
