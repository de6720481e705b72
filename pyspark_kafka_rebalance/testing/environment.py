"""The user's own cluster and database if the environment names them, else local ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from .brokers.cluster import KafkaCluster
from .local_kafka import LocalKafka
from .local_postgres import LocalPostgres
from .postgres_server import PostgresServer


@contextmanager
def kafka_from_environment(**local: Any) -> Iterator[KafkaCluster]:
    """Yield the cluster that ``KAFKA_BOOTSTRAP_SERVERS`` names, or a LocalKafka without it.

    Parameters
    ----------
    **local
        For :class:`~.local_kafka.LocalKafka`, if one is started.
    """
    servers = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    with KafkaCluster(servers) if servers else LocalKafka(**local) as cluster:
        yield cluster


@contextmanager
def postgres_from_environment() -> Iterator[PostgresServer]:
    """Yield the server of the database that ``POSTGRES_URL`` names, or a LocalPostgres without it.

    On a user's own server, use only schemas of ``new_schema``.
    """
    url = os.environ.get("POSTGRES_URL")
    with PostgresServer(url) if url else LocalPostgres() as server:
        yield server
