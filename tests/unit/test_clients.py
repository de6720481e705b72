"""build_clients: all of a query's clients, or none."""

from __future__ import annotations

import inspect
import threading
from typing import Any

import pytest

from pyspark_kafka_rebalance.consumer.consumer import DeferredRevokeConsumer
from pyspark_kafka_rebalance.errors import KafkaRebalanceError
from pyspark_kafka_rebalance.source.group.clients import query_members as clients
from pyspark_kafka_rebalance.source.group.clients.assign_client import AssignClient
from pyspark_kafka_rebalance.source.group.clients.query_member import QueryMember
from pyspark_kafka_rebalance.source.group.clients.query_members import build_clients
from pyspark_kafka_rebalance.source.options.source_options import SourceOptions

OPTIONS = {
    "kafka.bootstrap.servers": "127.0.0.1:9092",
    "kafka.group.id": "group",
    "kafka.group.instance.id": "static",
    "subscribe": "orders",
    "readers": "4",
}


class Client:
    def __init__(self, config: dict[str, Any], is_first: bool) -> None:
        self.config, self.is_first, self.closed = config, is_first, False

    def close(self, timeout_ms: float) -> None:
        self.closed = True


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """The others are built at the same time: each waits for all."""
    made: list[Client] = []
    together = threading.Barrier(3, timeout=60)

    def member(options: SourceOptions, config: dict[str, Any], is_first: bool) -> Client:
        if not is_first:
            together.wait()
        if "bad" in config["client_id"] and config["client_id"][-1] in "23":
            raise KafkaRebalanceError(config["client_id"])
        made.append(Client(config, is_first))
        return made[-1]

    monkeypatch.setattr(clients, "_member", member)
    return made


def test_the_first_alone_and_then_the_others_at_once_in_order(built: list[Client]) -> None:
    parsed = SourceOptions.parse(OPTIONS, default_readers=2).for_stream()
    building = build_clients(parsed, "run")
    first = next(building)
    assert built == [first.member]
    members: list[Any] = [client.member for client in (first, *building)]
    assert [m.config["client_id"] for m in members] == [f"run-{n}" for n in range(4)]
    assert [m.config["group_instance_id"] for m in members] == [f"static-{n}" for n in range(4)]
    assert [m.is_first for m in members] == [True, False, False, False]


@pytest.mark.parametrize(
    ("given", "ms"), [({}, 15_000), ({"kafka.request.timeout.ms": "7000"}, 7_000)]
)
def test_a_start_looks_for_a_first_broker_for_so_long(
    built: list[Client], given: dict[str, str], ms: int
) -> None:
    parsed = SourceOptions.parse({**OPTIONS, **given}, default_readers=2).for_stream()
    next(build_clients(parsed, "run"))
    assert built[0].config["bootstrap_timeout_ms"] == ms


def test_one_that_cannot_be_built_closes_those_beside_it(built: list[Client]) -> None:
    parsed = SourceOptions.parse(OPTIONS, default_readers=2).for_stream()
    building = build_clients(parsed, "bad")
    next(building)
    with pytest.raises(KafkaRebalanceError, match="bad-2"):
        next(building)
    assert [(m.config["client_id"], m.closed) for m in built] == [("bad-0", False), ("bad-1", True)]


@pytest.mark.parametrize("kind", [DeferredRevokeConsumer, AssignClient])
def test_both_kinds_have_what_a_query_needs_of_a_member(kind: type) -> None:
    """mypy says so of one alone: the other inherits from classes that are not typed."""
    wanted = {name: found for name, found in vars(QueryMember).items() if not name.startswith("_")}
    assert wanted
    for name, declared in wanted.items():
        found = inspect.getattr_static(kind, name)
        assert isinstance(found, property) == isinstance(declared, property), name
        if callable(found):
            takes = inspect.signature(found).parameters
            assert takes.keys() >= inspect.signature(declared).parameters.keys(), name
