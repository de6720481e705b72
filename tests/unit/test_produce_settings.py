"""The settings of a producer: checked before any network access."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_kafka_rebalance import OptionError
from pyspark_kafka_rebalance.produce.producer import Producer
from pyspark_kafka_rebalance.produce.producer_settings import ProducerSettings


def checked(**config: Any) -> ProducerSettings:
    return ProducerSettings.checked("id", config)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("acks", 1),
        ("acks", 0),
        ("enable_idempotence", False),
        ("retries", 3),
        ("linger", 5),
        ("compression_type", "lzma"),
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", 16_384.5),
        ("transaction_timeout_ms", 8_000.5),
        ("transaction_timeout_ms", 2**31),
        ("transaction_timeout_ms", float("inf")),
        ("request_timeout_ms", 3e9),
        ("buffer_memory", float("nan")),
        ("delivery_timeout_ms", float("nan")),
        ("linger_ms", float("inf")),
        ("linger_ms", None),
        ("compression_type", ["gzip"]),
        ("client_id", 5),
        ("key_serializer", 5),
        ("linger_ms", -1),
        ("buffer_memory", "64"),
        ("partitioner", print),
        ("bootstrap_servers", ","),
    ],
)
def test_what_is_refused(name: str, value: object) -> None:
    with pytest.raises(OptionError, match=name):
        Producer("id", **{name: value})


def test_no_client_id_is_none_given() -> None:
    """As kafka-python's default is spelled, with which no request reached a leader."""
    assert "client_id" not in checked(client_id=None).client


@pytest.mark.parametrize("name", ["", "x" * 32_768, "\ud800", b"id", 5])
def test_a_transactional_id_is_a_name(name: Any) -> None:
    with pytest.raises(OptionError, match="transactional_id"):
        Producer(name)


def test_the_defaults() -> None:
    settings = checked()
    delivery = settings.delivery
    assert settings.transaction_timeout_ms == 60_000
    assert (delivery.linger_s, delivery.timeout_s) == (0.005, 120.0)
    assert (delivery.buffer_memory, delivery.max_request_size) == (2**26, 2**20)
    assert delivery.message_bytes == 2**22
    assert delivery.encoder.batch_bytes == 500_000
    assert settings.max_block_s == 60.0


def test_what_is_given() -> None:
    settings = checked(
        bootstrap_servers="a:1,b:2",
        acks="all",
        compression_type="zstd",
        batch_size=2_000_000,
        max_request_size=500_000,
        max_in_flight_requests_per_connection=9,
        retry_backoff_ms=200,
        linger_ms=0,
        security_protocol="SSL",
        value_serializer=str.encode,
    )
    delivery = settings.delivery
    assert delivery.encoder.codec == 4
    assert delivery.encoder.batch_bytes == delivery.encoder.max_request_bytes == 500_000
    assert delivery.message_bytes == 0, "somebody chose smaller messages"
    assert delivery.max_in_flight == 5, "as many as a leader recognizes"
    assert delivery.backoff.longest_s == 2.0
    assert settings.client["security_protocol"] == "SSL"
    assert settings.client["bootstrap_servers"] == ["a:1", "b:2"]
    key, value = settings.serializers
    assert key is None
    assert value("topic", [], "x") == b"x"


def test_a_whole_number_may_be_written_as_a_float() -> None:
    assert checked(transaction_timeout_ms=45e3).transaction_timeout_ms == 45_000
    assert type(checked(batch_size=1e5).delivery.encoder.batch_bytes) is int


def test_serializers_of_kafka_python() -> None:
    class Serializer:
        def serialize(self, topic: str, headers: Any, data: str) -> bytes:
            return f"{topic}:{data}".encode()

    serialize = checked(key_serializer=Serializer()).serializers[0]
    assert serialize("t", [], "k") == b"t:k"
