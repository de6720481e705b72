"""Several queries of one group, each in its own process, and what the ledger proves.

One broker, real Spark, real kills. The ledger is written by the sink when it completed a batch, so
a batch that died in flight is not in it, and one that is replayed is.
"""

from __future__ import annotations

import json
import os
import signal
import time
from functools import partial

import pyarrow.compute as pc
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import RebalanceInProgressError
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.source.offsets.offset_json import parse_offset
from pyspark_kafka_rebalance.testing.ledger import duplicated_rows

from . import waiting
from .conftest import SteadyProducer
from .lone_members import joining, kill

pytestmark = pytest.mark.several_sparks

PATIENCE_S = 120.0

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)


def partitions_read_by(queries, name, since=0.0):
    ledger = queries.ledger()
    if not ledger.num_rows:
        return set()
    rows = ledger.filter(
        pc.and_(pc.equal(ledger["reader"], name), pc.greater(ledger["completed_at"], since))
    )
    return set(rows["partition"].to_pylist())


def batches_of(rows):
    return set(zip(*(rows[c].to_pylist() for c in ("reader", "batch", "attempt")), strict=True))


both_protocols = pytest.mark.parametrize("protocol", ["classic", "consumer"])


@pytest.mark.parametrize("protocol", [pytest.param("classic", marks=pytest.mark.core), "consumer"])
def test_every_record_once_over_joins_a_graceful_leave_and_a_rejoin(
    kafka, topic_name, queries, protocol
):
    kafka.create_topic(topic_name, partitions=12)
    group = {"kafka__group__protocol": protocol}
    with SteadyProducer(kafka, topic_name, partitions=12, per_second=1_200) as producer:
        first = queries.start("A", batch_s=1.0, **group)
        first.wait_for_batch()
        second = queries.start("B", batch_s=1.0, **group)
        second.wait_for_batch()
        third = queries.start("C", batch_s=1.0, **group)
        third.wait_for_batch()
        assert second.stop()["complete"]
        left_at = time.time()
        second.start()
        wait_until(
            lambda: partitions_read_by(queries, "B", since=left_at), "B reads again after rejoining"
        )
        producer.stop()
        result = queries.wait_until_all_is_read()
    assert result.lost == {}
    assert result.duplicated == 0
    assert result.records > 10_000
    for query in (first, second, third):
        query.stop()


@both_protocols
def test_kill_9_in_the_middle_of_a_batch_then_restart(
    kafka, topic_name, group_id, queries, tmp_path, protocol
):
    kafka.create_topic(topic_name, partitions=4)
    kafka.configure_group(group_id, {"consumer.session.timeout.ms": 6_000})
    with SteadyProducer(kafka, topic_name, partitions=4, per_second=400) as producer:
        short = {"kafka__session__timeout__ms": "6000", "kafka__group__protocol": protocol}
        survivor = queries.start("A", **short)
        survivor.wait_for_batch()
        victim = queries.start("B", batch_s=4.0, **short)
        victim.wait_for_batch()
        in_flight = victim.wait_for("began")["batch"]
        time.sleep(1.0)  # in the middle of the sink's 4 s
        victim.kill()
        logged = (tmp_path / "checkpoint-B" / "offsets" / str(in_flight)).read_text()
        ranges = parse_offset(json.loads(logged.splitlines()[-1])).ranges
        mine = {p.partition for p in ranges}
        killed_at = time.time()
        wait_until(
            lambda: mine <= partitions_read_by(queries, "A", since=killed_at),
            "A has B's partitions",
        )
        victim.start()
        replayed = victim.wait_for("batch", batch=in_flight)
        producer.stop()
        result = queries.wait_until_all_is_read()
    assert result.lost == {}
    ledger = queries.ledger()
    replay = ledger.filter(
        pc.and_(pc.equal(ledger["reader"], "B"), pc.equal(ledger["batch"], in_flight))
    )
    delivered = sorted(
        zip(replay["partition"].to_pylist(), replay["offset"].to_pylist(), strict=True)
    )
    logged_offsets = [
        (p.partition, offset)
        for p in sorted(ranges)
        for offset in range(ranges[p].start, ranges[p].end)
    ]
    assert delivered == logged_offsets, "the replay reads what is logged"
    assert replayed["rows"] == len(delivered)
    assert set(replay["lost"].to_pylist()) == {True}, "another member delivered all of it, too"
    twice = duplicated_rows(ledger)
    others = {batch for batch in batches_of(twice) if batch[0] == "B"}
    assert {batch[1] for batch in others} == {in_flight}, "twice: only the batch in flight"


