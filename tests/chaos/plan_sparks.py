"""Processes with a Spark, of this release or the one before, for one query after another."""

from __future__ import annotations

import threading
import zipfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.query_process import SparkProcess
from tests.spark import spark_home

from . import plan_query
from .random_plans import Release

#: Where children find the tests.
ROOT = Path(__file__).parents[2]

(WHEEL_BEFORE,) = (ROOT / "tests" / "chaos" / "releases").glob("*.whl")


class PlanSpark(SparkProcess):
    """One of them; ``tells`` is called with its events by whoever uses it."""

    def __init__(
        self, name: str, work: Path, environment: Mapping[str, str], release: Release
    ) -> None:
        self.release = release
        conf = spark_home.IDLE_SELDOM | {"spark.driver.memory": "600m"}
        super().__init__(
            name,
            plan_query.__name__,
            {"name": name, "conf": conf, "parallelism": 1, "master": None},
            work=work,
            on_event=lambda event: self.tells(event),
            environment=environment,
        )
        self.forget()

    def forget(self) -> None:
        """Nobody uses it."""
        self.tells: Callable[[dict[str, Any]], None] = lambda event: None


class Sparks:
    """Processes with a Spark, used by one query after another, over all plans.

    Parameters
    ----------
    work : Path
        Gets their logs, and the release before, unpacked.
    root : Path
        Where they, and all other processes of a plan, find the package and the tests.
    """

    def __init__(self, work: Path, root: Path = ROOT) -> None:
        self.root = root
        self._work = work
        self._before: Path | None = None
        self._idle: dict[Release, list[PlanSpark]] = defaultdict(list)
        self._all: list[PlanSpark] = []
        self._lock = threading.Lock()
        self._unpacking = threading.Lock()

    def path_of(self, release: Release) -> dict[str, str]:
        """The environment in which children find the tests, and this release of the package."""
        # Not what is in the folder in which this runs.
        safe = {"PYTHONSAFEPATH": "1"}
        if release == "this":
            return safe | {"PYTHONPATH": str(self.root)}
        with self._unpacking:
            if self._before is None:
                folder = self._work / "release-before"
                with zipfile.ZipFile(WHEEL_BEFORE) as wheel:
                    wheel.extractall(folder)
                self._before = folder
        return safe | {"PYTHONPATH": f"{self._before}:{self.root}"}

    def take(
        self, on_event: Callable[[dict[str, Any]], None], release: Release = "this"
    ) -> PlanSpark:
        """One that is ready; whoever has it hears what it tells."""
        with self._lock:
            idle = self._idle[release]
            spark = idle.pop() if idle else self._start(release)
        spark.tells = on_event
        spark.wait_for("ready")
        return spark

    def get_ready(self, count: int) -> None:
        """Have as many that are idle, or will be soon."""
        with self._lock:
            idle = self._idle["this"]
            while len(idle) < count:
                idle.insert(0, self._start("this"))

    def give_back(self, spark: PlanSpark) -> None:
        """Another query may use it; if it was killed, another gets ready."""
        spark.forget()
        with self._lock:
            idle = self._idle[spark.release]
            if spark.is_running:
                idle.append(spark)
            else:
                idle.insert(0, self._start(spark.release))  # those that are ready come first

    def _start(self, release: Release) -> PlanSpark:
        environment = {**spark_home.environment(), **self.path_of(release)}
        name = f"spark-{len(self._all)}"
        self._all.append(PlanSpark(name, self._work, environment, release))
        return self._all[-1].start()

    def close(self) -> None:
        for spark in self._all:
            spark.kill()
