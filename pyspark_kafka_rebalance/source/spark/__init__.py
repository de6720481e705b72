"""Spark's versions, processes and schema, and how it shows errors."""
