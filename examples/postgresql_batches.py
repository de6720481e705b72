"""As postgresql_tables.py, with whole results as Arrow data instead of row by row.

    python examples/postgresql_batches.py --bootstrap-servers broker:9092 --group-id shop \
        --postgres postgresql://reader@db/shop

ADBC reads up to 100,000 changes of a table by binary COPY into Arrow data, and send_batch sends
them: no row is a Python object. Worth it for a first load, or where many rows change at once.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Sequence

import pyarrow as pa
from adbc_driver_postgresql import dbapi

from pyspark_kafka_rebalance import PartitionsLostError, ProducerGroup, TransactionAbortedError

#: The table of each source partition; its topic has the same name.
TABLES = ("customers", "orders", "payments")

#: See postgresql_tables.py. One with parameters would not be read by COPY.
CHANGES = """
    SELECT last_change_xid::text || ':' || id AS position, id::text AS key,
        to_jsonb(t)::text AS value FROM {table} t
    WHERE (last_change_xid, id) > ('{xid}'::xid8, {number})
        AND last_change_xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY t.last_change_xid, t.id LIMIT 100000"""


def changes_after(database: dbapi.Connection, table: str, point: str | None) -> pa.Table:
    """The changes after a restart point, in order, each with its position."""
    xid, number = map(int, (point or "0:0").split(":"))
    with database.cursor() as cursor:
        cursor.execute(CHANGES.format(table=table, xid=xid, number=number))
        return cursor.fetch_arrow_table()


def produce_changes(group: ProducerGroup, database: dbapi.Connection) -> int:
    """Send the changes since the restart points, and commit; return the number of rows sent."""
    sent = 0
    try:
        for number, restart_point in group.restart_points.items():
            rows = changes_after(database, TABLES[number], restart_point)
            if not rows.num_rows:
                continue
            with contextlib.suppress(PartitionsLostError):  # another instance took it over
                group.send_batch(
                    TABLES[number],
                    rows.select(["key", "value"]),
                    source_partition=number,
                    restart_point=rows["position"][-1].as_py(),
                )
                sent += rows.num_rows
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
    stop = threading.Event()  # looked at between two transactions
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with (
        contextlib.suppress(KeyboardInterrupt),  # from ADBC: Ctrl-C ends a query under way
        dbapi.connect(given.postgres, autocommit=True) as database,
        ProducerGroup(
            given.group_id,
            len(TABLES),
            bootstrap_servers=given.bootstrap_servers,
            session_timeout_ms=given.session_timeout_ms,
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
