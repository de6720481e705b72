"""stop_gracefully: stop a query between two batches, so that nothing is repeated.

``query.stop()`` interrupts the running batch. The partitions' next owner reads it again, and the
sink repeats the part that it has already done. Here the source stops planning, the running batch
ends like any other, its positions are committed, the members leave the group, and then nothing is
left to interrupt.

The planner is on the driver's host, and this code may run elsewhere (Spark Connect): messages reach
it as a ``PlannerMessage``.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from pyspark.sql import SparkSession

from ...errors import OffsetFormatError
from ..group.group_commits import STOP_TIMEOUT_S
from ..offsets.offset_json import parse_offset
from ..progress import is_ours, plain_offset
from .planner_message import PlannerMessage

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

#: ``status`` is a call into the JVM, or over the network; no hand-over waits for it.
_POLL_S = 0.02

#: Every message starts a Python process on the driver.
_MESSAGE_POLL_S = 0.25

#: A planner that does not answer soon is waiting for a coordinator.
_LATE_POLL_S = 1.0

#: How long after ``timeout_s`` the source still plans nothing, which leaves time for more messages
#: and for Spark's stop(). If the caller has ended by then, the query continues.
_STOPPED_AFTER_S = 30.0

#: Sessions in which ``PlannerMessage`` is registered.
_told_of_messages: WeakSet[SparkSession] = WeakSet()


def stop_gracefully(
    query: StreamingQuery, timeout_s: float = 60.0, spark: SparkSession | None = None
) -> bool:
    """Stop a query once the running batch is committed, so that none of it is repeated.

    When this returns, the query has stopped, and its members have left the group after committing
    all that Spark has committed (static members leave when their session ends, as always). Other
    sources of the query keep what they have read.
    If this never returns, because its process dies, the query resumes half a minute after
    ``timeout_s``.

    Parameters
    ----------
    query : StreamingQuery
        A query with at least one ``kafka_deferred`` source, in classic Spark or Spark Connect.
    timeout_s : float
        How long the running batch may take, together with its commit to the group. A batch that
        takes longer is interrupted, as by ``query.stop()``.
    spark : SparkSession, optional
        The query's session; by default the active one.

    Returns
    -------
    bool
        True if nothing will be repeated: the group has the ends of the last batch. False if a batch
        was interrupted, by this or by another ``stop()``: a restart replays it, and another owner
        reads it again unless it was just being committed. False also if the group did not accept
        the commits of a complete batch, which another owner reads again; if the query had failed;
        or if the outcome is unknown, because the query had ended more than an hour ago, or before
        its first batch.

    Raises
    ------
    ValueError
        The query has no ``kafka_deferred`` source; it keeps running.
    """
    deadline = time.monotonic() + timeout_s
    planners = _Planners(spark or SparkSession.active(), timeout_s + _STOPPED_AFTER_S, deadline)
    asked, gone = _ask(query, planners, deadline)
    if asked:
        log.info("query %s: the source plans no more batches", query.id)
    drained = asked and _wait_until_idle(query, deadline)
    if drained:
        log.info("query %s: the last batch is committed", query.id)
    last = _ends(query)
    if drained and query.isActive:
        # Without an idle trigger, the source does not know yet that its last batch is committed.
        for run, end in last.items():
            planners.tell(run, end)
    if not drained and query.isActive:
        log.warning("query %s: the running batch took longer than %.1f s", query.id, timeout_s)
    complete = drained or not query.isActive  # if another stop() ended it, the planner knows
    query.stop()
    failed = query.exception() is not None
    # Only a drained query is worth waiting for: otherwise no more commits will come.
    waits_until = deadline if drained and not failed else 0.0
    # If a source has read nothing in this run, the progress names an earlier run of it.
    of_this_run = [run for run in last if not (asked and run in gone)]
    committed = _wait_until_left(planners, of_this_run, max(waits_until, time.monotonic()))
    return complete and bool(last) and committed and not failed


def _ask(
    query: StreamingQuery, planners: _Planners, deadline: float
) -> tuple[bool, frozenset[str]]:
    """Ask every planner of the query to plan nothing more.

    Returns whether the planners that have planned something know it in time, and the runs that had
    already left.
    """
    while query.isActive:
        runs = _ends(query)
        gone = frozenset(run for run in runs if not planners.tell(run, None))
        # After a restart the first progress may be of a replayed batch whose runs have all ended.
        # If only some have ended, their sources have planned nothing more.
        if len(gone) < len(runs):
            return True, gone
        if time.monotonic() >= deadline:
            break
        time.sleep(_MESSAGE_POLL_S)
    return False, frozenset()


def _wait_until_idle(query: StreamingQuery, deadline: float) -> bool:
    # One status call per round: triggers without data come and go in between.
    while _is_busy(query):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def _is_busy(query: StreamingQuery) -> bool:
    """Whether a trigger is active: from before it asks the source until its batch is committed.

    A trigger that starts after the source was asked to plan nothing reads nothing.
    """
    return query.isActive and bool(query.status["isTriggerActive"])


def _ends(query: StreamingQuery) -> dict[str, dict[str, Any]]:
    """Map the run of each ``kafka_deferred`` to the end of its last batch that Spark committed."""
    progress = query.lastProgress
    if progress is None:
        return {}
    ends = {}
    found = False
    # Taken from the JSON: in Spark 4.0, the progress object has an offset as Python prints it.
    for source in json.loads(progress.json)["sources"]:
        if not is_ours(source):
            continue
        offset = plain_offset(source["endOffset"])
        try:
            run = parse_offset(offset).run
        except OffsetFormatError:
            continue  # written by a newer release
        found = True
        if run is not None:  # None: there never was anything to read
            ends[run] = offset
    if not found:
        raise ValueError(f"query {query.id} has no source kafka_deferred")
    return ends


def _wait_until_left(planners: _Planners, runs: Iterable[str], commit_by: float) -> bool:
    """Wait for the planners to commit, leave the group, and answer: Spark does not wait for them.

    Returns whether every planner has left with everything committed.
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
            log.warning("a planner did not leave its group in time: %s", run)
        elif answer == "absent":
            log.warning(
                "cannot tell whether the offsets of the last batch are committed to the group: %s",
                run,
            )
        else:
            log.warning(
                "run %s: some offsets of the last batch are not committed to the group, so the "
                "next owners read these partitions again; the planner's log, on the driver's "
                "host, names them",
                run,
            )
    return not missing


