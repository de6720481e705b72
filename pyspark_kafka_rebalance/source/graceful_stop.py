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
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource

from ..errors import OffsetFormatError
from .group.group_commits import STOP_TIMEOUT_S
from .offset_json import parse_offset
from .progress import is_ours, plain_offset
from .stop_request import Answer, answer_of, ask_to_stop, give_up

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: ``status`` is a call into the JVM, or over the network; a hand-over does not wait for it.
_POLL_S = 0.02

#: A message starts a Python process on the driver.
_MESSAGE_POLL_S = 0.25

#: A planner that has not answered soon waits for a coordinator.
_LATE_POLL_S = 1.0

#: Beyond ``timeout_s``, how long the source plans nothing for one who asked: messages to come, and
#: Spark's stop(). If whoever asked is gone by then, the query goes on.
_STOPPED_AFTER_S = 30.0

#: The sessions that know ``_PlannerMessage``.
_told_of_messages: WeakSet[SparkSession] = WeakSet()


class _PlannerMessage(DataSource):
    """Run on the driver's host by asking for the schema; its one column is named by the answer."""

    @classmethod
    def name(cls) -> str:
        return "kafka_deferred_planner_message"

    def schema(self) -> str:
        return f"{self._deliver(self.options['run'])} BOOLEAN"

    def _deliver(self, run: str) -> Answer:
        if "give_up" in self.options:
            give_up(run)
        elif "proven" in self.options:
            ask_to_stop(
                run,
                json.loads(self.options["proven"]),
                float(self.options["stop_within_s"]),
                float(self.options.get("commit_within_s", "0")),  # a Connect client may be older
            )
        return answer_of(run)


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
        How long the batch under way may take, and its commit to the group after it. A batch that
        takes longer is interrupted, as by ``query.stop()``.
    spark : SparkSession, optional
        The query's session; by default the active one.

    Returns
    -------
    bool
        Whether nothing is left to be repeated: the group has the ends of the last batch. False: a
        batch was interrupted, by this or by another ``stop()``, which a restart replays and another
        owner reads again unless it was just being committed; or the group did not take the commits
        of a complete one, which another owner reads again; or the query had failed; or it is not
        known, because the query had ended more than an hour ago, or before its first batch.

    Raises
    ------
    ValueError
        The query reads no ``kafka_deferred``; it goes on.
    """
    deadline = time.monotonic() + timeout_s
    planners = _Planners(spark or SparkSession.active(), timeout_s + _STOPPED_AFTER_S, deadline)
    asked, gone = _ask(query, planners, deadline)
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
    complete = drained or not query.isActive  # else by another stop(), and the planner knows
    query.stop()
    failed = query.exception() is not None
    # What was drained is worth waiting for; of the rest nothing more is to come.
    waits_until = deadline if drained and not failed else 0.0
    # Of a source that has read nothing in this run the progress names one that has ended before.
    of_this_run = [run for run in last if not (asked and run in gone)]
    committed = _wait_until_left(planners, of_this_run, max(waits_until, time.monotonic()))
    return complete and bool(last) and committed and not failed


def _ask(
    query: StreamingQuery, planners: _Planners, deadline: float
) -> tuple[bool, frozenset[str]]:
    """Have every planner of the query plan nothing more.

    Returns
    -------
    bool, frozenset of str
        Whether those know it in time that have planned something, and which runs had left before.
    """
    while query.isActive:
        runs = _ends(query)
        gone = frozenset(run for run in runs if not planners.tell(run, None))
        # After a restart the first progress may be of a replayed batch, all of whose runs are gone.
        # Of some: their sources have planned nothing since.
        if len(gone) < len(runs):
            return True, gone
        if time.monotonic() >= deadline:
            break
        time.sleep(_MESSAGE_POLL_S)
    return False, frozenset()


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
            run = parse_offset(offset).run
        except OffsetFormatError:
            continue  # of a newer release
        found = True
        if run is not None:  # None: there was nothing to read, ever
            ends[run] = offset
    if not found:
        raise ValueError(f"query {query.id} has no source kafka_deferred")
    return ends


def _wait_until_left(planners: _Planners, runs: Iterable[str], commit_by: float) -> bool:
    """Wait for the answers of the planners, which still commit and leave the group.

    Spark does not wait for them.

    Returns
    -------
    bool
        Whether each has left, with everything committed.
    """
    deadline = commit_by + STOP_TIMEOUT_S
    missing = False
    for run in runs:
        pause_s = _POLL_S
        while (answer := planners.answer_of(run)) == "reached" and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LATE_POLL_S)
        if answer == "committed":
            continue
        missing = True
        if answer == "reached":
            planners.give_up(run)
            log.warning("a planner has not left its group in time: %s", run)
        elif answer == "absent":
            log.warning("it is not known whether the group has the last batch of %s", run)
        else:
            log.warning(
                "the group lacks commits of the last batch, whose next owner reads it again: %s; "
                "the log of the planner, on the driver's host, names the partitions",
                run,
            )
    return not missing


class _Planners:
    """The planner processes on the driver's host.

    Parameters
    ----------
    spark : SparkSession
        The query's.
    stop_within_s : float
        Within which time from a message on the query is stopped.
    deadline : float
        Until when the planners' commits are waited for; ``time.monotonic()`` of this process.
    """

    def __init__(self, spark: SparkSession, stop_within_s: float, deadline: float) -> None:
        self._spark = spark
        self._stop_within_s = stop_within_s
        self._deadline = deadline
        if spark not in _told_of_messages:  # a second time Spark warns of
            spark.dataSource.register(_PlannerMessage)
            _told_of_messages.add(spark)

    def tell(self, run: str, proven: dict[str, Any] | None) -> bool:
        """Ask to plan nothing more; whether the planner was there."""
        answer = self._send(
            run=run,
            proven=json.dumps(proven),
            stop_within_s=str(self._stop_within_s),
            commit_within_s=str(max(0.0, self._deadline - time.monotonic())),
        )
        return answer == "reached"

    def answer_of(self, run: str) -> str:
        """What has become of the planner: ``Answer``."""
        return self._send(run=run)

    def give_up(self, run: str) -> None:
        """Its answer is not waited for any longer, and is no for all who ask from now on."""
        self._send(run=run, give_up="true")

    def _send(self, **options: str) -> str:
        message = self._spark.read.format(_PlannerMessage.name()).options(**options).load()
        (answer,) = message.columns
        return answer
