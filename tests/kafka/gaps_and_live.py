"""What the tests of catching up (KIP-333) share: members with a backlog, and their polls."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from group_members import wait_until
from kafka import KafkaConsumer
from kafka.structs import OffsetAndMetadata, TopicPartition

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka

#: A backlog of more than these is one, in these tests.
FEW = 10
LIVE = {"parallel_rebalance": "live", "catch_up_threshold": FEW}
ORDERED = {"parallel_rebalance": "ordered", "catch_up_threshold": FEW}

#: Of the fixture ``committed_at``.
Commit = Callable[..., TopicPartition]


def foreign(kafka: LocalKafka, group_id: str) -> KafkaConsumer:
    """A client of the group that knows no gaps."""
    return KafkaConsumer(
        bootstrap_servers=kafka.bootstrap_servers, group_id=group_id, enable_auto_commit=False
    )


def commit_foreign(kafka: LocalKafka, group_id: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Have a client that knows no gaps commit where the group is."""
    with foreign(kafka, group_id) as plain:
        plain.assign(list(offsets))
        plain.commit({p: OffsetAndMetadata(offset, "", -1) for p, offset in offsets.items()})


class Seen:
    """The offsets that a member's polls handed out of each partition, in order."""

    def __init__(self, member: DeferredRevokeConsumer) -> None:
        self.member = member
        self.live: list[int] = []
        self.gaps: list[int] = []

    def poll(self, **arguments: Any) -> None:
        result = self.member.poll_with_rebalance(timeout_ms=50, **arguments)
        self.live += [record.offset for found in result.records.values() for record in found]
        self.gaps += [record.offset for found in result.catch_up.values() for record in found]

    def until(self, done: Callable[[], bool], **arguments: Any) -> Seen:
        def polled() -> bool:
            self.poll(**arguments)
            return done()

        wait_until(polled, f"live {self.live[-5:]}, gaps {self.gaps[-5:]}")
        return self

    def slowly_until(self, done: Callable[[], bool]) -> Seen:
        """A record a poll, and not many a second: what is waited for comes before a gap ends."""

        def paced() -> bool:
            time.sleep(0.02)
            return done()

        return self.until(paced, max_records=1)

    def until_gaps(self, number: int, **arguments: Any) -> Seen:
        return self.until(lambda: len(self.gaps) >= number, **arguments)


def values(number: int, size: int = 10) -> list[bytes]:
    return [b"%0*d" % (size, n) for n in range(number)]


def killed(member: DeferredRevokeConsumer) -> None:
    """Die without another commit."""
    member.leave_until_polled("killed")


def produced(kafka: LocalKafka, topic: str, number: int) -> None:
    kafka.produce(topic, values(number))
