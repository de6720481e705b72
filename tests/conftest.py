"""What every test may ask for: ``kafka``, ``kafka3``, ``topic_name``, ``group_id``."""

from __future__ import annotations

pytest_plugins = ["pyspark_kafka_rebalance.testing.pytest_fixtures"]
