"""A shop's database that goes to Kafka: its tables, a writer, producers, and the ledger of both.

Of PostgreSQL, by the extra ``postgresql``. Demo and tests use it.
"""
