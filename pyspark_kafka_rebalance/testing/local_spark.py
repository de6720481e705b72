"""A Spark session on this machine that other users cannot reach."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: For short-lived JVMs: they start in half the time.
_START_SOON = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def local_spark(
    name: str,
    cores: int = 2,
    conf: Mapping[str, str] | None = None,
    master: str | None = None,
    log: Path | None = None,
) -> SparkSession:
    """Start a session without a user interface.

    Parameters
    ----------
    cores : int
        Cores of this machine; with ``master``, cores of the cluster, one for each executor.
    conf : mapping, optional
        More Spark settings; they take precedence.
    master : str, optional
        Such as the master of a ``LocalSparkCluster``; by default the tasks run in the driver.
    log : Path, optional
        A file for the standard error of Spark's JVM and its Python processes; by default they share
        the caller's standard error, which a notebook shows.
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
    with _standard_error(log):
        return builder.getOrCreate()


@contextmanager
def _standard_error(log: Path | None) -> Iterator[None]:
    """Have processes started in here write standard error to ``log``, as long as they live."""
    if log is None:
        yield
        return
    shown = os.dup(2)
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(shown, 2)
        os.close(shown)
