"""stop_gracefully in the midst of traffic: nothing is repeated, nothing is left behind."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import stop_gracefully
from pyspark_kafka_rebalance.consumer.group_description import describe_group
from pyspark_kafka_rebalance.source.spark.read_limits import HAS_ADMISSION_CONTROL
from pyspark_kafka_rebalance.source.stop import graceful_stop
from pyspark_kafka_rebalance.source.stop.stop_request import answer_of

from . import waiting
from .conftest import SteadyProducer
from .dying_source import BEFORE_COMMIT_LOG, Death, DyingDataSource

PATIENCE_S = 120.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)


def delivered(*queries):
    return sorted(
        pair
        for query in queries
        for batch in list(query.batches.values())
        if batch.num_rows
        for pair in zip(batch["partition"].to_pylist(), batch["offset"].to_pylist(), strict=True)
    )


def states_of(query) -> str:
    """What has become of a query, for whoever waits for it in vain."""
    batches = {number: batch.num_rows for number, batch in query.batches.items()}
    return f"{query.query.status}, failed with {query.query.exception()}, rows {batches}"


def planners_answer(query) -> str:
    """What the planner of the run that was stopped has left for all who ask."""
    (answer,) = {answer_of(run) for run in graceful_stop._ends(query.query)}
    return answer


class HeldBatch:
    """The sink's next batch with rows, which does not end before ``may_end``."""

    def __init__(self, query):
        self.reached = threading.Event()
        self.may_end = threading.Event()
        query.on_batch = self._hold

    def _hold(self, batch_id, batch):
        if batch.num_rows:
            self.reached.set()
            assert self.may_end.wait(PATIENCE_S)


@pytest.fixture
def asked(monkeypatch):
    """Set when the planner of the query that is stopped has been asked."""
    event, is_busy = threading.Event(), graceful_stop._is_busy

    def noted(query):
        event.set()
        return is_busy(query)

    monkeypatch.setattr(graceful_stop, "_is_busy", noted)
    return event


@pytest.fixture
def members(kafka, group_id):
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    yield lambda: describe_group(admin, group_id).members
    admin.close()


def test_two_queries_of_a_group_of_which_one_stops_in_mid_batch(
    kafka, topic_name, stream, members, committed, asked
):
    """Without checkpointLocation, which would tell the source of its last batch as well."""
    kafka.create_topic(topic_name, partitions=6)
    with SteadyProducer(kafka, topic_name, partitions=6, per_second=300) as producer:
        first, second = (stream(name, checkpointLocation="") for name in ("A", "B"))
        for query in (first, second):
            query.start(processingTime="0 seconds")
        wait_until(
            lambda: delivered(first) and delivered(second),
            lambda: f"both read; they do not: {[states_of(each) for each in (first, second)]}",
        )
        batch = HeldBatch(first)
        batch.may_end = asked  # the sink has done its part, and Spark has not committed the batch
        assert batch.reached.wait(PATIENCE_S)
        assert stop_gracefully(first.query, timeout_s=PATIENCE_S)
        assert len(members()) == 2, "those of the other query"
        assert not first.query.isActive
        producer.stop()
        consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
        ends = consumer.end_offsets([TopicPartition(topic_name, p) for p in range(6)])
        consumer.close()
        wait_until(lambda: committed() == ends, "the other has the rest")
    assert delivered(first, second) == [
        (p.partition, o) for p in sorted(ends) for o in range(ends[p])
    ]


def test_a_batch_that_takes_longer_is_interrupted(kafka, topic_name, stream, members, monkeypatch):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    query = stream()
    batch = HeldBatch(query)
    query.start(processingTime="0 seconds")
    assert batch.reached.wait(PATIENCE_S)
    stop = query.query.stop

    def stop_and_let_the_sink_end():
        threading.Timer(0.5, batch.may_end.set).start()  # Spark's stop() waits for the sink
        stop()

    monkeypatch.setattr(query.query, "stop", stop_and_let_the_sink_end)
    assert not stop_gracefully(query.query, timeout_s=0.0)
    assert not query.query.isActive
    wait_until(lambda: members() == (), "its member leaves")


def hold_the_second_batch(kafka, topic_name, query, committed, may_end):
    """Five records of each partition are committed, five more in the sink."""
    kafka.create_topic(topic_name, partitions=2)
    kafka.produce(topic_name, [b"x"] * 10)
    query.start(processingTime="0 seconds")
    wait_until(lambda: set(committed().values()) == {5}, "all is read")
    batch = HeldBatch(query)
    batch.may_end = may_end
    kafka.produce(topic_name, [b"y"] * 10)
    assert batch.reached.wait(PATIENCE_S)


