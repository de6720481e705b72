"""A shop's database that goes to Kafka: its tables, a writer, producers, and the ledger of both.

It uses PostgreSQL, with the extra ``postgresql``. It is for the demo of producer groups and tests.
"""
