"""Kafka's ``transactions_test`` in small: copiers are bounced, and every record arrives once.

Ours, and beside it Kafka's own, from the same command line.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from group_members import wait_until
from kafka import KafkaAdminClient
from kafka.structs import TopicPartition
from message_copiers import OURS, Copier, java_command
from producer_groups import read_committed

from pyspark_kafka_rebalance.testing import LocalKafka

PARTITIONS = 2
RECORDS = 1_500  # of each partition
TRANSACTION_SIZE = 75
PATIENCE_S = 120.0

MakeCopier = Callable[..., Copier]


@pytest.fixture
def copiers(kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path) -> Iterator[Any]:
    """Makes copiers from the topic to another one; killed at the end."""
    made: list[Copier] = []
    kafka.create_topic(topic_name, partitions=PARTITIONS)
    kafka.create_topic(f"{topic_name}-out", partitions=PARTITIONS)
    for partition in range(PARTITIONS):
        values = [b"%d-%05d" % (partition, n) for n in range(RECORDS)]
        kafka.produce(topic_name, values, partition=partition)

    def make(command: tuple[str, ...], partition: int, *more: str) -> Copier:
        options = {
            "broker-list": kafka.bootstrap_servers,
            "transactional-id": f"{group_id}-copier-{partition}",
            "consumer-group": group_id,
            "input-topic": topic_name,
            "output-topic": f"{topic_name}-out",
            "input-partition": str(partition),
            "transaction-size": str(TRANSACTION_SIZE),
            "transaction-timeout": "40000",
        }
        words = [word for name, value in options.items() for word in (f"--{name}", value)]
        log = tmp_path / f"copier-{partition}.log"
        made.append(Copier([*command, *words, "--enable-random-aborts", *more], log))
        return made[-1]

    yield make
    for copier in made:
        copier.stop()


def assert_copied_once(kafka: LocalKafka, topic: str) -> None:
    found = read_committed(kafka, f"{topic}-out")
    for partition in range(PARTITIONS):
        mine = [value for value in found if value.startswith(b"%d-" % partition)]
        assert mine == [b"%d-%05d" % (partition, n) for n in range(RECORDS)]


def finish(*copiers: Copier) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not all(copier.is_done() for copier in copiers):
        assert time.monotonic() < deadline, [copier.said() for copier in copiers]
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_copiers_that_are_bounced_copy_every_record_once_and_in_order(
    kafka: LocalKafka, topic_name: str, copiers: MakeCopier, number: int
) -> None:
    """As in Kafka's ``test_transactions``, with ``check_order``."""
    both = [copiers(OURS, n) for n in range(PARTITIONS)]
    for copier in both:
        wait_until(lambda copier=copier: copier.progress() >= 0.1, "some progress")
        copier.restart(number)
    finish(*both)
    assert_copied_once(kafka, topic_name)


def test_ours_and_java_s_print_the_same_and_share_the_work(
    kafka: LocalKafka, topic_name: str, copiers: MakeCopier
) -> None:
    ours, java = copiers(OURS, 0), copiers(java_command(), 1)
    finish(ours, java)
    assert_copied_once(kafka, topic_name)
    for first, second in ((ours.lines[0], java.lines[0]), (ours.lines[-1], java.lines[-1])):
        assert list(first) == list(second)
        assert (first["stage"], first["totalProcessed"]) == (
            second["stage"],
            second["totalProcessed"],
        )
        assert len(first["time"]) == len(second["time"])
    assert {line["stage"] for line in ours.lines} == {line["stage"] for line in java.lines}


def test_copiers_of_a_group_copy_every_record_once(
    kafka: LocalKafka, topic_name: str, group_id: str, copiers: MakeCopier, protocol: str
) -> None:
    """As in Kafka's ``group_mode_transactions_test``: one is killed, the others take over.

    With the consumer protocol its partitions belong to it until its session ends. A copier that has
    copied what it owns ends, and may do so before that; here it is started again.
    """
    if protocol == "consumer":  # there these are the group's
        timeouts = {"consumer.session.timeout.ms": 6_000, "consumer.heartbeat.interval.ms": 500}
        kafka.configure_group(group_id, timeouts)
    more = ("--group-mode", "--use-group-metadata", "--group-protocol", protocol)
    both = [copiers(OURS, n, *more) for n in range(PARTITIONS)]
    wait_until(lambda: any(copier.progress() >= 0.1 for copier in both), "some progress")
    both[0].restart(signal.SIGKILL)
    finish(*both)
    deadline = time.monotonic() + PATIENCE_S
    while not is_copied(kafka, topic_name, group_id):
        assert time.monotonic() < deadline, [copier.said() for copier in both]
        both[0].start()
        finish(both[0])
    assert_copied_once(kafka, topic_name)


def is_copied(kafka: LocalKafka, topic: str, group_id: str) -> bool:
    """Whether the group has committed the end of each partition."""
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        committed = admin.list_group_offsets(group_id)[group_id]
    finally:
        admin.close()
    ends = {TopicPartition(topic, n): RECORDS for n in range(PARTITIONS)}
    return {p: commit.offset for p, commit in committed.items() if p in ends} == ends
