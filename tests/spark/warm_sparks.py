"""Sparks that run one query after another, each in a process of its own.

To start a Spark takes 10 s of a core, and a minute beside two others with queries. Tests of several
queries get Sparks that are warm; one that a test kills is replaced before it is needed again.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark_kafka_rebalance.testing.child_process import START_TIMEOUT_S, orders, tell
from pyspark_kafka_rebalance.testing.query_process import (
    SparkProcess,
    query_settings,
    run_query,
    start_spark,
    warm_up,
)

from . import spark_home

if TYPE_CHECKING:
    from typing_extensions import Self

#: So many queries run at the same time in a test.
MOST = 3

#: A query at the end of its test, which may be in the midst of a slow batch.
STOP_TIMEOUT_S = 30.0


class WarmSparks:
    """The Sparks of one process of tests; with fewer than ``MOST`` in use one more gets ready.

    Parameters
    ----------
    work : Path
        Folder of their logs.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._made = 0
        self._idle: list[SparkProcess] = []
        self._in_use: list[SparkProcess] = []

    def take(self) -> SparkProcess:
        """One that is ready or will be: it tells."""
        self._have_one_idle()
        spark = self._idle.pop(0)
        self._in_use.append(spark)
        self._have_one_idle()
        return spark

    def give_back(self, spark: SparkProcess) -> None:
        """Have one back, which another query may use unless it was killed."""
        self._in_use.remove(spark)
        if spark.is_running:
            self._idle.insert(0, spark)
        self._have_one_idle()

    def close(self) -> None:
        """Kill them all."""
        for spark in (*self._idle, *self._in_use):
            spark.kill()

    def _have_one_idle(self) -> None:
        if not self._idle and len(self._in_use) < MOST:
            self._made += 1
            name = f"spark-{self._made}"
            conf = spark_home.IDLE_SELDOM
            settings = {"name": name, "conf": conf, "parallelism": 2, "master": None}
            self._idle.append(SparkProcess(name, __name__, settings, work=self._work).start())


class WarmQuery:
    """A query as :class:`QueryProcess` has it, in a process that was there before and stays.

    Parameters
    ----------
    sparks : WarmSparks
        Where the process comes from.
    hold : bool
        Take the process only, and start the query on :meth:`release`, after it told "ready".
    name, options, settings
        As ``query_settings`` wants them.
    """

    def __init__(
        self,
        sparks: WarmSparks,
        name: str,
        options: Mapping[str, str],
        *,
        hold: bool = False,
        **settings: Any,
    ) -> None:
        self._sparks = sparks
        self._settings = query_settings(name, options, **settings)
        self._hold = hold
        self._spark: SparkProcess | None = None

    def start(self) -> Self:
        """Start the query; again after it ended, with the same settings."""
        self._spark = self._sparks.take()
        if not self._hold:
            self._spark.wait_for("ready")
            self.release()
        return self

    def release(self) -> None:
        """Start the query that ``hold`` held back."""
        self._process.order(json.dumps(self._settings))

    def wait_for(
        self, event: str, timeout_s: float = START_TIMEOUT_S, **match: Any
    ) -> dict[str, Any]:
        """The next event of this name whose fields match."""
        return self._process.wait_for(event, timeout_s, **match)

    def wait_for_batch(
        self, with_rows: int = 1, timeout_s: float = START_TIMEOUT_S
    ) -> dict[str, Any]:
        """The next completed batch with at least so many rows."""
        return self._process.wait_for_batch(with_rows, timeout_s)

    def planner(self) -> int:
        """Process id of the planner."""
        return self._process.planner()

    def stop(self, timeout_s: float = 60.0) -> dict[str, Any]:
        """Stop the query gracefully, and give the process back; the event that it stopped with."""
        self._process.order("stop")
        stopped = self._process.wait_for("stopped", timeout_s)
        if not stopped["forgotten"]:  # another of its name could not start there
            self._process.kill()
        self._give_back()
        return stopped

    def kill(self) -> None:
        """kill -9 of JVM, planner, workers and the process itself."""
        if self._spark is not None:
            self._spark.kill()
            self._give_back()

    def end(self) -> None:
        """Have the process free for another query, or gone; fine if the query has ended."""
        if self._spark is None:
            return
        try:
            self.stop(STOP_TIMEOUT_S)
        except (TimeoutError, RuntimeError, BrokenPipeError):  # whatever a failed test left
            self.kill()

    @property
    def _process(self) -> SparkProcess:
        assert self._spark is not None, "the query is not started"
        return self._spark

    def _give_back(self) -> None:
        self._sparks.give_back(self._process)
        self._spark = None


def main(settings: dict[str, Any]) -> None:
    """Run the queries that are ordered, one at a time; end with the first that ends by itself."""
    spark = start_spark(settings)
    warm_up(spark)
    given = orders()
    tell("ready")
    while (order := next(given)) != "stop":
        if not run_query(spark, json.loads(order), given):
            break
        tell("ready")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
