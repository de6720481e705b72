"""What tests/spark has for a cluster, and for queries in processes of their own."""

from __future__ import annotations

from ..spark.conftest import cluster, queries, warm_sparks

__all__ = ["cluster", "queries", "warm_sparks"]
