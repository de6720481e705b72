"""metrics_listener(): OpenTelemetry metrics of Spark queries, from the progress they report.

Spark runs a query's planner, which owns the partitions, in a separate process, where the driver's
OpenTelemetry is not configured. The planner's data reach the driver with the progress.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import OffsetFormatError
from .catalogue import Instrument, Measured
from .instruments import Instruments, instruments_of
from .query_events import QueryEvents

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

log = logging.getLogger(__name__)


def metrics_listener(meter_provider: MeterProvider | None = None) -> StreamingQueryListener:
    """Measure a session's queries that read ``kafka_deferred`` with OpenTelemetry.

    ``docs/observability.md`` lists the instruments.

    Parameters
    ----------
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        The driver's. Default: the global one, which may be set later.

    Returns
    -------
    StreamingQueryListener
        For ``spark.streams.addListener``.

    Raises
    ------
    ImportError
        OpenTelemetry or PySpark is not installed; the message names the extra.

    Examples
    --------
    >>> spark.streams.addListener(metrics_listener())  # doctest: +SKIP
    """
    runs = MeasuredRuns(instruments_of(meter_provider))
    try:
        from pyspark.sql import SparkSession
        from pyspark.sql.streaming.listener import StreamingQueryListener
    except ImportError as error:
        raise ImportError(
            "a listener needs PySpark: pip install 'pyspark-kafka-rebalance[spark]'"
        ) from error

    made_in = SparkSession.getActiveSession()

    class MetricsListener(StreamingQueryListener):
        """Passes events on to ``runs``."""

        def onQueryStarted(self, event: Any) -> None:
            """Do nothing: nothing is known before the first progress."""

        def onQueryProgress(self, event: Any) -> None:
            """A batch has ended."""
            runs.progressed(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:
            """There was nothing to read for a while; Spark keeps that progress, and sends none."""
            run_id = str(event.runId)
            # Connect gives a listener its session, classic Spark does not.
            runs.idled(run_id, _kept_progress(self.spark or made_in, run_id))

        def onQueryTerminated(self, event: Any) -> None:
            """The run has ended."""
            runs.ended(str(event.runId))

    return MetricsListener()


def _kept_progress(session: SparkSession | None, run_id: str) -> Mapping[str, Any] | None:
    """Return the last progress of a run; None if it has ended, or is in another session."""
    from pyspark.sql import SparkSession

    try:
        queries = (session or SparkSession.active()).streams.active
        (last,) = (query.lastProgress for query in queries if str(query.runId) == run_id)
        return None if last is None else dict(json.loads(last.json))
    except Exception as error:  # as with any listener, nothing else may suffer
        log.debug("cannot read the progress of the idle run %s: %r", run_id, error)
        return None


class MeasuredRuns:
    """Keeps the events of the running queries, by run id, under one lock."""

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._lock = threading.Lock()  # the listener's thread writes, collections read
        self._runs: dict[str, QueryEvents] = {}
        self._newer: set[str] = set()
        instruments.include(self)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """Take in a progress that a run has reported."""
        run_id = str(progress.get("runId"))
        with self._lock:
            run = self._runs.setdefault(run_id, QueryEvents())
            try:
                measured = run.add(progress, time.time())
            except OffsetFormatError as error:
                if run_id not in self._newer:
                    self._newer.add(run_id)
                    log.warning("no metrics of query %s: %s", progress.get("name"), error)
                return
        self._instruments.push(*measured)

    def idled(self, run_id: str, progress: Mapping[str, Any] | None) -> None:
        """A run has nothing to read, as this progress says; None if that is not known."""
        if progress is not None and not any(s.get("numInputRows") for s in progress["sources"]):
            self.progressed(progress)
            return
        # A later batch's progress comes as its own event.
        with self._lock:
            if run_id in self._runs:
                self._runs[run_id].reported(time.time())

    def ended(self, run_id: str) -> None:
        """Forget a run, which will report nothing more."""
        with self._lock:
            self._runs.pop(run_id, None)
            self._newer.discard(run_id)

    def read(self, instrument: Instrument) -> Iterable[Measured]:
        """Return the values of all runs now."""
        now = time.time()
        with self._lock:
            return [found for run in self._runs.values() for found in run.read(instrument, now)]
