"""When a client asks its bootstrap servers again, and what it forgets then (KIP-899)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors
from kafka.protocol.metadata import MetadataResponse

from pyspark_kafka_rebalance.transport.recovery import Recovery, recover_by_bootstrap

Broker = MetadataResponse.MetadataResponseBroker
BOOTSTRAP = "bootstrap-0"


class Connection:
    """To where its broker was when it was opened."""

    def __init__(self) -> None:
        self.closed_by: Exception | None = None

    def close(self, error: Exception | None = None) -> None:
        self.closed_by = error


class Manager:
    """A manager and its metadata, which brokers answer or not as the test wants."""

    def __init__(self, *ports: int) -> None:
        self.known = {n: Broker(n, "host", port, None) for n, port in enumerate(ports, 1)}
        self.moved_to = dict(self.known)
        self.answer: set[Any] = set(self.known)
        self.delays: dict[Any, float] = {}
        self.least_loaded: Any = None
        self.spawned: list[Callable[[], Coroutine[Any, Any, None]]] = []
        self.config = {"request_timeout_ms": 30_000}
        self.closed = False
        self._bootstrap_future = None
        self._conns: dict[Any, Connection] = {}
        self._backoff: dict[Any, float] = {}
        self.cluster: Any = SimpleNamespace(
            config={"bootstrap_servers": "name:1"},
            brokers=lambda: list(self.known.values()),
            is_bootstrap=lambda node: node == BOOTSTRAP,
            refresh_metadata=self._refresh,
            _do_refresh_metadata=self._refresh,
            metadata_refresh_in_progress=False,
            _coordinator_brokers={},
        )

    async def _refresh(self, node_id: Any) -> None:
        if node_id == BOOTSTRAP:
            self.known = self.moved_to
        elif node_id not in self.answer:
            raise kafka_errors.KafkaConnectionError(node_id)

    async def _connect(self, node: Any, connection: Connection) -> None:
        self._conns[node.node_id] = connection

    async def _do_bootstrap(self, deadline: float) -> None:
        if BOOTSTRAP not in self.answer:
            raise kafka_errors.KafkaTimeoutError("no server")
        await self.cluster.refresh_metadata(BOOTSTRAP)

    def least_loaded_node(self) -> Any:
        return self.least_loaded

    def connection_delay(self, node_id: Any) -> float:
        return self.delays.get(node_id, 0)

    def reset_backoff(self, node_id: Any) -> None:
        del self._backoff[node_id]

    def call_soon(self, run: Callable[[], Coroutine[Any, Any, None]]) -> Any:
        self.spawned.append(run)
        return SimpleNamespace(is_done=False)


def refresh(manager: Manager, least_loaded: Any) -> bool:
    """Whether a refresh at this broker succeeds."""
    manager.least_loaded = least_loaded
    try:
        asyncio.run(manager.cluster.refresh_metadata())
    except kafka_errors.KafkaError:
        return False
    return True


def recovering(*ports: int) -> Manager:
    manager = Manager(*ports)
    recover_by_bootstrap(manager)  # type: ignore[arg-type]
    return manager


def test_a_bootstrap_begins_once_every_known_broker_has_failed() -> None:
    manager = recovering(1, 2)
    assert refresh(manager, 1)
    manager.answer.clear()
    assert not refresh(manager, 1)
    assert not refresh(manager, 1)
    assert not manager.spawned, "the other one may answer"
    assert not refresh(manager, 2)
    assert len(manager.spawned) == 1
    assert not refresh(manager, 1)
    assert len(manager.spawned) == 1, "while it is under way no other begins"


def test_an_answer_in_between_is_the_end_of_an_outage() -> None:
    manager = recovering(1, 2)
    manager.answer = {2}
    assert not refresh(manager, 1)
    assert refresh(manager, 2)
    manager.answer = {1}
    assert not refresh(manager, 2)
    assert not manager.spawned


def test_brokers_that_cannot_be_connected_to_now_count_as_failed() -> None:
    manager = recovering(1, 2)
    manager.answer.clear()
    manager.delays = {1: 0.1, 2: 0.1}
    assert not refresh(manager, None)
    assert len(manager.spawned) == 1


def test_a_client_without_metadata_is_at_its_first_bootstrap() -> None:
    manager = recovering()
    assert not refresh(manager, None)
    assert not manager.spawned


def test_it_connects_to_where_the_brokers_are_now() -> None:
    manager = recovering(1, 2)
    old = {n: Connection() for n in (1, 2)}
    for n, connection in old.items():
        asyncio.run(manager._connect(manager.known[n], connection))
    manager.cluster._coordinator_brokers.update(
        {name: Broker(name, "host", 1, None) for name in ("coordinator-1", "lane-1", "lane-7")}
    )
    manager._backoff = {1: 9.0, "lane-1": 9.0}
    manager.answer = {BOOTSTRAP}
    manager.moved_to = {1: Broker(1, "host", 3, None), 2: manager.known[2]}
    assert not refresh(manager, 1)
    assert not refresh(manager, 2)
    asyncio.run(manager.spawned[0]())
    assert isinstance(old[1].closed_by, kafka_errors.KafkaConnectionError)
    assert old[2].closed_by is None, "that broker is where it was"
    ports = {n: broker.port for n, broker in manager.cluster._coordinator_brokers.items()}
    assert ports == {"coordinator-1": 3, "lane-1": 3, "lane-7": 1}
    assert manager._backoff == {}


def test_an_outage_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    manager = recovering(1)
    manager.answer.clear()
    recovery: Recovery = manager.cluster.refresh_metadata.__self__
    for _ in range(2):
        assert not refresh(manager, 1)
        asyncio.run(manager.spawned.pop()())
        recovery._bootstrap = None
    assert [r.levelno for r in caplog.records] == [logging.WARNING] * 2
    assert "name:1" in caplog.messages[0]
    assert "no server" in caplog.messages[1]
