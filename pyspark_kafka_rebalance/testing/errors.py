"""The errors of the brokers, clusters and databases in this package."""

from __future__ import annotations

from ..errors import KafkaRebalanceError


class LocalKafkaError(KafkaRebalanceError, RuntimeError):
    """Java or the jars are missing, or a broker did not do its task."""


class LocalSparkError(KafkaRebalanceError, RuntimeError):
    """A process of a local Spark cluster did not do its task."""


class LocalPostgresError(KafkaRebalanceError, RuntimeError):
    """PostgreSQL's programs are missing, or the server did not do its task."""
