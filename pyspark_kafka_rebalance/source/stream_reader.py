"""StreamReader: the part of a stream that Spark pickles.

Spark starts a Python process for the schema, one for the plan, one for the planner, and some in
each executor, and each of them unpickles the reader. Only the planner imports ``stream``, with the
group membership behind it: the others would spend more time on that than on their own work.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ..transport.kafka_python_version import require_supported_version
from .spark.read_limits import ReadLimit, SupportsTriggerAvailableNow
from .spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    import pyarrow as pa

    from .options.source_options import SourceOptions
    from .stream import KafkaDeferredStreamReader


@shows_our_errors
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Passes the planner's calls to a :class:`~.stream.KafkaDeferredStreamReader`."""

    def __init__(self, options: SourceOptions, trigger_is_told: bool = True) -> None:
        self._options = options
        self._trigger_is_told = trigger_is_told
        self._planning: KafkaDeferredStreamReader | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self._options, "trigger_is_told": self._trigger_is_told}

    def __setstate__(self, state: dict[str, Any]) -> None:
        StreamReader.__init__(self, **state)

    # -- the driver's planner process -------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """As the planner's."""
        return self._planner().initialOffset()

    def getDefaultReadLimit(self) -> ReadLimit:
        """As the planner's."""
        return self._planner().getDefaultReadLimit()

    def prepareForTriggerAvailableNow(self) -> None:
        """As the planner's."""
        self._planner().prepareForTriggerAvailableNow()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """As the planner's."""
        return self._planner().latestOffset(start, limit)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """As the planner's."""
        return self._planner().reportLatestOffset()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """As the planner's."""
        return self._planner().partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """As the planner's."""
        self._planner().commit(end)

    def stop(self) -> None:
        """As the planner's."""
        self._planner().stop()

    def _planner(self) -> KafkaDeferredStreamReader:
        if self._planning is None:
            with _without_collections():
                require_supported_version()
                from .stream import KafkaDeferredStreamReader

            self._planning = KafkaDeferredStreamReader(self._options, self._trigger_is_told)
        return self._planning

    # -- executors --------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task; needs no membership."""
        require_supported_version()
        from .reading import read_task

        return read_task(partition.value, self._options)


@contextmanager
def _without_collections() -> Iterator[None]:
    """Load modules without collecting garbage, which took a fifth of the time.

    Their objects stay, and a collection would only walk them.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
