"""Kafka's jars, fetched once and cached by version.

No Maven is needed: pyspark comes with Ivy, which resolves and checks artifacts of Maven Central.

Environment:

``PYSPARK_KAFKA_REBALANCE_CACHE``
    The cache folder. Default: ``pyspark-kafka-rebalance`` in ``XDG_CACHE_HOME`` or ``~/.cache``.
``PYSPARK_KAFKA_REBALANCE_IVY_SETTINGS``
    An ``ivysettings.xml``, for a machine that reaches Maven Central through a mirror (the file
    that Spark calls ``spark.jars.ivySettings``). ``https_proxy`` and ``http_proxy`` are honoured.

``python -m pyspark_kafka_rebalance.testing.kafka_jars`` fetches the broker's jars; ``--peer`` adds
those of Spark's built-in Kafka source, and ``--version 3.9.1`` those of that version.
"""

from __future__ import annotations

import argparse
import fcntl
import logging
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from .errors import LocalKafkaError
from .java import find_java
from .kafka_versions import KAFKA_VERSION, KafkaVersion

log = logging.getLogger(__name__)


class Coordinate(NamedTuple):
    """One artifact of Maven Central."""

    organisation: str
    name: str
    revision: str

    @property
    def file_name(self) -> str:
        """The name of its jar."""
        return f"{self.name}-{self.revision}.jar"


#: Kafka comes without a backend for its logger and would log nothing.
_LOGGER = Coordinate("org.slf4j", "slf4j-simple", "1.7.36")

