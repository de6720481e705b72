"""Apache Kafka's own consumer: the process that runs ``Member.java``."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.child_process import ChildProcess
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import broker_jars

_SOURCE = Path(__file__).with_name("Member.java")

#: Small, as members need little and three of them start next to a broker.
_JAVA_OPTIONS = (
    "-Xmx128m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


class JavaMember(ChildProcess):
    """One member, with the same settings as Python members. Needs a JDK, not only a JRE."""

    def _command(self, module: str, settings: Mapping[str, Any]) -> list[str]:
        flat = {
            **{f"config.{name}": value for name, value in settings["config"].items()},
            "config.bootstrap.servers": settings["bootstrap_servers"],
            "config.group.id": settings["group_id"],
            "name": settings["name"],
            "topic": settings["topic"],
            "ledger": settings["ledger"],
            "drain": str(settings["drain"]).lower(),
            "longest_s": settings["longest_s"],
        }
        command = [java_with_compiler(), *_JAVA_OPTIONS, "-cp", f"{broker_jars()}/*"]
        return [*command, str(_SOURCE), *(f"{name}={value}" for name, value in flat.items())]


@lru_cache(maxsize=1)
def java_with_compiler() -> str:
    """The Java to run a source file with; RuntimeError if it cannot."""
    java = str(find_java().executable)
    modules = subprocess.run([java, "--list-modules"], capture_output=True, text=True, check=True)
    if "jdk.compiler@" not in modules.stdout:
        raise RuntimeError(f"{java} cannot run a source file: the Java client needs a JDK")
    return java
