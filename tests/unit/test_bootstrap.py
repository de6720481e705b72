"""Bootstrap: every server has its turn and a share of the time, and is named if all fail."""

from __future__ import annotations

import random
import socket
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import errors as kafka_errors

from pyspark_kafka_rebalance.transport import bootstrap
from pyspark_kafka_rebalance.transport.bootstrap import Bootstrap, NoBrokerError
from pyspark_kafka_rebalance.transport.secured_clients import admin_client

A, B, C = SERVERS = [
    SimpleNamespace(node_id=f"bootstrap-{n}", host=host, port=9092) for n, host in enumerate("abc")
]
CONFIG: dict[str, Any] = {
    "bootstrap_servers": ["a:9092", "b:9092", "c:9092"],
    "security_protocol": "SSL",
}


class Clock:
    now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(bootstrap, "time", made)
    return made


@pytest.fixture
def look(clock: Clock) -> Bootstrap:
    made = Bootstrap()
    made.begin(clock.now + 15.0)
    return made


def refused() -> Exception:
    return kafka_errors.KafkaConnectionError("111 ECONNREFUSED")


def test_a_server_that_failed_is_left_out_until_all_have_failed(look: Bootstrap) -> None:
    look.failed(B, refused())
    assert look.left_to_try(SERVERS) == [A, C]
    look.failed(A, refused())
    assert look.left_to_try(SERVERS) == [C]
    look.failed(C, refused())
    assert look.left_to_try(SERVERS) == SERVERS
    look.failed(C, refused())
    assert look.left_to_try(SERVERS) == [A, B]


def test_a_silent_server_leaves_time_for_the_others(look: Bootstrap, clock: Clock) -> None:
    deadline = clock.now + 15.0
    assert look.give_up_at(SERVERS, deadline) == clock.now + 5.0
    clock.now += 5.0
    look.failed(A, kafka_errors.KafkaConnectionError("Connection timed out"))
    assert look.give_up_at(SERVERS, deadline) == clock.now + 5.0
    look.failed(B, refused())
    assert look.give_up_at(SERVERS, deadline) == deadline
    assert look.give_up_at(SERVERS, clock.now + 2.0) == clock.now + 2.0
    many = [SimpleNamespace(node_id=n, host="h", port=n) for n in range(1, 100)]
    assert look.give_up_at(many, deadline) == clock.now + 3.5, "a lost packet is sent again"


def test_after_a_look_and_in_one_without_an_end_nothing_is_given_up_sooner(
    look: Bootstrap, clock: Clock
) -> None:
    look.failed(A, refused())
    look.end()
    look.failed(B, refused())
    assert look.left_to_try(SERVERS) == SERVERS
    assert look.give_up_at(SERVERS, clock.now + 10.0) == clock.now + 10.0
    look.begin(None)
    assert look.give_up_at(SERVERS, clock.now + 10.0) == clock.now + 10.0


def test_the_error_names_what_each_server_met_last(look: Bootstrap, clock: Clock) -> None:
    look.failed(A, refused())
    look.failed(B, kafka_errors.InvalidReceiveError("Invalid frame length: 1213486160"))
    clock.now += 8.0
    look.failed(A, kafka_errors.KafkaConnectionError("Connection timed out"))
    clock.now += 7.0
    error = look.error(CONFIG)
    assert isinstance(error, NoBrokerError)
    assert str(error) == (
        "none accepted this client within 15 s with security_protocol=SSL (a:9092: Connection "
        "timed out; b:9092: the answer is not a Kafka broker's, or the listener expects TLS: "
        "InvalidReceiveError: "
        "Invalid frame length: 1213486160)"
    )


def test_the_error_of_a_look_that_tried_nothing_names_the_servers(look: Bootstrap) -> None:
    assert "['a:9092', 'b:9092', 'c:9092']" in str(look.error(CONFIG))


def test_a_client_tries_the_next_server_if_one_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """By itself kafka-python gives the first one that it picks all the time."""
    monkeypatch.setattr(bootstrap, "_ONE_SERVER_S", 0.0)
    monkeypatch.setattr(random, "choice", lambda servers: servers[0])
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nothing listens there
        ports = [one.getsockname()[1] for one in (silent, closed)]
        servers = [f"127.0.0.1:{port}" for port in ports]
        with pytest.raises(NoBrokerError) as raised:
            admin_client({"bootstrap_servers": servers, "bootstrap_timeout_ms": 1_000})
    assert f"{servers[0]}: " in str(raised.value)
    assert f"{servers[1]}: " in str(raised.value)
    assert "ECONNREFUSED" in str(raised.value)
