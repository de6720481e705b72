"""The machine and versions that figures were measured with."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pyspark_kafka_rebalance.testing.kafka_versions import KAFKA_VERSION

_PACKAGES = (
    "pyspark",
    "pyarrow",
    "kafka-python",
    "confluent-kafka",
    "aiokafka",
    "crc32c",
    "opentelemetry-sdk",
)


def about_this_machine() -> dict[str, Any]:
    """Cores, processor, system, and the versions of installed packages."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "cores": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "broker": os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or f"Kafka {KAFKA_VERSION}",
        "versions": versions,
    }
