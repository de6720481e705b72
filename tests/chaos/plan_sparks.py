"""Processes with a Spark, for the queries of one plan after another."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pyspark_kafka_rebalance.testing.query_process import SparkProcess
from tests.spark import spark_home

from . import plan_query

#: Where children find the tests.
ROOT = Path(__file__).parents[2]


class PlanSpark(SparkProcess):
    """One of them; ``tells`` is called with its events by whoever uses it."""

    def __init__(self, name: str, work: Path, environment: Mapping[str, str]) -> None:
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
        Folder of their logs.
    root : Path
        Where they, and all other processes of a plan, find the package and the tests.
    """

    def __init__(self, work: Path, root: Path = ROOT) -> None:
        self.root = root
        self._work = work
        self._idle: list[PlanSpark] = []
        self._all: list[PlanSpark] = []
        self._lock = threading.Lock()
        self._environment = {**spark_home.environment(), "PYTHONPATH": str(root)}

    def take(self, on_event: Callable[[dict[str, Any]], None]) -> PlanSpark:
        """One that is ready; whoever has it hears what it tells."""
        with self._lock:
            spark = self._idle.pop() if self._idle else self._start()
        spark.tells = on_event
        spark.wait_for("ready")
        return spark

    def get_ready(self, count: int) -> None:
        """Have as many that are idle, or will be soon."""
        with self._lock:
            while len(self._idle) < count:
                self._idle.insert(0, self._start())

    def give_back(self, spark: PlanSpark) -> None:
        """Another query may use it; if it was killed, another gets ready."""
        spark.forget()
        with self._lock:
            self._idle.append(spark if spark.is_running else self._start())

    def _start(self) -> PlanSpark:
        self._all.append(PlanSpark(f"spark-{len(self._all)}", self._work, self._environment))
        return self._all[-1].start()

    def close(self) -> None:
        for spark in self._all:
            spark.kill()
