"""The shop of the demo: its writer, a reader up to the safe horizon, and the ledger's judgement."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from group_members import wait_until

from demos.shop.ledger import TableVerdict, Version, judge, version_of, versions_in_table
from demos.shop.tables import CHANGES, CHANGES_BY_TIME, SCHEMA, TABLES, parsed
from demos.shop.writer import WriterProcess


@pytest.fixture
def shop(postgres_url: str) -> str:
    with psycopg.connect(postgres_url) as connection:
        connection.execute(SCHEMA.encode())
    return postgres_url


@pytest.fixture
def reader(shop: str) -> Iterator[psycopg.Connection]:
    with closing(psycopg.connect(shop, autocommit=True)) as connection:
        yield connection


class Reader:
    """Reads a table up to the safe horizon, a few rows at a time."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.point: str | None = None
        self.found: list[Version] = []

    def read(self, connection: psycopg.Connection) -> int:
        query = CHANGES.format(table=self.table).encode()
        rows = connection.execute(query, (*parsed(self.point), 50)).fetchall()
        for position, _, row in rows:
            self.point = position
            self.found.append(version_of(row.encode()))
        return len(rows)


class ReaderByTime:
    """Reads a table by the time of the last change, as of a timestamp-based delta."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.newest = datetime.datetime.fromtimestamp(0, datetime.timezone.utc)
        self.found: set[int] = set()

    def read(self, connection: psycopg.Connection) -> None:
        query = CHANGES_BY_TIME.format(table=self.table).encode()
        for at, row in connection.execute(query, [self.newest]):
            self.newest = at
            self.found.add(row)


def test_every_row_up_to_the_horizon_once_where_a_delta_by_time_misses_some(
    shop: str, reader: psycopg.Connection, tmp_path: Path
) -> None:
    readers = [Reader(table) for table in TABLES]
    by_time = [ReaderByTime(table) for table in TABLES]
    told: list[dict[str, Any]] = []
    with WriterProcess(
        shop, rows_per_s=2_000, work=tmp_path, longest_s=0.5, on_written=told.append
    ) as writer:

        def is_busy_enough() -> bool:
            for each in (*readers, *by_time):
                each.read(reader)
            return bool(told) and told[-1]["rows"] > 6_000 and told[-1]["late"] > 20

        wait_until(is_busy_enough, "late commits")
        written = writer.stop()
    while sum(each.read(reader) for each in readers):
        pass
    for other in by_time:
        other.read(reader)
    assert written["late"] > 5
    for each in readers:
        rows = versions_in_table(shop, each.table)
        assert len(rows) > 500
        verdict = judge(each.table, rows, {0: each.found})
        assert verdict.is_right, verdict
    missed = sum(
        len({row for _, row in versions_in_table(shop, other.table)} - other.found)
        for other in by_time
    )
    assert missed > 0


def test_rows_wait_for_a_transaction_that_began_to_write_before(
    shop: str, reader: psycopg.Connection
) -> None:
    customers = Reader("customers")
    payments = Reader("payments")
    with psycopg.connect(shop) as early, psycopg.connect(shop) as late:
        early.execute("INSERT INTO customers (id, name) VALUES (1, 'early')")
        late.execute("INSERT INTO customers (id, name) VALUES (2, 'late')")
        late.execute("INSERT INTO payments (id, order_id, amount) VALUES (1, 1, 1)")
        late.commit()
        assert customers.read(reader) == 0
        assert payments.read(reader) == 0  # of any table
        early.commit()
    assert customers.read(reader) == 2
    assert payments.read(reader) == 1
    assert [row for _, row in customers.found] == [1, 2]


@pytest.mark.parametrize(
    ("records", "wrong"),
    [
        ([(1, 1), (2, 2), (3, 1)], {}),
        ([(1, 1), (3, 1)], {"lost": 1}),
        ([(1, 1), (2, 2), (2, 2), (3, 1)], {"twice": 1}),
        ([(2, 2), (1, 1), (3, 1)], {"out_of_order": 1}),
        ([(1, 1), (2, 2), (2, 9), (3, 1)], {"never_committed": 1}),
    ],
)
def test_the_ledger_s_judgement(records: list[Version], wrong: dict[str, int]) -> None:
    verdict = judge("customers", [(3, 1), (2, 2)], {0: records})
    names = ("lost", "twice", "out_of_order", "never_committed")
    assert {name: getattr(verdict, name) for name in names if getattr(verdict, name)} == wrong
    assert verdict.is_right == (not wrong)
    assert isinstance(verdict, TableVerdict)
