-- The tables of postgresql_tables.py. What it needs of a table: a primary key, and the transaction
-- that changed a row last, with an index. The trigger writes it, whatever a statement says.
CREATE FUNCTION note_last_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.last_change_ts := clock_timestamp();
    NEW.last_change_xid := pg_current_xact_id();
    RETURN NEW;
END $$;

CREATE TABLE customers (
    id bigint PRIMARY KEY,
    name text NOT NULL,
    last_change_ts timestamptz NOT NULL,
    last_change_xid xid8 NOT NULL
);
CREATE TABLE orders (
    id bigint PRIMARY KEY,
    customer_id bigint NOT NULL,
    amount numeric NOT NULL,
    last_change_ts timestamptz NOT NULL,
    last_change_xid xid8 NOT NULL
);
CREATE TABLE payments (
    id bigint PRIMARY KEY,
    order_id bigint NOT NULL,
    amount numeric NOT NULL,
    last_change_ts timestamptz NOT NULL,
    last_change_xid xid8 NOT NULL
);

CREATE INDEX ON customers (last_change_xid, id);
CREATE INDEX ON orders (last_change_xid, id);
CREATE INDEX ON payments (last_change_xid, id);

CREATE TRIGGER note_last_change BEFORE INSERT OR UPDATE ON customers
    FOR EACH ROW EXECUTE FUNCTION note_last_change();
CREATE TRIGGER note_last_change BEFORE INSERT OR UPDATE ON orders
    FOR EACH ROW EXECUTE FUNCTION note_last_change();
CREATE TRIGGER note_last_change BEFORE INSERT OR UPDATE ON payments
    FOR EACH ROW EXECUTE FUNCTION note_last_change();
