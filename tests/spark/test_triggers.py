"""The triggers: ProcessingTime, AvailableNow and Once, and continuous, which is refused."""

from __future__ import annotations

import pytest
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException

from pyspark_kafka_rebalance.source.spark_versions import HAS_ADMISSION_CONTROL

from .conftest import offsets_of
from .waiting import wait_until


@pytest.mark.core
@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_a_run_that_ends_by_itself_reads_all_there_is_and_commits_it(
    kafka, topic_name, stream, committed, trigger
):
    kafka.create_topic(topic_name, partitions=3)
    query = stream()
    for run in range(3):
        kafka.produce(topic_name, [b"x"] * 30)
        read = query.run(**trigger)
        assert offsets_of(read) == [
            (p, o) for p in range(3) for o in range(10 * run, 10 * run + 10)
        ]
        ends = {TopicPartition(topic_name, p): 10 * run + 10 for p in range(3)}
        wait_until(lambda ends=ends: committed() == ends, "committed")
    assert query.run(**trigger).num_rows == 0


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="from Spark 4.2 on AvailableNow has many batches")
def test_a_limit_holds_for_the_one_batch_of_available_now(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 30)
    query = stream(maxOffsetsPerTrigger="20")
    assert query.run().num_rows == 20
    assert offsets_of(query.run()) == [(0, o) for o in range(20, 30)]


@pytest.mark.skipif(HAS_ADMISSION_CONTROL, reason="Spark 4.2 needs no wrapper for AvailableNow")
def test_sparks_wrapper_for_available_now_is_refused(spark, kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 3)
    name = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
    spark.conf.set(name, "true")
    try:
        with pytest.raises(StreamingQueryException, match=f"{name}=true is not supported"):
            stream().run()
    finally:
        spark.conf.unset(name)


@pytest.mark.core
@pytest.mark.parametrize("checkpoint", [True, False])
def test_processing_time_commits_every_batch_also_the_last(
    kafka, topic_name, stream, committed, checkpoint
):
    """An idle stream's last batch: nothing tells of it on Spark 4.0 and 4.1 but the next one."""
    kafka.create_topic(topic_name, partitions=2)
    query = stream(**({} if checkpoint else {"checkpointLocation": ""}))
    running = query.start(processingTime="200 milliseconds")
    for end in (10, 20):
        kafka.produce(topic_name, [b"x"] * 20)
        wait_until(lambda end=end: query.rows().num_rows == 2 * end, "read")
        wait_until(
            lambda end=end: committed() == {TopicPartition(topic_name, p): end for p in range(2)},
            f"all committed at {end}",
        )
    running.stop()
    assert offsets_of(query.rows()) == [(p, o) for p in range(2) for o in range(20)]


def test_continuous_is_refused(spark, kafka, topic_name, stream, tmp_path):
    kafka.create_topic(topic_name, partitions=1)
    frame = spark.readStream.format("kafka_deferred").options(**stream().options).load()
    writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c"))
    with pytest.raises(Exception, match="kafka_deferred does not support continuous"):
        writer.trigger(continuous="1 second").start().awaitTermination(60)
