"""The differences between the supported versions of Spark, 4.0 to 4.3.

All other code is written for 4.2 and later, which pass ``start`` and a limit to the reader
(SPARK-53898, SPARK-55304):

==========================  ==============================  ====================================
subject                     4.0 and 4.1                     4.2 and later
==========================  ==============================  ====================================
the end of the next batch   ``latestOffset()``              ``latestOffset(start, limit)``
Spark's position, after     ``partitions(last, last)``      ``start``
a restart
the limit                   from the options only           ``ReadLimit``: Once asks for all
AvailableNow                one batch, like Once            as many batches as the limit makes
==========================  ==============================  ====================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from ...errors import KafkaRebalanceError
from .read_limits import HAS_ADMISSION_CONTROL, ReadLimit
from .shown_errors import shows_our_errors

if TYPE_CHECKING:
    from ..options.source_options import SourceOptions


class _Reader(Protocol):
    """The calls of Spark 4.2 to a reader with admission control: ``StreamReader``."""

    def initialOffset(self) -> dict[str, Any]: ...

    def getDefaultReadLimit(self) -> ReadLimit: ...

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]: ...

    def partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> Sequence[InputPartition]: ...

    def commit(self, end: dict[str, Any]) -> None: ...

    def stop(self) -> None: ...

    def read(self, partition: InputPartition) -> Iterator[Any]: ...


_WRAPPER = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"


def reader_for_this_spark(
    make: Callable[..., Any], options: SourceOptions
) -> DataSourceStreamReader:
    """Return a reader that the installed version of Spark can call.

    It is made by StreamReader, or a class derived from KafkaDeferredStreamReader.
    """
    if HAS_ADMISSION_CONTROL:
        reader: DataSourceStreamReader = make(options)
        return reader
    return StreamReaderOfSpark40(make(options, trigger_is_told=False))


@shows_our_errors
class StreamReaderOfSpark40(DataSourceStreamReader):
    """Adapts a reader for Spark 4.2 to Spark 4.0 and 4.1, and calls it as Spark 4.2 would.

    It remembers Spark's position. Spark runs a query's batches on one thread, so a
    ``latestOffset()`` after the ``partitions()`` of a batch means that the batch is done.

    The reader must not know the trigger: AvailableNow and Once run one batch, whose only
    ``latestOffset()`` looks like the first of any other trigger.
    """

    def __init__(self, reader: _Reader) -> None:
        self._reader = reader
        self._stands_at: dict[str, Any] | None = None
        self._offered: dict[str, Any] | None = None  # for a batch that is not planned yet

    def initialOffset(self) -> dict[str, Any]:
        """Delegate to the reader."""
        return self._reader.initialOffset()

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]
        """Return the end of the next batch, or Spark's position if there is nothing for one.

        Raises KafkaRebalanceError if Spark asks again before it has planned the batch. It does so
        if it is configured to wrap sources for AvailableNow, and then it does not ask in the order
        of the batches.
        """
        if self._offered is not None:
            self._refuse_wrapper()
        start = self._reader.initialOffset() if self._stands_at is None else self._stands_at
        end = self._reader.latestOffset(start, self._reader.getDefaultReadLimit())
        if end != start:
            self._offered = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the tasks of the batch that ends at ``end``; none if it starts there, too."""
        if self._offered is not None and end != self._offered:
            self._refuse_wrapper()
        self._offered = None
        self._stands_at = end
        return self._reader.partitions(start, end)

    def commit(self, end: dict[str, Any]) -> None:
        """Delegate to the reader."""
        self._reader.commit(end)

    def stop(self) -> None:
        """Delegate to the reader."""
        self._reader.stop()

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Delegate to the reader."""
        return self._reader.read(partition)

    def _refuse_wrapper(self) -> None:
        raise KafkaRebalanceError(
            f"{_WRAPPER}=true is not supported before Spark 4.2: leave it at false; AvailableNow "
            "then reads everything in one batch"
        )