@pytest.mark.newest_spark
def test_a_planner_stopped_for_longer_than_the_session(kafka, topic_name, queries):
    """Nothing is handed out that is gone; only the batch in flight may come twice."""
    kafka.create_topic(topic_name, partitions=4)
    with SteadyProducer(kafka, topic_name, partitions=4, per_second=400) as producer:
        short = {"kafka__session__timeout__ms": "4000"}
        other = queries.start("A", **short)
        other.wait_for_batch()
        stalled = queries.start("B", batch_s=1.0, **short)
        stalled.wait_for_batch()
        in_flight = stalled.wait_for("began")["batch"]
        planner = stalled.planner()
        os.kill(planner, signal.SIGSTOP)
        stopped_at = time.time()
        mine = partitions_read_by(queries, "B")
        wait_until(
            lambda: mine <= partitions_read_by(queries, "A", since=stopped_at),
            "A has B's partitions",
        )
        os.kill(planner, signal.SIGCONT)
        resumed_at = time.time()
        wait_until(lambda: partitions_read_by(queries, "B", since=resumed_at), "B reads again")
        producer.stop()
        result = queries.wait_until_all_is_read()
    assert result.lost == {}
    twice = duplicated_rows(queries.ledger())
    # The trigger that was just being planned when the planner was stopped counts as in flight.
    assert {batch for name, batch, _ in batches_of(twice) if name == "B"} <= {
        in_flight,
        in_flight + 1,
    }


@pytest.mark.long
@pytest.mark.newest_spark
def test_a_batch_longer_than_the_revoke_timeout_loses_only_what_is_revoked(
    kafka, topic_name, group_id, queries
):
    kafka.create_topic(topic_name, partitions=4)
    with SteadyProducer(kafka, topic_name, partitions=4, per_second=400) as producer:
        often = {"kafka__heartbeat__interval__ms": "500"}
        slow = queries.start("A", batch_s=12.0, revokeTimeoutMs="1000", readers="1", **often)
        joined = queries.start("B", hold=True, readers="1")
        joined.wait_for("ready")
        slow.wait_for_batch()
        slow.wait_for("began")
        joined.release()  # the revoke comes long before the batch under way ends
        joined.wait_for_batch()
        producer.stop()
        result = queries.wait_until_all_is_read()
    assert result.lost == {}
    twice = duplicated_rows(queries.ledger())
    moved = set(twice["partition"].to_pylist())
    assert len(moved) == 2, "the undrained half was lost and read again by its next owner"
    assert len({batch for batch in batches_of(twice) if batch[0] == "A"}) == 1
    kept = set(range(4)) - moved
    assert kept <= partitions_read_by(queries, "A")
    slow.stop(timeout_s=PATIENCE_S)


