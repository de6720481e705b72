"""What leaves for Spark, and whether its stack is hidden."""

from __future__ import annotations

import inspect
import logging
import os
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.errors import AuthorizationError, DataLossError, KafkaRebalanceError
from pyspark_kafka_rebalance.source.spark.shown_errors import shows_our_errors

HIDE = "SPARK_HIDE_TRACEBACK"


@shows_our_errors
class Calls:
    """As Spark calls a reader."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def latestOffset(self, start: str, limit: int = 1) -> str:
        """Raise it."""
        if self.error is not None:
            raise self.error
        return start * limit

    def read(self, count: int) -> Iterator[int]:
        yield from range(count)
        self.latestOffset("x")


@pytest.fixture(autouse=True)
def sparks_process(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=spec))  # type: ignore[arg-type]
    monkeypatch.setenv(HIDE, "")


def test_what_spark_asks_of_a_reader_stays_as_it_is() -> None:
    assert Calls().latestOffset("x", limit=2) == "xx"
    assert list(Calls().read(2)) == [0, 1]
    assert list(inspect.signature(Calls().latestOffset).parameters) == ["start", "limit"]
    assert Calls.latestOffset.__doc__ == "Raise it."
    assert os.environ[HIDE] == ""


def test_our_error_is_shown_without_its_stack_which_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DataLossError, match=r"^gone$"):
        Calls(DataLossError("gone")).latestOffset("x")
    assert os.environ[HIDE] == "1"
    assert "raised to Spark: gone\nTraceback (most recent call last)" in caplog.text


def test_an_error_while_rows_are_read() -> None:
    rows = Calls(DataLossError("gone")).read(1)
    assert next(rows) == 0
    assert os.environ[HIDE] == ""
    with pytest.raises(DataLossError):
        next(rows)
    assert os.environ[HIDE] == "1"


@pytest.mark.parametrize(
    ("error", "shown", "line"),
    [
        (kafka_errors.KafkaTimeoutError("5 s"), KafkaRebalanceError, "a request to Kafka failed"),
        (kafka_errors.TopicAuthorizationFailedError("t"), AuthorizationError, "READ|DESCRIBE"),
    ],
)
def test_an_error_of_kafka_python_is_shown_as_ours(
    error: Exception, shown: type[Exception], line: str
) -> None:
    with pytest.raises(shown, match=line):
        Calls(error).latestOffset("x")
    assert os.environ[HIDE] == "1"


def test_a_defect_keeps_its_stack() -> None:
    with pytest.raises(ZeroDivisionError):
        Calls(ZeroDivisionError()).latestOffset("x")
    assert os.environ[HIDE] == ""


def test_a_process_of_the_users_own_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(__spec__=None))  # type: ignore[arg-type]
    with pytest.raises(DataLossError):
        Calls(DataLossError("gone")).latestOffset("x")
    assert os.environ[HIDE] == ""
