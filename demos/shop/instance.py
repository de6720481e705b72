"""An instance of a producer group that reads the shop's tables; a process of its own."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import ChildProcess, orders, tell

from .tables import CHANGES, TABLES, parsed

#: Rows of a table in one transaction.
_ROWS_AT_ONCE = 1_000

#: How long to wait when a table has nothing new.
_PAUSE_MS = 50


class InstanceProcess(ChildProcess):
    """Starts an instance in a process of its own.

    Parameters
    ----------
    name : str
        For events and log.
    url : str
        The URL of the database with the shop's tables.
    bootstrap_servers, group_id : str
        The group of producers.
    topics : sequence of str
        Existing topics, by source partition.
    work : Path
        The folder of its log.
    options : mapping, optional
        More options of ``ProducerGroup``.
    on_event : callable, optional
        Called with its events, on a thread of its own: ``owned`` (``tables``), ``committed``
        (``rows`` by table), ``aborted`` (``reason``).
    """

    def __init__(
        self,
        name: str,
        *,
        url: str,
        bootstrap_servers: str,
        group_id: str,
        topics: Sequence[str],
        work: Path,
        options: Mapping[str, Any] | None = None,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        settings = {
            "url": url,
            "group_id": group_id,
            "topics": list(topics),
            "options": {"bootstrap_servers": bootstrap_servers, **(options or {})},
        }
        super().__init__(name, __name__, settings, work=work, on_event=on_event)


def main(settings: dict[str, Any]) -> None:
    """Produce until "stop" or the end of input; then leave the group."""
    import logging

    import psycopg

    from pyspark_kafka_rebalance.producer.group import ProducerGroup

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("kafka").setLevel(logging.WARNING)
    stop = threading.Event()
    topics = settings["topics"]
    with (
        psycopg.connect(settings["url"], autocommit=True) as database,
        ProducerGroup(
            settings["group_id"],
            len(topics),
            **settings["options"],
            key_serializer=str.encode,
            value_serializer=str.encode,
        ) as group,
    ):

        def obey() -> None:
            while next(given) != "stop":
                pass
            stop.set()
            with contextlib.suppress(Exception):
                group.wakeup()

        given = orders()
        threading.Thread(target=obey, daemon=True).start()
        group.subscribe()
        tell("owned", tables=sorted(group.restart_points))
        while not stop.is_set():
            sent = _produce(group, database, topics)
            # Without more rows, wait: all that arrive until then are one transaction, not twenty.
            if group.poll(timeout_ms=0 if sent >= _ROWS_AT_ONCE else _PAUSE_MS):
                tell("owned", tables=sorted(group.restart_points))
    tell("stopped")


def _produce(group: Any, database: Any, topics: Sequence[str]) -> int:
    """Commit all changes in one transaction; return the number of rows."""
    from pyspark_kafka_rebalance.errors import PartitionsLostError, TransactionAbortedError

    sent: dict[int, int] = {}
    try:
        for number, point in group.restart_points.items():
            found = database.execute(
                CHANGES.format(table=TABLES[number]).encode(), (*parsed(point), _ROWS_AT_ONCE)
            )
            with contextlib.suppress(PartitionsLostError):  # others have taken over this table
                for position, key, row in found:
                    group.send(
                        topics[number], row, key, source_partition=number, restart_point=position
                    )
                    sent[number] = sent.get(number, 0) + 1
        group.commit_transaction()
    except TransactionAbortedError as error:
        tell("aborted", reason=error.reason)
        return 0
    if sent:
        tell("committed", rows={str(number): rows for number, rows in sent.items()})
    return sum(sent.values())


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
