"""The class data archive of a broker, with which it starts in half the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from kafka import KafkaConsumer

from ..java import find_java
from ..kafka_versions import KAFKA_VERSION
from ..processes.class_archive import (
    class_archive,
    is_decided,
    options_to_make,
    options_with_archive,
)
from .broker import DEFAULT_JAVA_OPTIONS
from .cluster import KafkaCluster

_PATIENCE_S = 30.0
#: A broker that is killed while it writes the archive leaves none.
_ARCHIVED_WITHIN_S = 120.0


class _Broker(Protocol):
    """``LocalKafka``."""

    @property
    def bootstrap_servers(self) -> str: ...

    def __enter__(self) -> _Broker: ...

    def __exit__(self, *exc: Any) -> None: ...

    def stop(self, *, timeout_s: float) -> None: ...


def sharing_options(
    java_options: Sequence[str], jars: Path, make_cluster: Callable[..., _Broker]
) -> list[str]:
    """Return options that make the JVM map Kafka's classes; none if ``java_options`` has some.

    ``make_cluster`` makes the one broker whose classes are archived, from its ``java_options``.
    """
    if is_decided(java_options):
        return []
    load = partial(_load_classes, make_cluster=make_cluster)
    class_path = sorted(jars.glob("*.jar"))
    archive = class_archive(f"kafka-{KAFKA_VERSION}", find_java(), class_path, load)
    return options_with_archive(archive) if archive else []


def _load_classes(archive: Path, *, make_cluster: Callable[..., _Broker]) -> None:
    """Use a broker as most tests do; the broker writes the archive when it is stopped."""
    options = [*DEFAULT_JAVA_OPTIONS, *options_to_make(archive)]
    with make_cluster(java_options=options) as kafka:
        # Close all clients before the broker stops, or they would log its end.
        with KafkaCluster(kafka.bootstrap_servers) as clients:
            clients.create_topic("loaded", partitions=2)
            clients.produce("loaded", [b"a", b"b"])
        consumer = KafkaConsumer(
            "loaded",
            bootstrap_servers=kafka.bootstrap_servers,
            group_id="loaded",
            auto_offset_reset="earliest",
        )
        deadline = time.monotonic() + _PATIENCE_S
        with closing(consumer):  # which commits, and leaves the group
            while not consumer.poll(timeout_ms=200) and time.monotonic() < deadline:
                pass
        kafka.stop(timeout_s=_ARCHIVED_WITHIN_S)
