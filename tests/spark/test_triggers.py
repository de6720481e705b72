"""The triggers: ProcessingTime, AvailableNow and Once, and continuous, which is refused."""

from __future__ import annotations

import threading

import pytest
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL

from .conftest import offsets_of
from .lone_members import kill
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


trigger_is_told = pytest.mark.skipif(
    not HAS_ADMISSION_CONTROL,
    reason="before Spark 4.2 nobody tells the source that a run has an end",
)


@trigger_is_told
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_once_with_events_reads_what_its_members_exchange_when_they_join(
    kafka, topic_name, stream, protocol
):
    """From the second run on its batch had the rows of what moved, and not the records."""
    kafka.create_topic(topic_name, partitions=6)
    query = stream(includeRebalanceEvents="true", readers="3", kafka__group__protocol=protocol)
    for run in range(4):
        kafka.produce(topic_name, [b"x"] * 60)
        read = [at for at in query.run(once=True).to_pylist() if at["event"] is None]
        assert sorted((r["partition"], r["offset"]) for r in read) == [
            (p, o) for p in range(6) for o in range(10 * run, 10 * run + 10)
        ]


@pytest.fixture
def a_member(kafka, topic_name, group_id):
    """Make a plain member of the group, in either protocol, that owns all four partitions."""
    made = []

    def make(protocol):
        kafka.create_topic(topic_name, partitions=4)
        kafka.produce(topic_name, [b"x"] * 40)
        kafka.configure_group(group_id, {"consumer.session.timeout.ms": 10_000})
        member = DeferredRevokeConsumer(
            topic_name,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            group_protocol=protocol,
            session_timeout_ms=10_000,
            auto_offset_reset="earliest",
        )
        made.append(member)
        wait_until(lambda: len(member.poll_membership() and member.assignment()) == 4, "owns all")
        return member

    yield make
    for member in made:
        member.close(timeout_ms=0)


@pytest.mark.parametrize(
    ("protocol", "trigger"),
    [
        ("classic", {"availableNow": True}),
        pytest.param("consumer", {"availableNow": True}, marks=[trigger_is_told, pytest.mark.long]),
        pytest.param("consumer", {"once": True}, marks=trigger_is_told),
    ],
)
def test_a_run_with_an_end_waits_for_what_a_dead_member_owned(stream, a_member, protocol, trigger):
    """It ended with nothing read and no error while the dead one's session went on."""
    dead = a_member(protocol)
    kill(dead)
    query = stream(kafka__group__protocol=protocol, kafka__session__timeout__ms="10000")
    assert offsets_of(query.run(**trigger)) == [(p, o) for p in range(4) for o in range(10)]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_run_with_an_end_leaves_to_a_live_member_what_that_owns(stream, a_member, protocol):
    live = a_member(protocol)
    ended = threading.Event()

    def poll():
        while not ended.wait(0.05):
            live.poll_membership()

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        query = stream(kafka__group__protocol=protocol, readers="1")
        read = offsets_of(query.run())
        mine = {partition for partition, _ in read}
        assert read == [(p, o) for p in sorted(mine) for o in range(10)]
        assert len(mine) == 2, "both have their share"
    finally:
        ended.set()
        polling.join()


@trigger_is_told
@pytest.mark.parametrize(
    ("protocol", "trigger", "checkpoint"),
    [
        ("classic", {"availableNow": True}, True),
        ("consumer", {"availableNow": True}, False),
        pytest.param("classic", {"once": True}, True, marks=pytest.mark.long),
        pytest.param("consumer", {"once": True}, True, marks=pytest.mark.long),
    ],
)
def test_a_run_with_an_end_of_two_loads_with_one_group_reads_every_record_once(
    kafka, topic_name, stream, protocol, trigger, checkpoint
):
    """The second load waited for what the first had in the same batch, until its revoke timed out.

    Then it read that as well.
    """
    kafka.create_topic(topic_name, partitions=4)
    given = {} if checkpoint else {"checkpointLocation": ""}
    query = stream(kafka__group__protocol=protocol, maxOffsetsPerTrigger="8", **given)
    query.frame = lambda: query.load().union(query.load())
    for run in range(2):
        kafka.produce(topic_name, [b"x"] * 40)
        assert offsets_of(query.run(**trigger)) == [
            (p, o) for p in range(4) for o in range(10 * run, 10 * run + 10)
        ]


@trigger_is_told
def test_a_join_of_two_loads_with_one_group_reads_every_record_once(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    query = stream(maxOffsetsPerTrigger="8")
    query.frame = lambda: query.load().join(query.load(), ["partition", "offset"])
    assert query.run().num_rows == 0, "what one load has, the other has not"
    assert sum(progress.numInputRows for progress in query.query.recentProgress) == 40


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
