"""parallelRebalance=live: live records at once, and beside them what was missed (KIP-333)."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from functools import partial
from itertools import cycle
from pathlib import Path

import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition
from pyspark.errors import StreamingQueryException

from pyspark_kafka_rebalance import stop_gracefully
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset

from . import waiting
from .conftest import SteadyProducer, many_batches
from .dying_source import IN_READ, Death, DyingDataSource
from .test_async_progress import every

PATIENCE_S = 240.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

#: Without a pause the idle triggers of two queries would take all the time there is.
IDLING = {"processingTime": "100 milliseconds"}

LIVE = {"parallelRebalance": "live", "catchUpThreshold": "100"}

CAP = "maxCatchUpOffsetsPerTrigger"

#: A query is to be stopped in mid-gap, and goes on until it learns of that: of some thousands of
#: offsets this leaves dozens of batches. What is left at the end is read without it.
SLOWLY = {CAP: "100"}


class Delivered:
    """What a query's sink has: each record, and whether it was one of a gap.

    As an idempotent sink: a batch that is run again replaces what it left the first time.
    """

    def __init__(self, query, hold=None):
        self.times = Counter()
        self.caught_up = set()
        self.batches = []  # (batch, live, caught up)
        self._unmarked = {}  # by batch
        self._hold = hold
        query.on_batch = self._keep

    def _keep(self, batch_id, rows):
        self.times.subtract(self._unmarked.pop(batch_id, ()))
        if not rows.num_rows:
            return
        columns = (rows[name].to_pylist() for name in ("partition", "offset", "lost", "catch_up"))
        live, caught_up = set(), set()
        for partition, offset, lost, catch_up in zip(*columns, strict=True):
            if not lost:
                (caught_up if catch_up else live).add((partition, offset))
                self.times[partition, offset] += 1
        self.caught_up |= caught_up
        self._unmarked[batch_id] = live | caught_up
        self.batches.append((batch_id, live, caught_up))
        if self._hold is not None:
            self._hold()

    def forget_after(self, batch_id):
        """As the idempotent sink of a query that has forgotten the batches after this one."""
        for forgotten in [number for number in self._unmarked if number > batch_id]:
            self.times.subtract(self._unmarked.pop(forgotten))
        self.times = +self.times


def produce(kafka, topic, count, partitions=2):
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, linger_ms=20)
    for number in range(count):
        producer.send(topic, b"%0100d" % number, partition=number % partitions)
    producer.close()


def ends_of(kafka, topic, partitions=2):
    consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
    ends = consumer.end_offsets([TopicPartition(topic, p) for p in range(partitions)])
    consumer.close()
    return ends


def everything(ends):
    return {(p.partition, offset): 1 for p, end in ends.items() for offset in range(end)}


def wait_while_active(streams, done, what):
    def still():
        for one in streams:
            assert one.query.isActive, f"{what}: {one.query.exception()}"
        return done()

    wait_until(still, what)


def newest(query, log="offsets"):
    folder = Path(query.options["checkpointLocation"]) / log
    return max(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def last_offset(query):
    file = Path(query.options["checkpointLocation"]) / "offsets" / str(newest(query))
    return parse_offset(json.loads(file.read_text().splitlines()[-1]))


@pytest.fixture
def a_backlog(kafka, topic_name, stream):
    """Make a query that has read a little and been stopped, with a backlog since."""

    def make(count, partitions=2, **options):
        kafka.create_topic(topic_name, partitions=partitions)
        produce(kafka, topic_name, 20, partitions)
        query = stream(**{**LIVE, **options})
        delivered = Delivered(query)
        query.start(**IDLING)
        wait_while_active([query], lambda: len(delivered.times) == 20, "the first are read")
        assert not delivered.caught_up, "a new query reads what it is to begin with in order"
        assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
        produce(kafka, topic_name, count, partitions)
        return query, delivered

    return make


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_query_that_was_killed_reads_live_records_at_once_and_the_backlog_beside_them(
    spark, kafka, topic_name, group_id, stream, committed, protocol
):
    kafka.create_topic(topic_name, partitions=2)
    kafka.configure_group(group_id, {"consumer.session.timeout.ms": 6_000})
    spark.dataSource.register(DyingDataSource)
    group = {"kafka__session__timeout__ms": "6000", "kafka__group__protocol": protocol}
    query = stream(**LIVE, **group, maxCatchUpOffsetsPerTrigger="4000")
    query.source = DyingDataSource.name()
    death = Death(query.options["checkpointLocation"])
    before = Delivered(query)
    with SteadyProducer(kafka, topic_name, partitions=2, per_second=200) as producer:
        query.start(**IDLING)
        wait_while_active([query], lambda: len(before.batches) > 2, "it reads")
        death.arm(IN_READ)
        wait_until(lambda: not query.query.isActive, "it dies")
        produce(kafka, topic_name, 60_000)
        behind = ends_of(kafka, topic_name)
        after = Delivered(query)
        query.start(**IDLING)
        replayed = len(before.batches) and 1
        wait_while_active([query], lambda: len(after.batches) > replayed + 6, "it goes on")
        first = after.batches[replayed : replayed + 4]
        wait_while_active(
            [query],
            lambda: all(committed().get(p, 0) >= end for p, end in behind.items()),
            "it has caught up",
        )
        producer.stop()
        ends = ends_of(kafka, topic_name)
        wait_while_active([query], lambda: committed() == ends, "all is read")
    assert any(live for _, live, _ in first), "live records in one of the first batches"
    assert all(
        offset >= behind[TopicPartition(topic_name, p)]
        for _, live, _ in first
        for p, offset in live
    )
    assert all(len(caught_up) <= 4_000 for _, _, caught_up in first), "and the gap is not done"
    assert len(after.caught_up) >= 50_000
    assert before.times + after.times == everything(ends)
    assert not last_offset(query).gaps


def test_a_restart_in_mid_gap_goes_on_there(kafka, topic_name, a_backlog, committed):
    query, delivered = a_backlog(5_000, **SLOWLY)
    for gracefully in (True, False, True):
        read = len(delivered.caught_up)
        query.start(**IDLING)
        wait_while_active([query], lambda r=read: len(delivered.caught_up) > r, "it catches up")
        produce(kafka, topic_name, 4)
        if gracefully:
            assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
        else:
            query.stop()
        offset = last_offset(query)
        assert offset.gaps, "nothing is left of the gap, so this shows nothing"
        lowest = {p: gaps[0].start for p, gaps in offset.gaps.items()}
        if gracefully:
            assert committed() == lowest, "what every Kafka tool sees"
    del query.options[CAP]
    query.start(**IDLING)
    ends = ends_of(kafka, topic_name)
    wait_while_active([query], lambda: committed() == ends, "all is read")
    assert delivered.times == everything(ends)
    caught_up = sorted(delivered.caught_up)
    assert caught_up[0] == (0, 10)
    assert len(caught_up) >= 5_000


@pytest.mark.newest_spark
def test_the_gap_of_a_partition_that_moves_moves_with_it(
    kafka, topic_name, stream, a_backlog, committed
):
    one = {"readers": "1", "maxCatchUpOffsetsPerTrigger": "200"}
    first, mine = a_backlog(20_000, **one)
    second = stream("second", **LIVE, **one)
    others = Delivered(second)
    with SteadyProducer(kafka, topic_name, partitions=2, per_second=100) as producer:
        first.start(**IDLING)
        wait_while_active([first], lambda: len(mine.caught_up) > 500, "it catches up")
        second.start(**IDLING)
        wait_while_active(
            [first, second], lambda: len(others.caught_up) > 500, "the other catches up as well"
        )
        assert stop_gracefully(second.query, timeout_s=PATIENCE_S)
        [moved] = {p for p, _ in others.caught_up}
        above = max(others.caught_up)
        wait_while_active(
            [first],
            lambda: any(p == moved and (p, o) > above for p, o in mine.caught_up.copy()),
            "the first goes on where the other has stopped",
        )
        assert stop_gracefully(first.query, timeout_s=PATIENCE_S)
        producer.stop()
        del first.options[CAP]
        first.start(**IDLING)
        ends = ends_of(kafka, topic_name)
        wait_while_active([first], lambda: committed() == ends, "all is read")
    assert {p for p, _ in mine.caught_up} == {0, 1}
    assert mine.times + others.times == everything(ends)


@many_batches
@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}])
def test_a_run_that_ends_by_itself_reads_its_gaps(kafka, topic_name, a_backlog, committed, trigger):
    query, delivered = a_backlog(3_000, maxCatchUpOffsetsPerTrigger="700")
    batches = len(delivered.batches)
    query.run(**trigger)
    ends = ends_of(kafka, topic_name)
    assert committed() == ends
    assert delivered.times == everything(ends)
    assert len(delivered.caught_up) == 3_000
    assert len(delivered.batches) - batches == (1 if "once" in trigger else 5)
    produce(kafka, topic_name, 50)
    query.run(**trigger)
    assert len(delivered.caught_up) == 3_000, "so few are no backlog"
    assert delivered.times == everything(ends_of(kafka, topic_name))


@many_batches
@pytest.mark.parametrize("fails", ["true", "false"])
def test_what_retention_deletes_of_a_gap(kafka, topic_name, a_backlog, committed, fails):
    query, delivered = a_backlog(3_000, maxCatchUpOffsetsPerTrigger="100", failOnDataLoss=fails)
    gone = TopicPartition(topic_name, 0)
    deleted = threading.Event()

    def delete():
        if delivered.caught_up and not deleted.is_set():
            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
            admin.delete_records({gone: 1_200})
            admin.close()
            deleted.set()

    delivered._hold = delete
    if fails == "true":
        with pytest.raises(StreamingQueryException, match="DataLossError"):
            query.run()
        return
    query.run()
    ends = ends_of(kafka, topic_name)
    assert committed() == ends
    missing = everything(ends).keys() - delivered.times.keys()
    assert {p for p, _ in missing} == {0}
    assert max(offset for _, offset in missing) == 1_199
    assert len(missing) > 500
    assert set(delivered.times.values()) == {1}


def new_rows(query):
    """Offset and mark of the records of the new topic."""
    rows = query.rows()
    if not rows.num_rows:
        return []
    rows = rows.filter(pc.equal(rows["value"], b"new"))
    return sorted(zip(rows["offset"].to_pylist(), rows["catch_up"].to_pylist(), strict=True))


SOON = {"kafka__metadata__max__age__ms": "500"}


@many_batches
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_topic_is_created_anew_in_mid_gap(kafka, topic_name, a_backlog, fails):
    """Under a running query: it forgets the gap, and reads the new log from its first record."""
    query, delivered = a_backlog(4_000, 1, failOnDataLoss=fails, **SLOWLY, **SOON)
    query.start(**IDLING)
    wait_while_active([query], lambda: delivered.caught_up, "it catches up")
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 40)
    assert len(delivered.caught_up) < 4_000, "nothing is left of the gap, so this shows nothing"
    if fails == "true":
        with pytest.raises(StreamingQueryException, match="DataLossError"):
            query.query.awaitTermination(PATIENCE_S)
        assert not new_rows(query)
        return
    wait_while_active([query], lambda: len(new_rows(query)) >= 40, "the new topic is read")
    kafka.produce(topic_name, [b"new"] * 2)
    wait_while_active([query], lambda: len(new_rows(query)) >= 42, "and goes on being read")
    assert new_rows(query) == [(offset, False) for offset in range(42)]
    assert not last_offset(query).gaps


@many_batches
def test_a_topic_is_created_anew_between_two_runs_in_mid_gap(kafka, topic_name, a_backlog):
    """The new log ends below the live position: the gap is forgotten, and it goes on at the end."""
    query, delivered = a_backlog(4_000, 1, failOnDataLoss="false", **SLOWLY)
    query.start(**IDLING)
    wait_while_active([query], lambda: delivered.caught_up, "it catches up")
    assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    assert last_offset(query).gaps, "nothing is left of the gap, so this shows nothing"
    kafka.delete_topic(topic_name)
    kafka.create_topic(topic_name)
    kafka.produce(topic_name, [b"new"] * 40)
    del query.options[CAP]
    query.run()
    kafka.produce(topic_name, [b"new"] * 5)
    query.run()
    assert new_rows(query) == [(offset, False) for offset in range(40, 45)], "as without gaps"
    assert not last_offset(query).gaps


@many_batches
def test_partitions_are_added_in_mid_gap(kafka, topic_name, a_backlog, committed):
    """They are read from their first record, as live ones, beside the gap."""
    query, delivered = a_backlog(4_000, 1, **SLOWLY, **SOON)
    query.start(**IDLING)
    wait_while_active([query], lambda: delivered.caught_up, "it catches up")
    kafka.add_partitions(topic_name, 3)
    for partition in (1, 2):
        kafka.produce(topic_name, [b"x"] * 30, partition=partition)

    def are_read():
        return all(delivered.times[partition, 29] for partition in (1, 2))

    wait_while_active([query], are_read, "the new partitions are read")
    assert last_offset(query).gaps, "nothing is left of the gap, so this shows nothing"
    assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    del query.options[CAP]
    query.start(**IDLING)
    ends = ends_of(kafka, topic_name, 3)
    wait_while_active([query], lambda: committed() == ends, "all is read")
    assert delivered.times == everything(ends)
    assert {p for p, _ in delivered.caught_up} == {0}


@many_batches
def test_who_goes_on_in_order_repeats_and_loses_nothing(kafka, topic_name, a_backlog, committed):
    query, delivered = a_backlog(4_000, **SLOWLY)
    query.start(**IDLING)
    wait_while_active([query], lambda: delivered.caught_up, "it catches up")
    produce(kafka, topic_name, 10)
    assert stop_gracefully(query.query, timeout_s=PATIENCE_S)
    assert last_offset(query).gaps, "nothing is left of the gap, so this shows nothing"
    lowest = committed()
    for name in (*LIVE, CAP):
        del query.options[name]
    query.on_batch = lambda batch_id, rows: None  # it has no column catch_up any more
    rows = query.run()
    ends = ends_of(kafka, topic_name)
    found = sorted(zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True))
    assert found == [(p.partition, o) for p in sorted(ends) for o in range(lowest[p], ends[p])]
    assert committed() == ends


@many_batches
def test_the_age_of_the_next_record_may_be_the_threshold(kafka, topic_name, a_backlog):
    query, delivered = a_backlog(300, catchUpThreshold="1h")
    query.run()
    assert not delivered.caught_up
    produce(kafka, topic_name, 10)
    query.options["catchUpThreshold"] = "0ms"
    query.run()
    assert len(delivered.caught_up) == 10


@many_batches
@pytest.mark.parametrize("assigned", [False, True])
def test_a_young_record_below_the_position_does_not_hide_an_old_backlog(
    kafka, topic_name, stream, assigned
):
    """Records of now were processed; then old events came, into one of two partitions."""
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, 20)
    by_name = {"subscribe": "", "assign": json.dumps({topic_name: [0, 1]})} if assigned else {}
    query = stream(parallelRebalance="live", catchUpThreshold="5m", **by_name)
    delivered = Delivered(query)
    query.run()
    two_hours_ago = int(time.time() * 1000) - 7_200_000
    kafka.produce(topic_name, [b"v"] * 300, partition=0, timestamps_ms=[two_hours_ago] * 300)
    kafka.produce(topic_name, [b"v"] * 30, partition=1)
    query.run()
    assert delivered.caught_up == {(0, offset) for offset in range(10, 310)}
    assert delivered.times == everything(ends_of(kafka, topic_name))


@pytest.mark.newest_spark
def test_who_names_partitions_catches_up_as_well(kafka, topic_name, stream, committed):
    kafka.create_topic(topic_name, partitions=2)
    produce(kafka, topic_name, 20)
    assigned = {
        "subscribe": "",
        "kafka__session__timeout__ms": "",
        "assign": json.dumps({topic_name: [0, 1]}),
    }
    query = stream(**assigned, **LIVE, **SLOWLY)
    delivered = Delivered(query)
    for restart in range(3):
        query.start(**IDLING)
        ends = ends_of(kafka, topic_name)
        if restart == 1:
            wait_while_active([query], lambda: delivered.caught_up, "it catches up")
            query.stop()
            assert last_offset(query).gaps
            del query.options[CAP]
        else:
            wait_while_active([query], lambda e=ends: committed() == e, "all is read")
            query.stop()
            produce(kafka, topic_name, 4_000)
    assert delivered.times == everything(ends)
    assert len(delivered.caught_up) == 4_000


def has_ended(spark, query):
    """Wait until a query whose planner died has ended, however Spark's clean-up fares without it.

    A clean-up that has batches to commit fails, and leaves the query among the active ones: no
    other would be started from its checkpoint by this driver.
    """
    with pytest.raises(StreamingQueryException):
        query.query.awaitTermination(PATIENCE_S)
    java_id = spark._jvm.java.util.UUID.fromString(query.query.id)
    spark._jsparkSession.sharedState().activeStreamingQueries().remove(java_id)
    # Nor does it wait for Spark's log, then.
    execution = query.query._jsq.streamingQuery()
    wait_until(lambda: not execution.areWritesPendingOrInProgress(), "its log is written")


@pytest.mark.long
def test_batches_of_gaps_that_spark_forgets_are_read_again(
    spark, kafka, topic_name, a_backlog, committed
):
    """Async progress tracking: a kill takes with it what is not in Spark's log.

    The batch after it may be one that Spark has logged and not committed: it reads what those
    before it have read as well.
    """
    spark.dataSource.register(DyingDataSource)
    query, delivered = a_backlog(9_000, **SLOWLY)
    query.source = DyingDataSource.name()
    death = Death(query.options["checkpointLocation"])
    forgotten = 0
    # The shorter one ends in batches that are logged and not committed. Where each takes as long,
    # Spark has logged all there is.
    intervals = cycle([3_000, 20_000])
    while forgotten < 2:
        query._writer_options = every(next(intervals))
        read = len(delivered.batches)
        query.start(**IDLING)
        wait_while_active([query], lambda r=read: len(delivered.batches) > r + 5, "it catches up")
        death.arm(IN_READ)
        has_ended(spark, query)
        assert last_offset(query).gaps, "nothing is left of the gap, so this shows nothing"
        durable = newest(query, "commits")
        forgotten += delivered.batches[-1][0] > durable
        delivered.forget_after(durable)
    del query.options[CAP]
    query._writer_options = every(3_000)
    query.start(**IDLING)
    ends = ends_of(kafka, topic_name)
    wait_while_active([query], lambda: committed() == ends, "all is read")
    assert delivered.times == everything(ends)
