"""A busy shop: inserts, updates, rollbacks, and commits out of order; a process of its own.

Several sessions have a transaction each, for up to a second and more. So a transaction that started
earlier often commits later.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell

from .tables import TABLES

if TYPE_CHECKING:
    from psycopg import Connection

_TURN_S = 0.02
_TELL_EVERY_S = 0.5

#: The part of all transactions that is rolled back.
_ROLLED_BACK = 0.05

_INSERT = {
    "customers": "INSERT INTO customers (id, name) SELECT n, 'customer ' || n",
    "orders": "INSERT INTO orders (id, customer_id, amount) SELECT n, 1 + n % 100, n % 1000",
    "payments": "INSERT INTO payments (id, order_id, amount) SELECT n, n, n % 1000",
}
_UPDATE = {
    "customers": "UPDATE customers SET name = name || '.'",
    "orders": "UPDATE orders SET amount = amount + 1",
    "payments": "UPDATE payments SET amount = amount - 1",
}


class WriterProcess(ChildProcess):
    """Starts the writer in a process of its own.

    Parameters
    ----------
    url : str
        The URL of a database with the shop's tables.
    rows_per_s : int
        Rows inserted and updated per second, in total.
    work : Path
        The folder of its log.
    sessions : int
        How many transactions are open at a time.
    longest_s : float
        How long a transaction takes at most.
    seed : int
        The seed of its random choices.
    on_written : callable, optional
        Called with the events ``written`` and ``stopped``, on a thread of its own: ``rows``
        committed; ``late`` transactions, which committed after one that started after them.
    """

    def __init__(
        self,
        url: str,
        *,
        rows_per_s: int,
        work: Path,
        sessions: int = 4,
        longest_s: float = 1.5,
        seed: int = 0,
        on_written: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        def note(event: dict[str, Any]) -> None:
            if on_written is not None and event["event"] in ("written", "stopped"):
                on_written(event)

        settings = {
            "url": url,
            "rows_per_s": rows_per_s,
            "sessions": sessions,
            "longest_s": longest_s,
            "seed": seed,
        }
        super().__init__("writer", __name__, settings, work=work, on_event=note)


class _Session:
    """One session, with one transaction after the other.

    Its rows are those for which id - 1, modulo the number of sessions, is its number. So no session
    waits for another's lock.
    """

    def __init__(self, connection: Connection, number: int, sessions: int) -> None:
        self._connection = connection
        self._number = number
        self._sessions = sessions
        self._inserted = dict.fromkeys(TABLES, 0)
        self._inserting = dict.fromkeys(TABLES, 0)
        self._rows = 0
        self.began_at: float | None = None
        self.ends_at = 0.0

    def work(self, rows: int, choice: random.Random) -> None:
        """Write this many rows of some table, in the open transaction or a new one."""
        table = choice.choice(TABLES)
        inserted = self._inserted[table]
        if inserted > 100 and choice.random() < 0.3:
            numbers = {choice.randrange(inserted) for _ in range(rows)}
            ids = [n * self._sessions + self._number + 1 for n in numbers]
            done = self._connection.execute(f"{_UPDATE[table]} WHERE id = ANY(%s)".encode(), [ids])
        else:
            first = (inserted + self._inserting[table]) * self._sessions + self._number + 1
            last = first + (rows - 1) * self._sessions
            series = f"generate_series({first}, {last}, {self._sessions})"
            done = self._connection.execute(f"{_INSERT[table]} FROM {series} n".encode())
            self._inserting[table] += rows
        self._rows += done.rowcount

    def end(self, choice: random.Random) -> int:
        """Commit, or sometimes roll back; return how many rows were committed."""
        rows, self._rows, self.began_at = self._rows, 0, None
        for table, count in self._inserting.items():
            self._inserted[table] += count  # even if they are rolled back: no id is reused
        self._inserting = dict.fromkeys(TABLES, 0)
        if choice.random() < _ROLLED_BACK:
            self._connection.rollback()
            return 0
        self._connection.commit()
        return rows


def main(settings: dict[str, Any]) -> None:
    """Write until "stop" or the end of input; then end the open transactions."""
    import psycopg

    stop = threading.Event()

    def obey() -> None:
        while next(given) != "stop":
            pass
        stop.set()

    given = orders()
    threading.Thread(target=obey, daemon=True).start()
    choice = random.Random(settings["seed"])
    count = settings["sessions"]
    connections = [psycopg.connect(settings["url"]) for _ in range(count)]
    sessions = [_Session(each, n, count) for n, each in enumerate(connections)]
    written = late = owed = 0
    youngest_committed = start = told_at = time.monotonic()
    tell("written", rows=0, late=0)
    while not stop.wait(_TURN_S):
        now = time.monotonic()
        due = int((now - start) * settings["rows_per_s"]) - owed
        owed += due
        for session in sessions:
            if session.began_at is None:
                session.began_at = now
                # Most are short, as in practice.
                session.ends_at = now + settings["longest_s"] * choice.random() ** 3
        if due:
            choice.choice(sessions).work(due, choice)
        for session in sessions:
            if session.began_at is not None and now >= session.ends_at:
                late += session.began_at < youngest_committed
                youngest_committed = max(youngest_committed, session.began_at)
                written += session.end(choice)
        if now - told_at >= _TELL_EVERY_S:
            told_at = now
            tell("written", rows=written, late=late)
    for session in sessions:
        if session.began_at is not None:
            written += session.end(choice)
    for connection in connections:
        connection.close()
    tell("stopped", rows=written, late=late)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