#: A worker of Kafka Connect, and its source that reads a file: a peer in benchmarks.
_CONNECT = (
    Coordinate("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
    Coordinate("org.apache.kafka", "connect-file", KAFKA_VERSION),
)

#: Kafka's command line tools and its VerifiableConsumer; the broker's jars are enough for them.
KAFKA_TOOLS = Coordinate("org.apache.kafka", "kafka-tools", KAFKA_VERSION)

#: Spark's own Kafka source, the peer in benchmarks: a set that runs on pyspark 4.2 and 4.3.
SPARK_KAFKA_SOURCE = (
    Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", "4.2.0"),
    Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Coordinate("org.apache.kafka", "kafka-clients", "3.9.1"),
    Coordinate("org.apache.commons", "commons-pool2", "2.12.1"),
)


def cache_folder() -> Path:
    """Return the folder where everything that is fetched stays."""
    if chosen := os.environ.get("PYSPARK_KAFKA_REBALANCE_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "pyspark-kafka-rebalance"


def broker_jars(version: str = KAFKA_VERSION) -> Path:
    """Return the folder with the jars of a Kafka broker; fetches them the first time.

    Raises
    ------
    LocalKafkaError
        There is no Java or no pyspark, or Maven Central cannot be reached or has no such version.
    ValueError
        As for ``KafkaVersion``.
    """
    kafka = KafkaVersion(version)
    coordinates = [Coordinate("org.apache.kafka", f"kafka_{kafka.scala}", version), _LOGGER]
    if kafka.zookeeper is not None:  # of several requested versions, the newest is taken
        coordinates.append(Coordinate("org.apache.zookeeper", "zookeeper", kafka.zookeeper))
    return _with_dependencies(f"kafka-{version}", coordinates)


def connect_jars() -> Path:
    """The folder with the jars of a worker of Kafka Connect, of the broker's version.

    Only the benchmark that compares with Connect fetches them. Raises as :func:`broker_jars`.
    """
    return _with_dependencies(f"connect-{KAFKA_VERSION}", [*_CONNECT, _LOGGER])


def single_jars(coordinates: Sequence[Coordinate]) -> list[Path]:
    """Return only these jars, without their dependencies, in the order given.

    Raises as :func:`broker_jars`.
    """
    jars = cache_folder() / "jars"
    wanted = [jars / coordinate.file_name for coordinate in coordinates]
    with _one_fetch_at_a_time(jars):
        missing = [c for c in coordinates if not (jars / c.file_name).exists()]
        if missing:
            fetched = jars / ".fetched"
            _resolve(missing, fetched, dependencies=False)
            for jar in fetched.iterdir():
                jar.replace(jars / jar.name)
            fetched.rmdir()
    return wanted


def _with_dependencies(name: str, coordinates: Sequence[Coordinate]) -> Path:
    folder = cache_folder() / name
    with _one_fetch_at_a_time(folder):
        if not folder.is_dir():
            _resolve(coordinates, folder, dependencies=True)
    return folder


@contextmanager
def _one_fetch_at_a_time(folder: Path) -> Iterator[None]:
    """Have two processes that need the same jars fetch them once; the lock ends with its holder."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _resolve(coordinates: Sequence[Coordinate], folder: Path, *, dependencies: bool) -> None:
    """Have Ivy put the jars into ``folder``, which appears complete or not at all."""
    # Ivy's command line takes no list of dependencies; a file does.
    mapping = "default-&gt;default,runtime" if dependencies else "default-&gt;default,master"
    module = "".join(
        f'<dependency org="{c.organisation}" name="{c.name}" rev="{c.revision}" '
        f'conf="{mapping}" transitive="{str(dependencies).lower()}"/>'
        for c in coordinates
    )
    names = ", ".join(f"{c.name} {c.revision}" for c in coordinates)
    log.warning("fetching %s from Maven Central; once, this takes about a minute", names)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f"{folder.name}.partial-", dir=folder.parent))
    try:
        (work / "ivy.xml").write_text(
            '<ivy-module version="2.0"><info organisation="local" module="jars"/>'
            '<configurations><conf name="default"/></configurations>'
            f"<dependencies>{module}</dependencies></ivy-module>"
        )
        _run_ivy(work)
        missing = [c.file_name for c in coordinates if not (work / "jars" / c.file_name).exists()]
        if missing:
            raise LocalKafkaError(f"Ivy did not deliver {', '.join(missing)}")
        shutil.rmtree(folder, ignore_errors=True)
        (work / "jars").rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _run_ivy(work: Path) -> None:
    command: list[str | Path] = [find_java().executable, *_proxy_properties()]
    command += ["-cp", str(_ivy_jar()), "org.apache.ivy.Main", "-ivy", work / "ivy.xml"]
    if settings := os.environ.get("PYSPARK_KAFKA_REBALANCE_IVY_SETTINGS"):
        command += ["-settings", settings]
    # Some jars of Kafka are published as OSGi bundles and would be left out without "bundle".
    command += ["-cache", work / "ivy", "-types", "jar", "bundle"]
    command += ["-retrieve", f"{work}/jars/[artifact]-[revision].[ext]"]
    ivy = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if ivy.returncode != 0:
        end = "\n".join(ivy.stdout.splitlines()[-25:])
        raise LocalKafkaError(f"Ivy could not fetch the jars; the end of its output:\n{end}")


def _ivy_jar() -> Path:
    pyspark = find_spec("pyspark")  # does not import it
    places = [Path(place) for place in (pyspark and pyspark.submodule_search_locations) or ()]
    if spark_home := os.environ.get("SPARK_HOME"):
        places.append(Path(spark_home))
    for place in places:
        for jar in sorted(place.glob("jars/ivy-*.jar")):
            return jar
    raise LocalKafkaError(
        "fetching Kafka's jars needs the Ivy that comes with pyspark; install it: pip install "
        "'pyspark>=4.0,<4.4'"
    )


def _proxy_properties() -> list[str]:
    """Return Java's proxy properties: Java ignores the variables that other programs use."""
    properties = []
    for scheme in ("http", "https"):
        url = os.environ.get(f"{scheme}_proxy") or os.environ.get(f"{scheme.upper()}_PROXY")
        proxy = urlsplit(url or "")
        if proxy.hostname:
            properties.append(f"-D{scheme}.proxyHost={proxy.hostname}")
            properties.append(f"-D{scheme}.proxyPort={proxy.port or 80}")
    return properties


def _main() -> None:
    parser = argparse.ArgumentParser(description="Fetch and cache the jars of a Kafka broker.")
    parser.add_argument(
        "--peer", action="store_true", help="also those of Spark's built-in Kafka source"
    )
    parser.add_argument(
        "--version",
        action="append",
        default=[],
        metavar="X.Y.Z",
        help="also those of another version of Kafka; may be repeated",
    )
    arguments = parser.parse_args()
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        for version in (KAFKA_VERSION, *arguments.version):
            print(f"Kafka {version}: {broker_jars(version)}")
        if arguments.peer:
            for jar in single_jars(SPARK_KAFKA_SOURCE):
                print(f"peer: {jar}")
    except (LocalKafkaError, ValueError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    _main()
