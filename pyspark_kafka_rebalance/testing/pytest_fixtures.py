"""Fixtures for pytest: a shared broker, three of them, a PostgreSQL, and fresh names.

In a ``conftest.py``::

    pytest_plugins = ["pyspark_kafka_rebalance.testing.pytest_fixtures"]

This is not a pytest entry point: an environment with this package may have other tests to run.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from .environment import postgres_from_environment
from .local_kafka import LocalKafka
from .postgres_server import PostgresServer


@pytest.fixture(scope="session")
def kafka() -> Iterator[LocalKafka]:
    """One broker for the whole run. A test that stops or suspends it brings it back."""
    with LocalKafka() as local:
        yield local


@pytest.fixture(scope="module")
def kafka3() -> Iterator[LocalKafka]:
    """Three brokers for the tests of one file."""
    with LocalKafka(3) as local:
        yield local


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL for the whole run: the server of ``POSTGRES_URL``, else a local one."""
    with postgres_from_environment() as server:
        yield server


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database that connects to an empty schema, which is dropped after the test."""
    with postgres.new_schema() as url:
        yield url


@pytest.fixture
def topic_name() -> str:
    """A unique topic name; the topic is not created yet."""
    return f"topic-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def group_id() -> str:
    """A unique consumer group id."""
    return f"group-{uuid.uuid4().hex[:8]}"
