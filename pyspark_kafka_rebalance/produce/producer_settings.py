"""The settings of a producer, by kafka-python's names; checked before any network access. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka import KafkaProducer

from ..errors import OptionError
from ..fetch.compression import GZIP, LZ4, NONE, SNAPPY, ZSTD
from ..settings.bootstrap_servers import without_empty_servers
from ..settings.names import NAMES, is_name
from .delivery import DeliverySettings
from .encoder.settings import MOST_BYTES, EncoderSettings
from .outbox import Backoff

_CODECS = {"none": NONE, None: NONE, "gzip": GZIP, "snappy": SNAPPY, "lz4": LZ4, "zstd": ZSTD}

#: What only has one value here: batches are idempotent, and every replica in sync has them.
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "acks": (-1, "all"),
    "enable_idempotence": (True,),
    "retries": (float("inf"),),
}

#: What this producer does not have.
_ABSENT = ("partitioner", "kafka_client", "metric_reporters", "selector")

#: Defaults that differ from kafka-python's: batches half as large as a topic takes by default; they
#: are sent as soon as their partition is not busy.
_BATCH_SIZE = 500_000
_LINGER_MS = 5
_BUFFER_MEMORY = 64 * 1024 * 1024

#: A message has batches of several partitions, up to this many bytes: a broker takes one after the
#: other from a connection, and waits in between. But not if somebody chose smaller messages.
_MESSAGE_BYTES = 4 * 1024 * 1024

#: As many batches of a partition as a leader recognizes when they come again.
_MOST_IN_FLIGHT = 5

#: Whole numbers, at least 1; what the protocol has as an INT32 is in both.
_WHOLE = (
    *("transaction_timeout_ms", "request_timeout_ms", "batch_size", "max_request_size"),
    *("buffer_memory", "max_in_flight_requests_per_connection"),
)
_INT32 = ("transaction_timeout_ms", "request_timeout_ms")
#: Times, and the least of each.
_TIMES: Mapping[str, float] = {
    "delivery_timeout_ms": 1,
    "metadata_max_age_ms": 1,
    "bootstrap_timeout_ms": 1,
    "linger_ms": 0,
    "max_block_ms": 0,
    "retry_backoff_ms": 0,
}


@dataclass(frozen=True)
class ProducerSettings:
    """The settings of one producer. Times are in seconds, unless the name says otherwise.

    Attributes
    ----------
    client : dict
        kafka-python's configuration of the connections.
    serializers : tuple
        Of keys and values: callables, kafka-python's serializers, or None for bytes.
    """

    transactional_id: str | None
    transaction_timeout_ms: int
    delivery: DeliverySettings
    request_timeout_s: float
    max_block_s: float
    bootstrap_timeout_s: float
    metadata_max_age_s: float
    allow_auto_create_topics: bool
    client: dict[str, Any]
    serializers: tuple[Any, Any]

    @property
    def longest_delivery_ms(self) -> float:
        """How long a batch can take until it is acknowledged or given up. Milliseconds."""
        return (self.delivery.timeout_s + self.max_block_s) * 1000

    @classmethod
    def checked(cls, transactional_id: str | None, config: Mapping[str, Any]) -> ProducerSettings:
        """Check the settings; OptionError names what is wrong, and what is allowed."""
        given = without_empty_servers(config)
        if transactional_id is not None and not is_name(transactional_id):
            raise OptionError("transactional_id", transactional_id, f"None, or {NAMES}")
        _refuse_unknown(given)
        values = {**KafkaProducer.DEFAULT_CONFIG, "batch_size": _BATCH_SIZE}
        values |= {"linger_ms": _LINGER_MS, "buffer_memory": _BUFFER_MEMORY, **given}
        for name in _WHOLE:
            values[name] = _whole(name, values[name], 2**31 - 1 if name in _INT32 else None)
        for name, least in _TIMES.items():
            _check_time(name, values[name], least)
        _check_codec(values["compression_type"])
        if given.get("client_id", "") is None:  # kafka-python's default, which it cannot send
            del given["client_id"]
        if not isinstance(given.get("client_id", ""), str):
            raise OptionError("client_id", given["client_id"], "a string")
        client = {k: v for k, v in given.items() if k in KafkaProducer.DEFAULT_CONFIG}
        client["request_timeout_ms"] = values["request_timeout_ms"]
        # The outbox counts what is in flight; kafka-python would refuse what is beyond its number.
        client["max_in_flight_requests_per_connection"] = 1_000
        return cls(
            transactional_id,
            values["transaction_timeout_ms"],
            _delivery(values),
            values["request_timeout_ms"] / 1000,
            values["max_block_ms"] / 1000,
            values["bootstrap_timeout_ms"] / 1000,
            values["metadata_max_age_ms"] / 1000,
            bool(values["allow_auto_create_topics"]),
            client,
            (
                _serializer("key_serializer", values["key_serializer"]),
                _serializer("value_serializer", values["value_serializer"]),
            ),
        )


def _delivery(values: Mapping[str, Any]) -> DeliverySettings:
    most = min(values["max_request_size"], MOST_BYTES)
    is_small = most < KafkaProducer.DEFAULT_CONFIG["max_request_size"]
    return DeliverySettings(
        EncoderSettings(
            batch_bytes=min(values["batch_size"], most),
            max_request_bytes=most,
            codec=_CODECS[values["compression_type"]],
        ),
        values["buffer_memory"],
        values["linger_ms"] / 1000,
        most,
        min(values["max_in_flight_requests_per_connection"], _MOST_IN_FLIGHT),
        values["delivery_timeout_ms"] / 1000,
        Backoff(max(values["retry_backoff_ms"] / 100, 0.02)),
        message_bytes=0 if is_small else _MESSAGE_BYTES,
    )


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in _FIXED and value not in _FIXED[name]:
            raise OptionError(name, value, f"no other value than {_FIXED[name][0]!r}")
        if name in _ABSENT:
            raise OptionError(name, value, "no value: this producer does not have it")
        if name not in KafkaProducer.DEFAULT_CONFIG and name != "buffer_memory":
            raise OptionError(name, value, "the settings of kafka-python's producer")


def _whole(name: str, value: Any, most: int | None) -> int:
    """The number as an int; also of a float without a fraction, such as ``45e3``."""
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if isinstance(value, bool) or not is_whole or value < 1 or (most and value > most):
        bounds = f"from 1 to {most}" if most else "at least 1"
        raise OptionError(name, value, f"a whole number, {bounds}")
    return int(value)


def _check_time(name: str, value: Any, least: float) -> None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not least <= value < math.inf:
        raise OptionError(name, value, f"milliseconds, at least {least:g}")


def _check_codec(name: Any) -> None:
    if not (name is None or isinstance(name, str)) or name not in _CODECS:
        allowed = ", ".join(codec for codec in _CODECS if codec)
        raise OptionError("compression_type", name, allowed)


def _serializer(name: str, given: Any) -> Callable[[str, Any, Any], Any] | None:
    """A function of topic, headers and data; None if there is nothing to do."""
    if given is None:
        return None
    if hasattr(given, "serialize"):
        serialize: Callable[[str, Any, Any], Any] = given.serialize
        return serialize
    if not callable(given):
        raise OptionError(name, given, "a function, or a Serializer of kafka-python")
    return lambda topic, headers, data: given(data)
