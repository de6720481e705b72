"""PostgresServer: an existing PostgreSQL server, of which only new schemas are used."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .errors import LocalPostgresError

if TYPE_CHECKING:
    from psycopg import Connection
    from typing_extensions import Self


class PostgresServer:
    """A user's own server; a context manager that leaves it as it is.

    Parameters
    ----------
    url : str
        The URL of a database, as libpq takes it: ``postgresql://user@host:5432/database``.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @contextmanager
    def new_schema(self) -> Iterator[str]:
        """Make an empty schema and yield a URL that connects to it; it is dropped at the end."""
        name = f"test_{uuid.uuid4().hex[:8]}"
        self._execute(f"CREATE SCHEMA {name}")
        try:
            separator = "&" if "?" in self.url else "?"
            yield f"{self.url}{separator}options=-csearch_path%3D{name}"
        finally:
            # Otherwise this would wait for a session that holds a lock on a table.
            self._execute(f"SET lock_timeout = '10s'; DROP SCHEMA {name} CASCADE")

    def _execute(self, statement: str) -> None:
        with self._connect() as connection:
            connection.execute(statement.encode())

    def _connect(self) -> Connection:
        try:
            import psycopg
        except ImportError as error:
            raise LocalPostgresError(f"this needs the extra 'postgresql': {error}") from error
        return psycopg.connect(self.url, autocommit=True, connect_timeout=10)
