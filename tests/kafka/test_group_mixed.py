"""Our members in one group with Java's, and members of both group protocols in one group.

After ``consumer_protocol_migration_test.py`` of Apache Kafka's ``kafkatest`` and the tests of
``test_group_members.py``. On the classic protocol all are cooperative.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from consumer_events import Redelivery, Verdict
from group_members import PROTOCOLS
from kafka import KafkaAdminClient
from verifiable_group import VerifiableGroup

from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol


def group_of(
    kafka: LocalKafka, topic: str, group_id: str, work: Path, protocol: str
) -> VerifiableGroup:
    return VerifiableGroup(kafka, topic, group_id, partitions=6, work=work, group_protocol=protocol)


def start_all(group: VerifiableGroup) -> None:
    for name in ("ours", "ours, too"):
        group.start(name)
    group.start("java", java=True)
    group.wait_until_balanced()
    group.wait_until_caught_up()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_java_s_and_ours_come_and_go(
    kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path, protocol: str
) -> None:
    with group_of(kafka, topic_name, group_id, tmp_path, protocol) as group:
        start_all(group)
        for name in ("ours", "java"):
            group.stop(name)
            group.wait_until_balanced()
            group.wait_until_caught_up()
            group.start(name, java=name == "java")
            group.wait_until_balanced()
            group.wait_until_caught_up()
        duplicates = left_by_java(group.finish())
    if protocol == "consumer":
        assert not duplicates


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_one_of_each_is_killed(
    kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path, protocol: str
) -> None:
    with group_of(kafka, topic_name, group_id, tmp_path, protocol) as group:
        start_all(group)
        of_the_killed = set()
        for name in ("ours", "java"):
            of_the_killed |= group.assignments()[name]
            group.kill(name)
            group.wait_until_balanced()
            group.wait_until_caught_up()
        verdict = group.finish()
    gracefully = [again for again in verdict.redelivered if again.partition not in of_the_killed]
    left_by_java(dataclasses.replace(verdict, redelivered=gracefully))


def test_members_are_moved_to_the_other_protocol_and_back_one_by_one(
    kafka: LocalKafka, topic_name: str, group_id: str, tmp_path: Path
) -> None:
    with group_of(kafka, topic_name, group_id, tmp_path, "classic") as group:
        start_all(group)
        assert type_of(kafka, group_id) == "classic"
        for protocol in ("consumer", "classic"):
            for name in ("ours", "java", "ours, too"):
                group.stop(name)
                group.start(name, java=name == "java", group_protocol=protocol)
                group.wait_until_balanced()
                group.wait_until_caught_up()
            assert type_of(kafka, group_id) == protocol
        left_by_java(group.finish())


def left_by_java(verdict: Verdict) -> list[Redelivery]:
    """The duplicates, all of them left by Java's members, whose commit did not succeed.

    On the classic protocol Java's client refuses to commit while a rebalance goes on, and the
    same rebalance may then revoke what was not committed. Ours leaves nothing.
    """
    assert not verdict.overlaps
    for again in verdict.redelivered:
        assert again.left_by.startswith("java")
        assert again.last_commit_failed
    return verdict.redelivered


def type_of(kafka: LocalKafka, group_id: str) -> str:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        (found,) = [group for group in admin.list_groups() if group["group_id"] == group_id]
    finally:
        admin.close()
    return str(found["group_type"])