def test_a_batch_that_the_group_has_given_up_is_not_said_to_be_committed(
    kafka, topic_name, group_id, stream, members, committed, asked
):
    """maxBatchDurationMs: by the time that Spark commits it, the members are out of the group."""
    query = stream(maxBatchDurationMs="3000", checkpointLocation="")
    hold_the_second_batch(kafka, topic_name, query, committed, asked)
    wait_until(lambda: members() == (), "the members leave")
    other = KafkaConsumer(
        topic_name,
        group_id=group_id,
        bootstrap_servers=kafka.bootstrap_servers,
        partition_assignment_strategy=[CooperativeStickyAssignor],
        enable_auto_commit=False,
    )
    with other:
        # With partitions or without: kafka-python may assign before it has the topic's metadata.
        wait_until(lambda: other.poll(100) or members(), "another member joins")
        # It polls no more, so that no join completes: Spark's next trigger proves the batch, and
        # members that were back before the source left would have it committed after all.
        assert not stop_gracefully(query.query, timeout_s=PATIENCE_S)
        assert query.query.exception() is None
        assert set(committed().values()) == {5}
    assert planners_answer(query) == "uncommitted"


@pytest.mark.newest_spark
@pytest.mark.parametrize("comes_back", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_coordinator_is_away_when_the_batch_ends(
    kafka, topic_name, stream, committed, asked, comes_back
):
    """For longer than a planner takes that nobody waits for."""
    query = stream(kafka__session__timeout__ms="45000", checkpointLocation="")
    hold_the_second_batch(kafka, topic_name, query, committed, asked)
    kafka.stop()
    try:
        with ThreadPoolExecutor(1) as one:
            timeout_s = PATIENCE_S if comes_back else 15.0
            stopped = one.submit(stop_gracefully, query.query, timeout_s)
            assert asked.wait(PATIENCE_S)
            wait_until(lambda: not query.query.isActive, "Spark has stopped the query")
            if comes_back:
                time.sleep(5.0)
                kafka.restart()
            assert stopped.result() == comes_back
    finally:
        kafka.restart()
    assert set(committed().values()) == {10 if comes_back else 5}
    assert planners_answer(query) == ("committed" if comes_back else "uncommitted")


def test_with_async_progress_tracking_what_spark_has_logged_is_committed(
    kafka, topic_name, stream, committed
):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    writer_options = {
        "asyncProgressTrackingEnabled": "true",
        "asyncProgressTrackingCheckpointIntervalMs": "500",
        "_asyncProgressTrackingOverrideSinkSupportCheck": "true",  # none knows foreachBatch
    }
    running = stream(writer_options=writer_options).start(processingTime="0 seconds")
    wait_until(lambda: set(committed().values()) == {10}, "Spark has logged the batch")
    assert stop_gracefully(running, timeout_s=PATIENCE_S)


@pytest.mark.core
def test_an_idle_query_knows_who_is_asked(kafka, topic_name, stream):
    """At its very start, and after a restart: there is no batch that names the run that reads."""
    kafka.create_topic(topic_name, partitions=1)
    query = stream()
    for _ in range(2):
        running = query.start(processingTime="200 milliseconds")
        wait_until(lambda r=running: r.lastProgress is not None, "a batch")
        assert stop_gracefully(running, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("checkpoint", [True, False])
def test_a_run_with_once_has_only_one_batch_and_ends_before_it_can_be_asked(
    kafka, topic_name, stream, committed, checkpoint
):
    """Nothing comes after the batch that would prove it, but the checkpoint if it is known."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    query = stream(**({} if checkpoint else {"checkpointLocation": ""}))
    batch = HeldBatch(query)
    query.start(once=True)
    assert batch.reached.wait(PATIENCE_S)
    with ThreadPoolExecutor(1) as one:
        stopped = one.submit(stop_gracefully, query.query, PATIENCE_S)
        batch.may_end.set()
        query.query.awaitTermination(PATIENCE_S)
        # Whichever it is, the group has it or it is not said to.
        assert stopped.result() == (committed() == {TopicPartition(topic_name, 0): 10})
    assert query.query.exception() is None


def test_a_batch_that_another_stop_has_interrupted(kafka, topic_name, stream, committed):
    query = stream(checkpointLocation="")  # else stop() may find that it was complete after all
    held = threading.Event()
    hold_the_second_batch(kafka, topic_name, query, committed, held)
    threading.Timer(0.5, held.set).start()  # Spark's stop() waits for the sink
    query.query.stop()
    assert not stop_gracefully(query.query), "and it may have been the one to be asked"
    assert set(committed().values()) == {5}


def test_a_run_that_has_ended_by_itself_is_complete(kafka, topic_name, stream, committed):
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 10)
    query = stream(checkpointLocation="")
    query.run()
    complete = committed() == {TopicPartition(topic_name, 0): 10}
    assert complete or not HAS_ADMISSION_CONTROL, "it knows its end, and waits for the commit"
    assert [stop_gracefully(query.query) for _ in range(2)] == [complete, complete]


def test_a_run_that_had_nothing_to_read_has_stopped(kafka, topic_name, stream):
    kafka.create_topic(topic_name, partitions=1)
    query = stream()
    query.run()
    assert stop_gracefully(query.query)


def test_who_asked_died_and_the_query_reads_on(
    spark, kafka, topic_name, stream, members, committed
):
    """Another query of the group has the partitions meanwhile."""
    kafka.create_topic(topic_name, partitions=4)
    kafka.produce(topic_name, [b"x"] * 40)
    first, second = stream("A"), stream("B")
    running = first.start(processingTime="0 seconds")
    wait_until(lambda: set(committed().values()) == {10}, "all is read")
    (run,) = graceful_stop._ends(running)
    second.start(processingTime="0 seconds")
    wait_until(lambda: len(members()) == 4, "both are in the group")
    assert graceful_stop._Planners(spark, stop_within_s=8.0, deadline=0.0).tell(run, None)
    wait_until(lambda: len(members()) == 2, "the members of the one that was asked leave")
    kafka.produce(topic_name, [b"y"] * 40)
    wait_until(lambda: len(members()) == 4, "they are there again")
    wait_until(lambda: [len(m.assigned) for m in members()] == [1] * 4, "they have partitions")
    kafka.produce(topic_name, [b"z"] * 40)
    wait_until(lambda: set(committed().values()) == {30}, "all is read")
    assert delivered(first, second) == [(p, o) for p in range(4) for o in range(30)]
    assert stop_gracefully(running, timeout_s=PATIENCE_S), "who asks now reaches it"


def test_a_query_of_another_source(spark, tmp_path):
    frame = spark.readStream.format("rate").option("rowsPerSecond", "100").load()
    query = (
        frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        wait_until(lambda: query.lastProgress is not None, "a batch")
        with pytest.raises(ValueError, match="no source kafka_deferred"):
            stop_gracefully(query)
        assert query.isActive
    finally:
        query.stop()


@pytest.mark.skipif(not HAS_ADMISSION_CONTROL, reason="AvailableNow has one batch")
def test_a_run_with_an_end_of_which_one_load_has_read_nothing_yet(
    kafka, topic_name, group_id, stream, asked
):
    """The progress names the run before of that load; the other one was not asked at all."""
    topics = [topic_name, f"{topic_name}-idle"]
    for topic in topics:
        kafka.create_topic(topic, partitions=1)
        kafka.produce(topic, [b"x"] * 10)
    query = stream(maxOffsetsPerTrigger="10")

    def load(topic):
        query.options |= {"subscribe": topic, "kafka.group.id": f"{group_id}-{topic}"}
        return query.load()

    query.frame = lambda: load(topics[1]).union(load(topics[0]))
    assert query.run().num_rows == 20
    kafka.produce(topic_name, [b"x"] * 40)
    before = set(query.batches)
    reached = threading.Event()

    def on_batch(batch_id, rows):
        if batch_id > len(before):  # the first has told of the run
            reached.set()
            assert asked.wait(PATIENCE_S)

    query.on_batch = on_batch
    query.start(availableNow=True)
    assert reached.wait(PATIENCE_S)
    assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    assert query.rows(before).num_rows == 20, "the batch under way, and no other"


def test_after_a_kill_the_planner_is_asked_that_is_there(
    spark, kafka, topic_name, stream, committed, monkeypatch
):
    """While the first batch after the replay runs, the progress names the planner that is dead."""
    kafka.create_topic(topic_name, partitions=1)
    kafka.produce(topic_name, [b"x"] * 60)
    spark.dataSource.register(DyingDataSource)
    query = stream(maxOffsetsPerTrigger="10")
    query.source = DyingDataSource.name()
    death = Death(query.options["checkpointLocation"])
    replayed, reached, asked, found = (threading.Event() for _ in range(4))

    def on_batch(batch_id, rows):
        if not rows.num_rows:
            return
        if death.come(BEFORE_COMMIT_LOG):
            raise RuntimeError(BEFORE_COMMIT_LOG)
        if replayed.is_set():
            # The next one as well, or batches would race with the message to the planner.
            told_first = found if reached.is_set() else asked
            reached.set()
            assert told_first.wait(PATIENCE_S)
        replayed.set()

    query.on_batch = on_batch
    death.arm(BEFORE_COMMIT_LOG)
    query.start(processingTime="0 seconds")
    wait_until(lambda: not query.query.isActive, "the planner dies, and the query with it")
    tell = graceful_stop._Planners.tell

    def told(planners, run, proven):
        there = tell(planners, run, proven)
        asked.set()
        if there:
            found.set()
        return there

    monkeypatch.setattr(graceful_stop._Planners, "tell", told)
    query.start(processingTime="0 seconds")
    assert reached.wait(PATIENCE_S)
    assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    (end,) = committed().values()
    assert end in (20, 30), "the batch under way, and the one that Spark plans at its end"
