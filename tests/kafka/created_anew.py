"""A topic that is deleted and created anew below a member."""

from __future__ import annotations

import time
from collections.abc import Callable

from kafka.errors import UnknownTopicIdError

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka

PATIENCE_S = 60.0


def create_anew(kafka: LocalKafka, topic: str) -> None:
    kafka.delete_topic(topic)
    kafka.create_topic(topic)


def commit_once_assigned_anew(member: DeferredRevokeConsumer, deliver: Callable[[], None]) -> None:
    """Commit what is delivered of the new topic, which comes again until that is assigned.

    Parameters
    ----------
    member : DeferredRevokeConsumer
        In the consumer protocol its commits name the old topic until then, and are refused.
    deliver : callable
        Has all of the new topic delivered, and checks it.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        deliver()
        try:
            return member.commit()
        except UnknownTopicIdError:
            assert time.monotonic() < deadline
