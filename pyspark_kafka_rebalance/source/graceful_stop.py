"""stop_gracefully: stop a query between two batches, so that nothing is repeated.

``query.stop()`` interrupts the batch under way. Whoever owns the partitions next reads it again,
and what the sink has done of it is done twice. Here the source is told to plan nothing more, the
batch under way ends as any other, its positions are committed, the members leave the group, and
then there is nothing left to interrupt.

The planner is on the driver's host, which need not be where this code runs (Spark Connect). What
Spark runs there for anybody is the planning of a Python data source: ``_PlannerMessage`` is one
that delivers a message when its schema is asked for, and has no rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from ..errors import OffsetFormatError
from .membership import STOP_TIMEOUT_S
from .offsets import StreamOffset
from .progress import is_ours, plain_offset
from .stop_request import ask_to_stop, is_planner_here

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: ``status`` is a call into the JVM, or over the network; a hand-over does not wait for it.
_POLL_S = 0.02

#: A message starts a Python process on the driver.
_MESSAGE_POLL_S = 0.25

#: Beyond ``timeout_s``, how long the source plans nothing for one who asked: messages to come, and
#: Spark's stop(). If whoever asked is gone by then, the query goes on.
_STOPPED_AFTER_S = 30.0

#: The sessions that know ``_PlannerMessage``.
_told_of_messages: WeakSet[SparkSession] = WeakSet()


class _PlannerMessage(DataSource):
    """Run on the driver's host by asking for the schema; its one column says how it went."""

    @classmethod
    def name(cls) -> str:
        return "kafka_deferred_planner_message"

    def schema(self) -> str:
        run = self.options["run"]
        if "proven" in self.options:
            stop_within_s = float(self.options["stop_within_s"])
            reached = ask_to_stop(run, json.loads(self.options["proven"]), stop_within_s)
        else:
            reached = is_planner_here(run)
        return "reached BOOLEAN" if reached else "absent BOOLEAN"


def stop_gracefully(
    query: StreamingQuery, timeout_s: float = 60.0, spark: SparkSession | None = None
) -> bool:
    """Stop a query when the batch under way is committed, so that nothing of it is repeated.

    When it returns, the query has stopped, and its members have left the group with everything
    committed that Spark has committed (static members leave when their session ends, as always).
    Other sources of the query keep what they have read.
    If it never returns, because its process ends, the query reads on half a minute after
    ``timeout_s``.

    Parameters
    ----------
    query : StreamingQuery
        A query with at least one source ``kafka_deferred``, of classic Spark or Spark Connect.
    timeout_s : float
        How long the batch under way may take. Then it is interrupted, as by ``query.stop()``.
    spark : SparkSession, optional
        The query's session; by default the active one.

    Returns
    -------
    bool
        Whether nothing is left to be repeated. False: a batch was interrupted, which a restart
        replays and another owner reads again unless it was just being committed, or the query
        had failed.

    Raises
    ------
    ValueError
        The query reads no ``kafka_deferred``; it goes on.
    """
    deadline = time.monotonic() + timeout_s
    planners = _Planners(spark or SparkSession.active(), timeout_s + _STOPPED_AFTER_S)
    asked = _ask(query, planners, deadline)
    if asked:
        log.info("query %s: the source plans nothing more", query.id)
    drained = asked and _wait_until_idle(query, deadline)
    if drained:
        log.info("query %s: the last batch is committed", query.id)
    last = _ends(query)
    if drained and query.isActive:
        # Without an idle trigger, the source does not know yet that its last batch is committed.
        for run, end in last.items():
            planners.tell(run, end)
    if not drained and query.isActive:
        log.warning("query %s: the batch under way took longer than %.1f s", query.id, timeout_s)
    complete = drained or not query.isActive
    query.stop()
    _wait_until_left(planners, last)
    return complete and query.exception() is None


def _ask(query: StreamingQuery, planners: _Planners, deadline: float) -> bool:
    """Have every planner of the query plan nothing more; whether all know it in time."""
    while query.isActive:
        runs = _ends(query)
        # After a restart the first progress may be of a replayed batch, whose run is gone.
        if runs and all(planners.tell(run, None) for run in runs):
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_MESSAGE_POLL_S)
    return False


def _wait_until_idle(query: StreamingQuery, deadline: float) -> bool:
    # Asked once each time: triggers without data come and go meanwhile.
    while _is_busy(query):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_busy(query: StreamingQuery) -> bool:
    """Whether a trigger is active: from before it asks the source until its batch is committed.

    One that begins after the source was asked to plan nothing reads nothing.
    """
    return query.isActive and bool(query.status["isTriggerActive"])


def _ends(query: StreamingQuery) -> dict[str, dict[str, Any]]:
    """Of each ``kafka_deferred``, its run and the end of the last batch that Spark committed."""
    progress = query.lastProgress
    if progress is None:
        return {}
    ends = {}
    found = False
    # As JSON: Spark 4.0 has Python's text of an offset in the progress itself.
    for source in json.loads(progress.json)["sources"]:
        if not is_ours(source):
            continue
        offset = plain_offset(source["endOffset"])
        try:
            run = StreamOffset.parse(offset).run
        except OffsetFormatError:
            continue  # of a newer release
        found = True
        if run is not None:  # None: there was nothing to read, ever
            ends[run] = offset
    if not found:
        raise ValueError(f"query {query.id} has no source kafka_deferred")
    return ends


def _wait_until_left(planners: _Planners, runs: Mapping[str, Any]) -> None:
    """Spark does not wait for the planner, which still commits and leaves the group."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    while any(planners.is_here(run) for run in runs):
        if time.monotonic() >= deadline:
            log.warning("a planner has not left its group within %.0f s", STOP_TIMEOUT_S)
            return
        time.sleep(_POLL_S)


class _Planners:
    """The planner processes on the driver's host."""

    def __init__(self, spark: SparkSession, stop_within_s: float) -> None:
        self._spark = spark
        self._stop_within_s = stop_within_s
        if spark not in _told_of_messages:  # a second time Spark warns of
            spark.dataSource.register(_PlannerMessage)
            _told_of_messages.add(spark)

    def tell(self, run: str, proven: dict[str, Any] | None) -> bool:
        """Ask to plan nothing more; whether the planner was there."""
        within = str(self._stop_within_s)
        return self._send(run=run, proven=json.dumps(proven), stop_within_s=within)

    def is_here(self, run: str) -> bool:
        """Whether the planner is still in its group."""
        return self._send(run=run)

    def _send(self, **options: str) -> bool:
        message = self._spark.read.format(_PlannerMessage.name()).options(**options).load()
        return message.columns == ["reached"]
