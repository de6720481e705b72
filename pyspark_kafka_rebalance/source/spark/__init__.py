"""Spark's versions, processes and schema, how it shows errors, and a reader that raises them."""
