"""A query reads on while no coordinator answers; whether what it has read then comes again.

Two of three brokers are killed, so that the group's coordinator has no successor until they are
back. The third leads the partition that is read.
"""

from __future__ import annotations

import subprocess
from functools import partial

import pytest
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition

from . import waiting
from .conftest import offsets_of
from .test_event_time_hard import ALIVE, IDLING, leaders_of
from .test_restarts import Group

PATIENCE_S = 240.0
#: What is read while no coordinator answers, each record in a batch of its own.
UNANSWERED = 4

wait_until = partial(waiting.wait_until, patience_s=PATIENCE_S)

pytestmark = pytest.mark.newest_spark


def coordinator_of(quorum, group_id):
    """The broker that coordinates the group, as the brokers say."""
    admin = KafkaAdminClient(bootstrap_servers=quorum.bootstrap_servers)
    try:
        return admin._manager.run(admin._find_coordinator_ids, [group_id])[group_id]
    finally:
        admin.close()


def children_of_spark(spark):
    """The command lines of the processes that its JVM has started, planners among them."""
    jvm = spark.sparkContext._gateway.proc.pid
    told = subprocess.run(
        ["ps", "-ww", "--ppid", str(jvm), "-o", "args="],
        capture_output=True,
        text=True,
        check=False,
    )
    return told.stdout


def remove_all(quorum, group_id):
    """As at the end of their sessions. Those that have left by themselves are gone already."""
    admin = KafkaAdminClient(bootstrap_servers=quorum.bootstrap_servers)
    try:
        group = Group(admin, group_id)
        if left := group.clients():
            group.remove_members(left)
        assert not group.clients()
    finally:
        admin.close()


@pytest.mark.parametrize("waits_for_it", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_query_reads_on_without_a_coordinator(
    quorum, topic_name, group_id, spark, stream, waits_for_it
):
    quorum.create_topic(topic_name, partitions=3, replication_factor=1)
    options = {"kafka__bootstrap__servers": quorum.bootstrap_servers, **ALIVE}
    query = stream(**options)
    running = query.start(**IDLING)
    first = {TopicPartition(topic_name, p): 1 for p in range(3)}
    for p in range(3):
        quorum.produce(topic_name, [b"x"], partition=p)
    wait_until(lambda: quorum.committed(group_id) == first, "all of the group is committed")
    coordinator = coordinator_of(quorum, group_id)
    partition, leader = next(
        (p, leader) for p, leader in leaders_of(quorum, topic_name).items() if leader != coordinator
    )

    def produce_one():
        """Read by a batch of its own."""
        count = len(query.rows())
        quorum.produce(topic_name, [b"x"], partition=partition)
        wait_until(lambda: len(query.rows()) > count, "it is read")

    # The coordinator last: with a majority left, the next one would be elected, on the leader, and
    # a commit that it has appended counts once it is replicated.
    away = [broker for broker in quorum.broker_ids if broker not in (leader, coordinator)]
    away.append(coordinator)
    assert "streaming_source_runner" in children_of_spark(spark)
    for broker in away:
        quorum.kill(broker)
    for _ in range(UNANSWERED):
        produce_one()
    if not waits_for_it:
        running.stop()
        # Spark does not wait for the planner, whose commit is on its way as long as it lives.
        wait_until(lambda: "streaming_source_runner" not in children_of_spark(spark), "it ends")
    for broker in away:
        quorum.restart(broker)

    later = [(partition, n) for n in range(1, 1 + UNANSWERED)]
    if waits_for_it:
        last = first | {TopicPartition(topic_name, partition): 1 + UNANSWERED}
        wait_until(lambda: quorum.committed(group_id) == last, "all of it is committed")
    else:
        remove_all(quorum, group_id)
        other = stream("other", **options)
        other.start(**IDLING)
        wait_until(
            lambda: len(other.rows()) >= UNANSWERED,
            lambda: (
                f"the next owner reads; {offsets_of(other.rows())=}, {quorum.committed(group_id)=}"
            ),
        )
        assert offsets_of(other.rows()) == later
    assert offsets_of(query.rows()) == sorted([(p, 0) for p in range(3)] + later)
