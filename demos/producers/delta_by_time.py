"""A reader by time of last change, run alongside to show the rows it misses: KIP-509's loophole."""

from __future__ import annotations

import datetime
import threading
from typing import TYPE_CHECKING, Any

from ..shop.tables import CHANGES_BY_TIME, TABLES

if TYPE_CHECKING:
    from typing_extensions import Self

_EVERY_S = 0.25


class DeltaByTime:
    """Polls ``WHERE last_change_ts > :newest`` on its own thread; a context manager.

    Parameters
    ----------
    url : str
        The URL of a database with the shop's tables.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        long_ago = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
        self._newest = dict.fromkeys(TABLES, long_ago)
        self._found: dict[str, dict[int, datetime.datetime]] = {table: {} for table in TABLES}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def missed(self) -> int:
        """The number of rows whose last version it has not found, even after one more poll."""
        import psycopg

        self._stop.set()
        self._thread.join()
        missed = 0
        with psycopg.connect(self._url) as connection:
            self._read(connection)
            for table, found in self._found.items():
                rows = connection.execute(f"SELECT id, last_change_ts FROM {table}".encode())
                missed += sum(found.get(row) != at for row, at in rows)
        return missed

    def _run(self) -> None:
        import psycopg

        with psycopg.connect(self._url, autocommit=True) as connection:
            while not self._stop.wait(_EVERY_S):
                self._read(connection)

    def _read(self, connection: Any) -> None:
        for table, found in self._found.items():
            query = CHANGES_BY_TIME.format(table=table).encode()
            for at, row in connection.execute(query, [self._newest[table]]):
                found[row] = at
                self._newest[table] = at
