"""What the tests of ``produce/`` on brokers share: producers, members, readers."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.produce.producer import GroupMetadata, Producer
from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import KAFKA_TOOLS, broker_jars, single_jars

PATIENCE_S = 60.0
PATIENCE_MS = 60_000

#: Ids of the brokers' parameters, with the finalized level of ``transaction.version``.
VERSIONS: Mapping[str, int] = {"v2": 2, "v1": 0}

#: How soon a broker ends a transaction whose time is up; 10 s by default.
ENDS_SOON: Mapping[str, object] = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200
}


def producer_of(cluster: LocalKafka, name: str | None = None, **config: Any) -> Producer:
    return Producer(
        name,
        bootstrap_servers=cluster.bootstrap_servers,
        **{"reconnect_backoff_max_ms": 200, **config},
    )


@contextmanager
def member_of(
    cluster: LocalKafka, group_id: str, topic: str, protocol: str = "classic", wait: bool = True
) -> Iterator[DeferredRevokeConsumer]:
    """A member of a group; it owns partitions, if that is waited for."""
    consumer = DeferredRevokeConsumer(
        topic,
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group_id,
        group_protocol=protocol,
        auto_offset_reset="earliest",
    )
    try:
        deadline = time.monotonic() + PATIENCE_S
        while wait and not consumer.assignment():
            assert time.monotonic() < deadline, "no assignment"
            consumer.poll(timeout_ms=100)
        yield consumer
    finally:
        consumer.close()


def metadata_of(consumer: DeferredRevokeConsumer) -> GroupMetadata:
    known = consumer.group_metadata()
    return GroupMetadata(known.group_id, known.generation_id, known.member_id)


def committed(
    cluster: LocalKafka, group_id: str, partition: TopicPartition, *, stable: bool = True
) -> int | None:
    """The group's offset; waits for the end of a transaction that has another, if ``stable``."""
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group_id,
        isolation_level="read_committed" if stable else "read_uncommitted",
    )
    try:
        found: int | None = consumer.committed(partition)
        return found
    finally:
        consumer.close()


def read_by_java(cluster: LocalKafka, topic: str, count: int) -> list[bytes]:
    """The values that Java's console consumer finds as a reader of what is committed."""
    (tools,) = single_jars([KAFKA_TOOLS])
    command = [
        *(
            str(find_java().executable),
            "-Xmx256m",
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=error",
        ),
        *("-cp", f"{tools}{os.pathsep}{broker_jars()}/*"),
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", cluster.bootstrap_servers, "--topic", topic, "--from-beginning"),
        *("--isolation-level", "read_committed", "--max-messages", str(count)),
        *("--timeout-ms", "60000"),
    ]
    done = subprocess.run(command, capture_output=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()
