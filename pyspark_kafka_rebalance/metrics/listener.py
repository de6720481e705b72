"""metrics_listener(): OpenTelemetry metrics of Spark queries, from the progress they report.

A query's planner, which owns the partitions, runs in a process of its own that Spark starts: the
driver's OpenTelemetry is not configured there. What it knows reaches the driver with the progress.
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
    from pyspark.sql.streaming.listener import StreamingQueryListener

log = logging.getLogger(__name__)


def metrics_listener(meter_provider: MeterProvider | None = None) -> StreamingQueryListener:
    """Measure all queries of a session with OpenTelemetry; of those that read ``kafka_deferred``.

    ``docs/observability.md`` lists the instruments.

    Parameters
    ----------
    meter_provider : opentelemetry.metrics.MeterProvider, optional
        Of the driver's process; default: the global one, which may be set later.

    Returns
    -------
    StreamingQueryListener
        For ``spark.streams.addListener``.

    Raises
    ------
    ImportError
        OpenTelemetry, or PySpark, is not installed; names the extra.

    Examples
    --------
    >>> spark.streams.addListener(metrics_listener())  # doctest: +SKIP
    """
    runs = MeasuredRuns(instruments_of(meter_provider))
    try:
        from pyspark.sql.streaming.listener import StreamingQueryListener
    except ImportError as error:
        raise ImportError(
            "a listener needs PySpark: pip install 'pyspark-kafka-rebalance[spark]'"
        ) from error

    class MetricsListener(StreamingQueryListener):
        """Tells ``runs``."""

        def onQueryStarted(self, event: Any) -> None:
            """Nothing is known before the first progress."""

        def onQueryProgress(self, event: Any) -> None:
            """A trigger has ended, or there was nothing to read for a while."""
            runs.progressed(json.loads(event.progress.json))

        def onQueryIdle(self, event: Any) -> None:
            """Nothing was read: the progress before still holds."""

        def onQueryTerminated(self, event: Any) -> None:
            """The run has ended."""
            runs.ended(str(event.runId))

    return MetricsListener()


class MeasuredRuns:
    """The running queries, by the ids of their runs.

    Parameters
    ----------
    instruments : Instruments
        Where to.
    """

    def __init__(self, instruments: Instruments) -> None:
        self._instruments = instruments
        self._lock = threading.Lock()  # a listener's thread adds what a collection reads
        self._runs: dict[str, QueryEvents] = {}
        self._newer: set[str] = set()
        instruments.include(self)

    def progressed(self, progress: Mapping[str, Any]) -> None:
        """A run has reported this."""
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

    def ended(self, run_id: str) -> None:
        """It will report no more."""
        with self._lock:
            self._runs.pop(run_id, None)
            self._newer.discard(run_id)

    def read(self, instrument: Instrument) -> Iterable[Measured]:
        """What all of them show now."""
        now = time.time()
        with self._lock:
            return [found for run in self._runs.values() for found in run.read(instrument, now)]