@pytest.mark.newest_spark
def test_a_graceful_stop_while_a_dead_member_holds_the_join(kafka, topic_name, group_id, queries):
    """Without the lane a stop could not commit, and all that was open came twice."""
    kafka.create_topic(topic_name, partitions=6)
    with SteadyProducer(kafka, topic_name, partitions=6, per_second=600):
        query = queries.start("A", readers="1")
        query.wait_for_batch()
        dead = DeferredRevokeConsumer(
            topic_name,
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            session_timeout_ms=30_000,
        )
        wait_until(lambda: dead.poll_with_rebalance(100) and dead.assignment(), "its share")
        kill(dead)
        late = DeferredRevokeConsumer(
            topic_name, bootstrap_servers=kafka.bootstrap_servers, group_id=group_id
        )
        try:
            wait_until(lambda: late.poll_with_rebalance(100) and joining(late), "a held join")
            for _ in range(3):
                query.wait_for_batch()
            query.stop()
            assert joining(late), "the join was not held, so this proves nothing"
            ledger = queries.ledger()
            reached = {}
            for partition, offset in zip(
                ledger["partition"].to_pylist(), ledger["offset"].to_pylist(), strict=True
            ):
                reached[partition] = max(offset + 1, reached.get(partition, 0))
            admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
            committed = admin.list_group_offsets(group_id)[group_id]
            admin.close()
            assert {p.partition: o.offset for p, o in committed.items()} == reached
        finally:
            late.close(timeout_ms=1_000)


@pytest.mark.newest_spark
def test_shares_a_topic_with_plain_consumers(kafka, topic_name, group_id, stream, committed):
    """kafka-python's and librdkafka's cooperative consumers in the same group."""
    from confluent_kafka import Consumer
    from kafka import ConsumerRebalanceListener
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

    kafka.create_topic(topic_name, partitions=6)
    delivered = []

    class CommitOnRevoke(ConsumerRebalanceListener):
        def on_partitions_assigned(self, assigned):
            pass

        def on_partitions_revoked(self, revoked):
            pass  # everything returned by poll is processed and committed before the next poll

    with SteadyProducer(kafka, topic_name, partitions=6, per_second=600) as producer:
        query = stream()
        query.start(processingTime="0 seconds")
        wait_until(lambda: query.rows().num_rows > 0, "the query reads")
        plain = KafkaConsumer(
            bootstrap_servers=kafka.bootstrap_servers,
            group_id=group_id,
            partition_assignment_strategy=[CooperativeStickyAssignor],
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            session_timeout_ms=10_000,
            heartbeat_interval_ms=500,
        )
        plain.subscribe([topic_name], listener=CommitOnRevoke())
        rdkafka = Consumer(
            {
                "bootstrap.servers": kafka.bootstrap_servers,
                "group.id": group_id,
                "partition.assignment.strategy": "cooperative-sticky",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": 10_000,
                "heartbeat.interval.ms": 500,
            }
        )
        rdkafka.subscribe([topic_name])
        counts = {"plain": 0, "rdkafka": 0}

        def step():
            polled = plain.poll(timeout_ms=200)
            try:
                if plain.assignment():
                    plain.commit()
            except RebalanceInProgressError:  # kafka-python does not commit then
                for partition, records in polled.items():
                    plain.seek(partition, records[0].offset)
                polled = {}
            for partition, records in polled.items():
                delivered.extend((partition.partition, record.offset) for record in records)
                counts["plain"] += len(records)
            messages = [m for m in rdkafka.consume(500, timeout=0.2) if m.error() is None]
            delivered.extend((m.partition(), m.offset()) for m in messages)
            counts["rdkafka"] += len(messages)
            if messages:
                rdkafka.commit(asynchronous=False)

        try:
            deadline = time.monotonic() + PATIENCE_S
            while min(counts.values()) < 500:
                assert time.monotonic() < deadline, f"not shared: {counts}"
                step()
            producer.stop()
            for _ in range(10):
                step()
        finally:
            plain.close()
            rdkafka.close()
        consumer = KafkaConsumer(bootstrap_servers=kafka.bootstrap_servers)
        ends = consumer.end_offsets([TopicPartition(topic_name, p) for p in range(6)])
        consumer.close()
        wait_until(lambda: committed() == ends, "the query has the rest")
    rows = query.rows()
    delivered += zip(rows["partition"].to_pylist(), rows["offset"].to_pylist(), strict=True)
    assert sorted(delivered) == [(p.partition, o) for p in sorted(ends) for o in range(ends[p])]
