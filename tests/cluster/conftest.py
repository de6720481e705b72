"""What tests/spark has for queries in processes of their own."""

from __future__ import annotations

from ..spark.conftest import queries, warm_sparks

__all__ = ["queries", "warm_sparks"]
