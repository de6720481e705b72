"""The user's own cluster when there is one, else a local one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .cluster import KafkaCluster
from .local_kafka import LocalKafka


@contextmanager
def kafka_from_environment(**local: Any) -> Iterator[KafkaCluster]:
    """Yield the cluster that ``KAFKA_BOOTSTRAP_SERVERS`` names, or a LocalKafka without it.

    Parameters
    ----------
    **local
        For :class:`~.local_kafka.LocalKafka`, when it comes to that.
    """
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    with KafkaCluster(servers) if servers else LocalKafka(**local) as cluster:
        yield cluster
