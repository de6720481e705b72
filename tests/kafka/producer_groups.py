"""What the tests of producer groups have in common: members, a source, and what readers see."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from kafka import KafkaConsumer
from kafka.structs import TopicPartition

from pyspark_kafka_rebalance import ProducerGroup
from pyspark_kafka_rebalance.testing import LocalKafka

PATIENCE_S = 60.0

MakeProducer = Callable[..., ProducerGroup]


@contextmanager
def producers_of(
    cluster: LocalKafka, group_id: str, protocol: str, session_timeout_ms: int
) -> Iterator[MakeProducer]:
    """Make members of one producer group; closed at the end."""
    timeouts = {"session_timeout_ms": session_timeout_ms, "heartbeat_interval_ms": 500}
    if protocol == "consumer":  # there they are the group's
        cluster.configure_group(
            group_id,
            {f"consumer.{name.replace('_', '.')}": value for name, value in timeouts.items()},
        )
    with ExitStack() as stack:

        def make(count: int = 3, **config: Any) -> ProducerGroup:
            settings = {
                "bootstrap_servers": cluster.bootstrap_servers,
                "group_protocol": protocol,
                "reconnect_backoff_max_ms": 200,
                **timeouts,
                **config,
            }
            group = ProducerGroup(group_id, count, **settings)
            stack.callback(group.close, timeout_ms=3_000)
            return group

        yield make


class Zombie:
    """A member that believes in what it owned, whatever it learns."""

    def __init__(self, group: ProducerGroup) -> None:
        self._membership = group._membership
        self._identity = self._membership.identity
        self._believed: Any = None
        # The transactional producer asks by this name.
        self._membership.identity = self.identity  # type: ignore[method-assign]

    def identity(self) -> Any:
        return self._believed or self._identity()

    def believe(self) -> None:
        """From now on."""
        self._believed = self._identity()
        self._membership.ownership.lost = lambda partitions, reason: None  # type: ignore[method-assign]

    def leave_for_good(self) -> None:
        """As far as the group knows."""
        member = self._membership._member
        assert member is not None
        member.alive = lambda: None  # type: ignore[method-assign]
        member.leave_until_polled("said the test")


def poll_until(done: Callable[[], bool], *groups: ProducerGroup) -> None:
    """Poll them in turn until ``done``."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        owned = [(p, i) for i, group in enumerate(groups) for p in group.restart_points]
        assert time.monotonic() < deadline, (
            f"the group did not get there: {owned}; {[_state(group) for group in groups]}"
        )
        for group in groups:
            group.poll(timeout_ms=10)


def _state(group: ProducerGroup) -> str:
    member = group._membership.member
    return "not joined" if member is None else member._ownership.describe(time.monotonic(), 0)


def owns(group: ProducerGroup, *partitions: int) -> Callable[[], bool]:
    return lambda: set(group.restart_points) == set(partitions)


def share(*groups: ProducerGroup, count: int = 3) -> Callable[[], bool]:
    """Whether they own the whole source together, evenly."""

    def shared() -> bool:
        owned = sorted(len(group.restart_points) for group in groups)
        return sum(owned) == count and owned[-1] - owned[0] <= 1

    return shared


def read_committed(cluster: LocalKafka, topic: str, wait_s: float = 30.0) -> list[bytes]:
    """The values that a reader of what is committed finds, in the order of the log.

    Up to the end of the log as of now, so it waits for the end of open transactions.
    """
    consumer = KafkaConsumer(
        bootstrap_servers=cluster.bootstrap_servers,
        isolation_level="read_committed",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=f"reader-{uuid.uuid4().hex}",
    )
    plain = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers)
    try:
        parts = [TopicPartition(topic, p) for p in sorted(consumer.partitions_for_topic(topic))]
        ends = plain.end_offsets(parts)
        deadline = time.monotonic() + wait_s
        while any(consumer.end_offsets([p])[p] < ends[p] for p in parts):
            assert time.monotonic() < deadline, "a transaction stays open"
            time.sleep(0.05)
        consumer.assign(parts)
        consumer.seek_to_beginning(*parts)
        found: list[bytes] = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(p) < ends[p] for p in parts):
            assert time.monotonic() < deadline, "not read to the end"
            polled = consumer.poll(timeout_ms=200)
            found.extend(record.value for records in polled.values() for record in records)
        return found
    finally:
        consumer.close()
        plain.close()