class _Planners:
    """The planner processes on the driver's host.

    The query will be stopped ``stop_within_s`` after a message. After ``deadline``
    (``time.monotonic()`` of this process) nothing waits for the planners' commits.
    """

    def __init__(self, spark: SparkSession, stop_within_s: float, deadline: float) -> None:
        self._spark = spark
        self._stop_within_s = stop_within_s
        self._deadline = deadline
        if spark not in _told_of_messages:  # Spark warns about a second registration
            spark.dataSource.register(PlannerMessage)
            _told_of_messages.add(spark)

    def tell(self, run: str, proven: dict[str, Any] | None) -> bool:
        """Ask a planner to plan nothing more; return whether it was there."""
        answer = self._send(
            run=run,
            proven=json.dumps(proven),
            stop_within_s=str(self._stop_within_s),
            commit_within_s=str(max(0.0, self._deadline - time.monotonic())),
        )
        return answer == "reached"

    def answer_of(self, run: str) -> str:
        """Return a planner's ``Answer``."""
        return self._send(run=run)

    def give_up(self, run: str) -> None:
        """Stop waiting for a planner's answer; later requests are refused."""
        self._send(run=run, give_up="true")

    def _send(self, **options: str) -> str:
        message = self._spark.read.format(PlannerMessage.name()).options(**options).load()
        (answer,) = message.columns
        return answer
