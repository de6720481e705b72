"""The shop's three tables, and how their changes are read; pure.

A row has the transaction that changed it last (``last_change_xid``, written by a trigger). This and
the row's id are its position among its table's changes. Only rows of transactions below the
snapshot's ``xmin`` are read: all of those have ended, so no lower position is ever filled later.
"""

from __future__ import annotations

#: By source partition; the topics have the same names after a prefix.
TABLES = ("customers", "orders", "payments")

_COLUMNS = {
    "customers": "name text NOT NULL",
    "orders": "customer_id bigint NOT NULL, amount bigint NOT NULL",
    "payments": "order_id bigint NOT NULL, amount bigint NOT NULL",
}

_TRIGGER = """
CREATE FUNCTION note_last_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_change_ts := clock_timestamp();
    NEW.last_change_xid := pg_current_xact_id();
    RETURN NEW;
END $$;
"""

_TABLE = """
CREATE TABLE {table} (
    id bigint PRIMARY KEY,
    {columns},
    last_change_ts timestamptz NOT NULL,
    last_change_xid xid8 NOT NULL
);
CREATE INDEX ON {table} (last_change_xid, id);
CREATE TRIGGER note_last_change BEFORE INSERT OR UPDATE ON {table}
    FOR EACH ROW EXECUTE FUNCTION note_last_change();
"""

#: Makes the tables.
SCHEMA = _TRIGGER + "".join(
    _TABLE.format(table=table, columns=columns) for table, columns in _COLUMNS.items()
)

#: Selects position, id and row of the changes after a position, in order, up to a limit.
#: ``ORDER BY id`` would order by the selected text.
CHANGES = """
    SELECT last_change_xid::text || ':' || id, id::text, to_jsonb(t)::text FROM {table} t
    WHERE (last_change_xid, id) > (%s::xid8, %s::bigint)
        AND last_change_xid < pg_snapshot_xmin(pg_current_snapshot())
    ORDER BY t.last_change_xid, t.id LIMIT %s"""

#: The same without a horizon, as for a reader that only uses the time of the change.
CHANGES_BY_TIME = """
    SELECT last_change_ts, id FROM {table} WHERE last_change_ts > %s ORDER BY last_change_ts"""


def parsed(position: str | None) -> tuple[str, str]:
    """Return a restart point as parameters of ``CHANGES``; None is before the first change."""
    transaction, _, row = (position or "0:0").partition(":")
    return transaction, row
