"""The producer settings of Kafka's Java client, translated to kafka-python's.

Spark's users write ``kafka.<Java name>`` for its sink, too. What concerns the connections is
translated by :mod:`.client_settings`; every other setting that Kafka 4.3's ``ProducerConfig`` knows
has one line below. Nothing is ignored silently: see there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..errors import OptionError
from .client_settings import (
    CONNECTION_SETTINGS,
    KNOWN_SETTINGS,
    PRODUCER_SETTINGS,
    map_client_settings,
)
from .misspelt import LENIENT, meant_by
from .problems import Problems
from .values import INT_MAX, LONG_MAX, REDACTED, ValueType, integer, one_of, parse_value

_POSITIVE = integer(1, INT_MAX)
_TIME = integer(0, LONG_MAX)

#: Java's name, kafka-python's argument, and the type.
_MAPPED: Mapping[str, tuple[str, ValueType]] = {
    "batch.size": ("batch_size", _POSITIVE),
    "buffer.memory": ("buffer_memory", integer(1, LONG_MAX)),
    "compression.type": ("compression_type", one_of("none", "gzip", "snappy", "lz4", "zstd")),
    "delivery.timeout.ms": ("delivery_timeout_ms", _POSITIVE),
    "linger.ms": ("linger_ms", _TIME),
    "max.block.ms": ("max_block_ms", _TIME),
    "max.in.flight.requests.per.connection": (
        "max_in_flight_requests_per_connection",
        integer(1, 5),
    ),
    "max.request.size": ("max_request_size", _POSITIVE),
}

#: The level of each codec: Java's bounds.
_LEVELS = {
    "compression.gzip.level": integer(1, 9),
    "compression.lz4.level": integer(1, 17),
    "compression.zstd.level": integer(-131_072, 22),
}

_IDEMPOTENT = "records are written once, in their order, and on every replica in sync"

#: The only values, in lower case, and the behaviour here.
_ONLY: Mapping[str, tuple[tuple[str, ...], str]] = {
    "acks": (("all", "-1"), _IDEMPOTENT),
    "enable.idempotence": (("true",), _IDEMPOTENT),
    "partitioner.ignore.keys": (("false",), "records with equal keys go to one partition"),
}

_DERIVED = "it is derived, and the log says what it is"
_BY_TIME = "records are sent again until kafka.delivery.timeout.ms is over"
_STICKY = "records without a key go to one partition until its batch is full"

_NO_EFFECT = {
    "metadata.max.idle.ms": "kafka.metadata.max.age.ms says how old metadata may be",
    "partitioner.adaptive.partitioning.enable": _STICKY,
    "partitioner.availability.timeout.ms": _STICKY,
    "retries": _BY_TIME,
}

_REFUSED = {
    # In Spark's words.
    "key.serializer": "keys are serialized with ByteArraySerializer",
    "value.serializer": "values are serialized with ByteArraySerializer",
    "partitioner.class": "a Java class cannot run in this Python sink; use the column partition",
    "interceptor.classes": "a Java class cannot run in this Python sink",
    "transactional.id": _DERIVED,
    "transaction.timeout.ms": _DERIVED,
    "transaction.two.phase.commit.enable": "Kafka alone decides about a transaction of this sink",
}

_KNOWN = CONNECTION_SETTINGS | PRODUCER_SETTINGS


@dataclass(frozen=True, slots=True)
class WriterSettings:
    """kafka-python's arguments of a producer.

    Attributes
    ----------
    client : dict
        For every connection.
    producer : dict
        In addition to ``client``; only given settings, and no key is in both.
    compression_level : int, optional
        Of the codec that is used.
    without_effect : dict of str to str
        Given settings that change nothing here, each with the reason.
    """

    client: Mapping[str, Any] = field(repr=False)
    producer: Mapping[str, Any]
    compression_level: int | None
    without_effect: Mapping[str, str]


def map_producer_settings(settings: Mapping[str, str]) -> WriterSettings:
    """Translate and check a producer's settings, without any network access.

    They have Java's names in lower case, without Spark's ``kafka.`` in front. Raises OptionError if
    one is misspelt (the error names the intended one), refused or out of range. One error has all
    problems.
    """
    problems = Problems()
    without_effect = {}
    of_connections = {}
    producer = {}
    level = None
    codec = settings.get("compression.type", "none").strip()
    for name, text in sorted(settings.items()):
        if name in _MAPPED:
            argument, value_type = _MAPPED[name]
            value = problems.of(partial(parse_value, f"kafka.{name}", text, value_type), None)
            if value is not None:
                producer[argument] = value
        elif name in _LEVELS:
            parsed = problems.of(partial(parse_value, f"kafka.{name}", text, _LEVELS[name]), None)
            if name == f"compression.{codec}.level":
                level = parsed
            else:
                without_effect[name] = f"kafka.compression.type is {codec}"
        elif name in _REFUSED:
            error = OptionError(
                f"kafka.{name}", REDACTED, _REFUSED[name], problem="is refused, leave it out"
            )
            problems.add(error)
        elif name in _ONLY:
            values, why = _ONLY[name]
            if text.strip().lower() not in values:
                problems.add(OptionError(f"kafka.{name}", text, f"{values[0]}: {why}"))
        elif name in _NO_EFFECT:
            without_effect[name] = _NO_EFFECT[name]
        elif name in KNOWN_SETTINGS - CONNECTION_SETTINGS:
            without_effect[name] = "it is no setting of a producer"
        elif (meant := _meant(name)) is not None:
            nearest = f"the nearest is kafka.{meant}"
            problems.add(OptionError(f"kafka.{name}", REDACTED, nearest, problem="is unknown"))
        else:
            of_connections[name] = text
    mapped = problems.of(partial(map_client_settings, of_connections), None)
    if mapped is not None:
        without_effect |= mapped.without_effect
    problems.raise_if_any()
    assert mapped is not None
    return WriterSettings(mapped.client, producer, level, without_effect)


def _meant(name: str) -> str | None:
    """Return the producer's setting of which this is a misspelling, if it is one.

    Those of connections are examined with them.
    """
    if name in _KNOWN:
        return None
    meant = meant_by(name, _KNOWN, LENIENT)
    return meant if meant in PRODUCER_SETTINGS else None
