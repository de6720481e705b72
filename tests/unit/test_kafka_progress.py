"""kafka_progress(progress): what code that knows Spark's own source finds in it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka.structs import TopicPartition
from pyspark.sql.streaming.listener import StreamingQueryProgress

from pyspark_kafka_rebalance import kafka_progress
from pyspark_kafka_rebalance.consumer.offsets.offset_set import Gap
from pyspark_kafka_rebalance.errors import OffsetFormatError
from pyspark_kafka_rebalance.fetch.offset_range import OffsetRange
from pyspark_kafka_rebalance.source.offsets.offset_json import OURS, offset_to_json
from pyspark_kafka_rebalance.source.offsets.stream_offset import MemberState, StreamOffset

RECORDED = json.loads((Path(__file__).parent / "recorded_progress.json").read_text())

P, Q, R = (TopicPartition("orders", n) for n in range(3))
START = StreamOffset(others={P: 100, Q: 20})
END = StreamOffset(
    ranges={P: OffsetRange(*P, 100, 150)},
    others={Q: 20, R: 7},
    members=(MemberState(41, (P,)),),
    run="kafka_deferred-1f0c",
)


def reported(end: Any, latest: Any, start: Any = START, **source: Any) -> dict[str, Any]:
    """A progress as recorded, with other offsets."""
    (before,) = RECORDED[-1]["sources"]
    offsets = (
        offset_to_json(one) if isinstance(one, StreamOffset) else one
        for one in (start, end, latest)
    )
    named = dict(zip(("startOffset", "endOffset", "latestOffset"), offsets, strict=True))
    return {**RECORDED[-1], "sources": [{**before, **named, **source}]}


def metrics(least: str, most: str, mean: str) -> dict[str, str]:
    names = ("minOffsetsBehindLatest", "maxOffsetsBehindLatest", "avgOffsetsBehindLatest")
    return dict(zip(names, (least, most, mean), strict=True))


LATEST = {"orders": {"0": 160, "1": 20, "2": 12}}


def test_plain_values_have_what_sparks_own_source_reports() -> None:
    given = reported(END, LATEST)
    before = json.dumps(given)
    (source,) = kafka_progress(given)["sources"]
    assert source["description"] == "KafkaV2[Subscribe[orders]]"
    assert source["startOffset"] == {"orders": {"0": 100, "1": 20}}
    assert source["endOffset"] == {"orders": {"0": 150, "1": 20, "2": 7}}
    assert source["latestOffset"] == LATEST
    assert source["metrics"] == metrics("0", "10", "5.0")
    assert source["numInputRows"] == given["sources"][0]["numInputRows"]
    assert json.dumps(given) == before, "what was given is not changed"
    assert kafka_progress(before) == kafka_progress(given)


def test_an_object_of_sparks_is_read_as_code_reads_that_of_sparks_own_source() -> None:
    given = StreamingQueryProgress.fromJson(reported(END, LATEST, start=None))
    told = kafka_progress(given)
    assert isinstance(told, StreamingQueryProgress)
    (source,) = told.sources
    assert source.description.startswith("Kafka")
    assert json.loads(source.endOffset)["orders"]["0"] == 150
    assert {t: sum(ps.values()) for t, ps in json.loads(source.endOffset).items()} == {
        "orders": 177
    }, "a loop over all topics meets only topics"
    assert source.endOffset == '{"orders":{"0":150,"1":20,"2":7}}'
    assert source.startOffset == given.sources[0].startOffset
    assert source.metrics["maxOffsetsBehindLatest"] == "10"
    assert json.loads(told.json) == kafka_progress(given.json)
    assert told.runId == given.runId
    assert told["batchId"] == given.batchId


def test_a_recorded_progress_of_an_earlier_release() -> None:
    for given in RECORDED:
        (before,) = given["sources"]
        (source,) = kafka_progress(given)["sources"]
        positions = {
            p: end
            for fields in (before["endOffset"]["ranges"], before["endOffset"]["positions"])
            for p, end in fields.get("orders", {}).items()
        }
        assert source["endOffset"].get("orders", {}) == {
            p: end[1] if isinstance(end, list) else end for p, end in positions.items()
        }


@pytest.mark.parametrize("latest", [None, "null", "None", {}, END])
def test_without_end_offsets_there_are_no_metrics(latest: Any) -> None:
    """Spark before 4.2 has the end of the batch, or nothing, as ``latestOffset``."""
    (source,) = kafka_progress(reported(END, latest))["sources"]
    assert "metrics" not in source
    assert source["latestOffset"] in (None, {})
    assert source["endOffset"] == {"orders": {"0": 150, "1": 20, "2": 7}}


@pytest.mark.parametrize(
    ("latest", "expected"),
    [
        ({"orders": {"0": 160}}, metrics("10", "10", "10.0")),  # the others have other owners
        ({"orders": {"0": 160, "3": 5}}, metrics("10", "10", "10.0")),  # 3: assigned since
        ({"orders": {"3": 5}}, None),
        ({"orders": {"0": 140}}, metrics("0", "0", "0.0")),
    ],
)
def test_metrics_are_of_partitions_with_a_position_and_an_end(
    latest: Mapping[str, Any], expected: Any
) -> None:
    (source,) = kafka_progress(reported(END, latest))["sources"]
    assert source.get("metrics") == expected


def test_what_is_left_in_gaps_is_behind() -> None:
    end = replace(END, gaps={P: (Gap(3, 5), Gap(7, 10)), Q: (Gap(0, 1),)})
    (source,) = kafka_progress(reported(end, LATEST))["sources"]
    assert source["metrics"] == metrics("1", "15", "7.0")


@pytest.mark.parametrize(
    ("ends", "mean"), [((1, 0, 0), "0.3"), ((1, 1, 0), "0.7"), ((3, 4), "3.5")]
)
def test_the_mean_is_rounded_as_sparks(ends: tuple[int, ...], mean: str) -> None:
    known = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2)
    end = StreamOffset(others=dict.fromkeys(known[: len(ends)], 0))
    latest = {"t": {str(n): at for n, at in enumerate(ends)}}
    (source,) = kafka_progress(reported(end, latest))["sources"]
    assert source["metrics"]["avgOffsetsBehindLatest"] == mean


def test_other_sources_stay_as_they_are() -> None:
    rate = {"description": "RateStreamV2[…]", "startOffset": 4, "endOffset": 5, "latestOffset": 6}
    kafka = {"description": "KafkaV2[Subscribe[x]]", "endOffset": {"x": {"0": 1}}}
    given = reported(END, LATEST)
    given["sources"] += [rate, kafka]
    told = kafka_progress(given)["sources"]
    assert told[1:] == [rate, kafka]
    assert told[0]["description"] == "KafkaV2[Subscribe[orders]]"


def test_no_progress_and_no_such_thing() -> None:
    assert kafka_progress(None) is None
    with pytest.raises(TypeError, match="expected a streaming query or its progress"):
        kafka_progress({"orders": 1})
    with pytest.raises(OffsetFormatError, match="version 5"):
        kafka_progress(reported({OURS: {"version": 5}}, LATEST))
