"""Kafka's system tests of groups whose brokers are restarted or fail, with our members.

After ``test_broker_rolling_bounce`` and ``test_broker_failure`` of Apache Kafka's ``kafkatest``:
what happens to the brokers moves no partition, loses nothing and duplicates nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from group_members import PROTOCOLS
from kafka import KafkaAdminClient
from verifiable_group import VerifiableGroup

from pyspark_kafka_rebalance.testing import LocalKafka

pytestmark = pytest.mark.each_protocol


@pytest.fixture
def groups(
    kafka3: LocalKafka, topic_name: str, group_id: str, tmp_path: Path
) -> Iterator[dict[str, VerifiableGroup]]:
    """A group of two for each protocol, so that both share a broker's restart, which takes long.

    The six partitions of each group's topic have leaders on all brokers.
    """
    with ExitStack() as stack:
        started = {}
        for protocol in PROTOCOLS:
            work = tmp_path / protocol
            work.mkdir()
            group = VerifiableGroup(
                kafka3,
                f"{topic_name}-{protocol}",
                f"{group_id}-{protocol}",
                partitions=6,
                work=work,
                group_protocol=protocol,
                # Longer than a broker is away, and than it takes to notice that it is gone.
                session_timeout_ms=45_000,
            )
            started[protocol] = stack.enter_context(group)
            group.start("a")
            group.start("b")
        for group in started.values():
            group.wait_until_balanced()
            group.wait_until_caught_up()
        yield started


def test_every_broker_is_restarted(kafka3: LocalKafka, groups: dict[str, VerifiableGroup]) -> None:
    before = told(groups)
    for broker_id in kafka3.broker_ids:
        kafka3.restart(broker_id)
        for group in groups.values():
            group.wait_until_caught_up()
    assert told(groups) == before, "a restart caused a rebalance"
    for group in groups.values():
        group.finish_exactly_once()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_coordinator_is_killed(
    kafka3: LocalKafka, groups: dict[str, VerifiableGroup], group_id: str, protocol: str
) -> None:
    """It leads partitions of both groups, too."""
    before = told(groups)
    killed = coordinator_of(kafka3, f"{group_id}-{protocol}")
    kafka3.kill(killed)
    try:
        for group in groups.values():
            group.wait_until_caught_up()
        assert told(groups) == before, "the failure caused a rebalance"
        for group in groups.values():
            group.finish_exactly_once()
    finally:
        kafka3.restart(killed)


def told(groups: dict[str, VerifiableGroup]) -> list[dict[str, tuple[int, int]]]:
    return [group.told() for group in groups.values()]


def coordinator_of(kafka3: LocalKafka, group_id: str) -> int:
    admin = KafkaAdminClient(bootstrap_servers=kafka3.bootstrap_servers)
    try:
        (coordinator,) = (
            broker_id
            for broker_id in kafka3.broker_ids
            if group_id in {found["group_id"] for found in admin.list_groups([broker_id])}
        )
    finally:
        admin.close()
    return coordinator
