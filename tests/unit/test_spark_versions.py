"""Spark 4.0's and 4.1's order of calls, turned into that of 4.2."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions
from pyspark_kafka_rebalance.source.spark import spark_versions
from pyspark_kafka_rebalance.source.spark.spark_versions import (
    StreamReaderOfSpark40,
    reader_for_this_spark,
)
from pyspark_kafka_rebalance.source.stream import KafkaDeferredStreamReader

INITIAL = {"end": 0}
LIMIT = "the limit of the options"


class FakeReader:
    """One of Spark 4.2, which notes its calls; ``end`` is as far as the topic goes."""

    def __init__(self) -> None:
        self.end = 0
        self.calls: list[tuple[Any, ...]] = []

    def initialOffset(self) -> dict[str, Any]:
        return INITIAL

    def getDefaultReadLimit(self) -> str:
        return LIMIT

    def latestOffset(self, start: dict[str, Any], limit: str) -> dict[str, Any]:
        self.calls.append(("latestOffset", start, limit))
        return {"end": self.end} if self.end != start["end"] else start

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        self.calls.append(("partitions", start, end))
        return []

    def commit(self, end: dict[str, Any]) -> None:
        self.calls.append(("commit", end))

    def starts(self) -> list[Any]:
        return [call[1] for call in self.calls if call[0] == "latestOffset"]


class DerivedReader(KafkaDeferredStreamReader):
    """As the tests' own, which die at a point of a trigger."""


@pytest.mark.parametrize("told", [True, False], ids=["4.2", "4.0"])
@pytest.mark.parametrize("make", [KafkaDeferredStreamReader, DerivedReader])
def test_the_reader_is_one_that_this_version_calls(
    monkeypatch: pytest.MonkeyPatch, make: type[KafkaDeferredStreamReader], told: bool
) -> None:
    monkeypatch.setattr(spark_versions, "HAS_ADMISSION_CONTROL", told)
    given = {"kafka.bootstrap.servers": "b:1", "kafka.group.id": "g", "subscribe": "t"}
    reader = reader_for_this_spark(make, SourceOptions.parse(given, default_readers=1))
    inner = reader if told else reader._reader  # type: ignore[attr-defined]
    assert isinstance(reader, StreamReaderOfSpark40) != told
    assert type(inner) is make
    assert inner.__getstate__()["trigger_is_told"] == told


def at(end: int) -> dict[str, Any]:
    return {"end": end}


@pytest.fixture
def inner() -> FakeReader:
    return FakeReader()


@pytest.fixture
def reader(inner: FakeReader) -> StreamReaderOfSpark40:
    return StreamReaderOfSpark40(inner)  # type: ignore[arg-type]


def test_a_fresh_query(inner: FakeReader, reader: StreamReaderOfSpark40) -> None:
    inner.end = 10
    assert reader.latestOffset() == at(10)
    assert reader.initialOffset() == INITIAL
    reader.partitions(INITIAL, at(10))
    assert reader.latestOffset() == at(10)  # idle
    assert reader.latestOffset() == at(10)
    inner.end = 20
    assert reader.latestOffset() == at(20)
    reader.commit(at(10))
    reader.partitions(at(10), at(20))
    assert reader.latestOffset() == at(20)
    assert inner.starts() == [INITIAL, at(10), at(10), at(10), at(20)]
    assert ("commit", at(10)) in inner.calls
    assert inner.calls[0] == ("latestOffset", INITIAL, LIMIT)


def test_nothing_at_the_start(inner: FakeReader, reader: StreamReaderOfSpark40) -> None:
    assert reader.latestOffset() == INITIAL
    assert reader.latestOffset() == INITIAL
    inner.end = 10
    assert reader.latestOffset() == at(10)


def test_a_restart_goes_on_from_the_last_batch(
    inner: FakeReader, reader: StreamReaderOfSpark40
) -> None:
    inner.end = 20
    reader.partitions(at(10), at(10))  # Spark tells where it stands
    assert reader.latestOffset() == at(20)
    assert inner.starts() == [at(10)]


def test_a_restart_with_a_batch_to_repeat(inner: FakeReader, reader: StreamReaderOfSpark40) -> None:
    inner.end = 20
    reader.partitions(at(10), at(10))
    reader.partitions(at(5), at(10))
    assert reader.latestOffset() == at(20)
    assert inner.starts() == [at(10)]
    assert ("partitions", at(5), at(10)) in inner.calls


def test_the_wrapper_for_available_now_is_refused(
    inner: FakeReader, reader: StreamReaderOfSpark40
) -> None:
    """It asks once for the end, and again for each progress report."""
    inner.end = 10
    reader.latestOffset()
    with pytest.raises(KafkaRebalanceError, match=r"triggerAvailableNowWrapper\.enabled=true"):
        reader.latestOffset()


def test_the_wrapper_for_available_now_is_refused_on_a_restart(
    inner: FakeReader, reader: StreamReaderOfSpark40
) -> None:
    """It asks before Spark has told where it stands: ranges could overlap with the last batch."""
    inner.end = 20
    reader.latestOffset()
    with pytest.raises(KafkaRebalanceError, match=r"triggerAvailableNowWrapper\.enabled=true"):
        reader.partitions(at(10), at(10))
