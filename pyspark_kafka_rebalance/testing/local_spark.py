"""A Spark session on this machine that nobody else can reach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: For JVMs that do not live long: they start in half the time.
_START_SOON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def local_spark(
    name: str,
    cores: int = 2,
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
) -> SparkSession:
    """Start a session without a user interface.

    Parameters
    ----------
    name : str
        Of the application.
    cores : int
        Of this machine; with ``master`` of the cluster, one for each executor.
    conf : mapping, optional
        More of Spark's settings; they have the last word.
    master : str, optional
        Such as that of a ``LocalSparkCluster``; by default the tasks run in the driver.
    """
    from pyspark.sql import SparkSession

    builder = (
        SparkSession.builder.master(master or f"local[{cores}]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
    )
    if master is not None:
        builder = (
            builder.config("spark.cores.max", str(cores))
            .config("spark.executor.cores", "1")
            .config("spark.executor.memory", "512m")
            .config("spark.driver.extraJavaOptions", _START_SOON)
            .config("spark.executor.extraJavaOptions", _START_SOON)
        )
    for key, value in (conf or {}).items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
