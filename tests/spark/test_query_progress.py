"""progress(query) of real queries."""

from __future__ import annotations

import json

import pytest

from pyspark_kafka_rebalance import kafka_progress, progress
from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL

from .conftest import built_in_source
from .waiting import wait_until


def rows_of(table):
    return {p.partition: (p.position, p.lag, p.state) for p in table}


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="from Spark 4.2 on a progress has end offsets")
def test_positions_and_members_are_told_without_end_offsets(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 20)
    query = stream(readers="1").start(processingTime="0 seconds")
    told = dict.fromkeys(range(2), (10, None, "assigned"))
    wait_until(lambda: rows_of(progress(query)) == told, lambda: str(progress(query)))
    assert {p.member.rpartition("-")[2] for p in progress(query)} == {"0"}
    assert progress(query).lag is None


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="before Spark 4.2 no lag is known")
def test_two_queries_and_what_moves_between_them(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    # With events a partition is not handed over before a batch says that it is being revoked.
    options = {"readers": "1", "includeRebalanceEvents": "true", "maxOffsetsPerTrigger": "20"}
    first = stream("first", **options).start(processingTime="0 seconds")
    all_read = dict.fromkeys(range(4), (10, 0, "assigned"))
    wait_until(lambda: rows_of(progress(first)) == all_read, lambda: str(progress(first)))
    second = stream("second", **options).start(processingTime="0 seconds")

    def revoked():
        return {p.partition for p in progress(first) if p.state == "revoked"}

    wait_until(lambda: len(revoked()) == 2, lambda: str(progress(first)))
    moved = revoked()
    kafka.produce(topic_name, [b"x"] * 40)
    kept = set(range(4)) - moved
    then_read = dict.fromkeys(range(4), (20, 0, "assigned"))
    wait_until(
        lambda: rows_of(progress(second)) == {p: then_read[p] for p in moved},
        lambda: str(progress(second)),
    )
    wait_until(
        lambda: (
            rows_of(progress(first))
            == {p: then_read[p] for p in kept} | dict.fromkeys(moved, (10, None, "revoked"))
        ),
        lambda: str(progress(first)),
    )
    assert len({p.member for p in progress(first)}) == 1
    assert not {p.member for p in progress(first)} & {p.member for p in progress(second)}

    recent = first.recentProgress
    course = [progress(recent[:n]) for n in range(1, len(recent) + 1)]
    assert 20 in [table.lag for table in course], "after the first batch of 20"
    revoking = [{p.partition for p in t if p.state == "revoking"} for t in course]
    assert moved in revoking
    assert {"assigned"} == {p.state for p in progress(first.lastProgress) if p.partition in kept}


@built_in_source
def test_code_that_watches_sparks_own_source_finds_the_same_here(kafka, topic_name, stream):
    """``endOffset`` without any change, the rest with ``kafka_progress``."""
    kafka.create_topic(topic_name, partitions=3)
    for partition, count in enumerate((20, 20, 0)):
        kafka.produce(topic_name, [b"x"] * count, partition=partition)
    options = {"maxOffsetsPerTrigger": "10"}  # shared out evenly: the two round differently
    only_ours = {"readers": "", "kafka__group__id": "", "checkpointLocation": ""}
    ours, theirs = stream("ours", **options), stream("theirs", **only_ours, **options)
    theirs.source = "kafka"
    told = []
    for run in (ours, theirs):
        run.run()
        told.append([one for one in run.query.recentProgress if one.numInputRows])
    assert len(told[0]) == len(told[1]) == 4
    for mine, its in zip(*told, strict=True):
        (found,), (plain,), (expected,) = kafka_progress(mine).sources, mine.sources, its.sources
        end = json.loads(expected.endOffset)
        assert json.loads(plain.endOffset)[topic_name] == end[topic_name]
        assert json.loads(found.endOffset) == end
        assert json.loads(found.latestOffset) == json.loads(expected.latestOffset)
        assert found.description == expected.description
        assert found.metrics == expected.metrics
    assert told[0][0].sources[0].metrics == {}, "if Spark lets a source set them, let it"
