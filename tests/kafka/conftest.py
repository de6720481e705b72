"""Fixtures of the tests of group membership: ``protocol``, ``consumers``, ``network``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from flaky_network import FlakyNetwork
from group_members import PROTOCOLS

from pyspark_kafka_rebalance import DeferredRevokeConsumer
from pyspark_kafka_rebalance.testing import LocalKafka


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    """Both protocols, one after the other; parametrize it (indirect) where only one applies."""
    name: str = request.param
    return name


@pytest.fixture
def consumers(
    kafka: LocalKafka, group_id: str, protocol: str
) -> Iterator[Callable[..., DeferredRevokeConsumer]]:
    """Make members of one group; closed at the end."""
    with ExitStack() as stack:

        def make(*topics: str, **config: Any) -> DeferredRevokeConsumer:
            settings = {
                "bootstrap_servers": kafka.bootstrap_servers,
                "group_id": group_id,
                "group_protocol": protocol,
                "auto_offset_reset": "earliest",
                "session_timeout_ms": 6_000,
                "heartbeat_interval_ms": 500,
                **config,
            }
            consumer = DeferredRevokeConsumer(*topics, **settings)
            stack.callback(consumer.close, timeout_ms=2_000)
            return consumer

        yield make


@pytest.fixture
def network() -> Iterator[FlakyNetwork]:
    """A way to the brokers that can be stalled and cut."""
    with FlakyNetwork() as flaky:
        yield flaky
