"""The Spark session of tests/spark, for churns with queries."""

from __future__ import annotations

from tests.spark.conftest import spark

__all__ = ["spark"]
