"""A home for the Sparks of tests, from which they and their Python processes start sooner.

``python -m tests.spark.spark_home`` makes the archive of the classes that a Spark loads, once for
each PySpark and Java. It takes half a minute, and saves as much with five Sparks: a run of a few
tests does without, and uses it if it is there.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame

from pyspark_kafka_rebalance.testing import LocalKafka
from pyspark_kafka_rebalance.testing.java import find_java
from pyspark_kafka_rebalance.testing.kafka_jars import cache_folder
from pyspark_kafka_rebalance.testing.local_spark import local_spark
from pyspark_kafka_rebalance.testing.processes.class_archive import (
    class_archive,
    options_to_make,
    options_with_archive,
)

#: A session of the tests is a Spark Connect server as well, on a free port.
CONNECT_SERVER = {
    "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.connect.grpc.binding.port": "0",
}

#: A trigger without data comes again after 10 ms by default: a few queries that wait for something
#: would take all the time there is.
IDLE_SELDOM = {"spark.sql.streaming.pollingDelay": "50ms"}

_TIMEOUT_S = 300.0


def spark_home() -> Path:
    """A ``SPARK_HOME`` that is PySpark's without the folder ``python``.

    In python/lib Spark has PySpark as a zip, which each Python process would compile for 0.35 s;
    without it they find the installed one. The folder is always the same: Java takes an archive
    only with the class path that it was made with.
    """
    installed = Path(pyspark.__file__).parent
    key = hashlib.sha256(f"{installed} {pyspark.__version__}".encode()).hexdigest()[:12]
    home = cache_folder() / f"spark-home-{key}"
    if not home.exists():
        home.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f"{home.name}.partial-", dir=home.parent))
        for part in installed.iterdir():
            if part.name != "python":
                (partial / part.name).symlink_to(part)
        try:
            partial.rename(home)
        except OSError:  # another process was sooner
            shutil.rmtree(partial)
    return home


def environment(make: Callable[[Path], None] | None = None) -> dict[str, str]:
    """Variables for processes that start a Spark, with the archive if it is there or made."""
    home = spark_home()
    jars = sorted((home / "jars").iterdir())
    archive = class_archive(f"spark-{pyspark.__version__}", find_java(), jars, make)
    options = shlex.join(options_with_archive(archive)) if archive else ""
    return {"SPARK_HOME": str(home), "SPARK_SUBMIT_OPTS": options}


def _make(archive: Path) -> None:
    """Let a Spark in a process of its own do what most tests do."""
    options = {
        "SPARK_HOME": str(spark_home()),
        "SPARK_SUBMIT_OPTS": shlex.join(options_to_make(archive)),
    }
    # The JVM outlives the process and writes the archive: its end is that of their common output.
    made = subprocess.run(
        [sys.executable, "-m", __spec__.name, "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_TIMEOUT_S,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable, **options},
    )
    if made.returncode != 0:
        raise RuntimeError(made.stdout[-2_000:])


def _run() -> None:
    """A session with a stream and a batch of the source."""

    def keep(batch: DataFrame, batch_id: int) -> None:
        batch.toArrow()

    with LocalKafka() as kafka, tempfile.TemporaryDirectory() as checkpoint:
        kafka.create_topic("loaded", partitions=2)
        kafka.produce("loaded", [b"a", b"b"])
        options = {"kafka.bootstrap.servers": kafka.bootstrap_servers, "subscribe": "loaded"}
        options |= {"startingOffsets": "earliest"}
        group = {"kafka.group.id": "loaded", "checkpointLocation": checkpoint}
        spark = local_spark("archive", conf=CONNECT_SERVER)
        records = spark.readStream.format("kafka_deferred").options(**options, **group).load()
        writer = records.writeStream.foreachBatch(keep).option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination(60)
        spark.read.format("kafka_deferred").options(**options).load().count()
        spark.stop()


if __name__ == "__main__":
    if sys.argv[1:] == ["run"]:
        _run()
    else:
        logging.basicConfig(format="%(message)s", level=logging.INFO)
        logging.getLogger("kafka").setLevel(logging.WARNING)
        environment(_make)
