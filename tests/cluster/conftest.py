"""What tests/spark has for queries in processes of their own."""

from __future__ import annotations

from ..spark.conftest import queries

__all__ = ["queries"]
