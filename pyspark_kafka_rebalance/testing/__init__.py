"""Real brokers, Spark clusters and databases on this machine, for our tests and for users' tests.

The pytest fixtures are in ``pyspark_kafka_rebalance.testing.pytest_fixtures``: name it in
``pytest_plugins`` of a ``conftest.py``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

_PUBLIC = {
    "KafkaCluster": "brokers.cluster",
    "LocalKafka": "local_kafka",
    "LocalKafkaError": "errors",
    "LocalPostgres": "local_postgres",
    "LocalPostgresError": "errors",
    "LocalSparkCluster": "local_spark_cluster",
    "LocalSparkError": "errors",
    "PostgresServer": "postgres_server",
    "SecuredKafka": "secured_kafka",
    "kafka_from_environment": "environment",
    "postgres_from_environment": "environment",
}

__all__ = [
    "KafkaCluster",
    "LocalKafka",
    "LocalKafkaError",
    "LocalPostgres",
    "LocalPostgresError",
    "LocalSparkCluster",
    "LocalSparkError",
    "PostgresServer",
    "SecuredKafka",
    "kafka_from_environment",
    "postgres_from_environment",
]

if TYPE_CHECKING:
    from .brokers.cluster import KafkaCluster as KafkaCluster
    from .environment import kafka_from_environment as kafka_from_environment
    from .environment import postgres_from_environment as postgres_from_environment
    from .errors import LocalKafkaError as LocalKafkaError
    from .errors import LocalPostgresError as LocalPostgresError
    from .errors import LocalSparkError as LocalSparkError
    from .local_kafka import LocalKafka as LocalKafka
    from .local_postgres import LocalPostgres as LocalPostgres
    from .local_spark_cluster import LocalSparkCluster as LocalSparkCluster
    from .postgres_server import PostgresServer as PostgresServer
    from .secured_kafka import SecuredKafka as SecuredKafka


def __getattr__(name: str) -> Any:
    # On demand, so that ``python -m`` can run a module of this package without importing it
    # twice.
    if name in _PUBLIC:
        return getattr(import_module(f".{_PUBLIC[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
