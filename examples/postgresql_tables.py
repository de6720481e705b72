"""Three PostgreSQL tables to three topics, by any number of processes, every change once.

    python examples/postgresql_tables.py --bootstrap-servers broker:9092 --group-id shop \
        --postgres postgresql://reader@db/shop

Start it twice, on one machine or two, and the two share the tables; with a third instance each has
one table, and a fourth stands by. Kill any of them at any time: the others continue where it was.
Consumers read the topics with isolation_level=read_committed. The tables: postgresql_tables.sql.

A row is read once the transaction that changed it, and all that began to write before that one,
have ended. A reader that only used last_change_ts would miss a row that is committed late, and
never come back to it. What that costs: docs/producer-groups.md.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Sequence

import psycopg

from pyspark_kafka_rebalance import PartitionsLostError, ProducerGroup, TransactionAbortedError

#: The table of each source partition; its topic has the same name.
TABLES = ("customers", "orders", "payments")

#: A snapshot's xmin is the oldest transaction that was still writing: all below it have ended.
CHANGES = """
    SELECT last_change_xid::text || ':' || id, id::text, to_jsonb(t)::text FROM {} t
    WHERE (last_change_xid, id) > (%s::xid8, %s::bigint)
        AND last_change_xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY t.last_change_xid, t.id LIMIT 1000"""


def produce_changes(group: ProducerGroup, database: psycopg.Connection) -> int:
    """Send the changes since the restart points, and commit; return the number of rows sent."""
    sent = 0
    try:
        for number, restart_point in group.restart_points.items():
            table = TABLES[number]
            after = (restart_point or "0:0").split(":")
            with contextlib.suppress(PartitionsLostError):  # another instance took it over
                for position, key, row in database.execute(CHANGES.format(table), after):
                    group.send(table, row, key, source_partition=number, restart_point=position)
                    sent += 1
        group.commit_transaction()
    except TransactionAbortedError as error:
        print(f"read again from the restart points: {error}", flush=True)
    return sent


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Three tables of a PostgreSQL into topics.")
    parser.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT,…")
    parser.add_argument("--group-id", required=True, help="shared by all instances")
    parser.add_argument("--postgres", required=True, metavar="URL")
    parser.add_argument("--session-timeout-ms", type=int, default=30_000, metavar="MS")
    given = parser.parse_args(arguments)
    stop = threading.Event()  # looked at between two transactions, not within a database's command
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with (
        psycopg.connect(given.postgres, autocommit=True) as database,
        ProducerGroup(
            given.group_id,
            len(TABLES),
            bootstrap_servers=given.bootstrap_servers,
            session_timeout_ms=given.session_timeout_ms,
            key_serializer=str.encode,
            value_serializer=str.encode,
        ) as group,
    ):
        changed: object = group.subscribe()
        while not stop.is_set():
            if changed:
                owned = {TABLES[number]: at for number, at in group.restart_points.items()}
                print(f"tables and where they go on: {owned}", flush=True)
            sent = produce_changes(group, database)
            changed = group.poll(timeout_ms=0 if sent else 200)


if __name__ == "__main__":
    main()
