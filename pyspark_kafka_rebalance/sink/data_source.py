"""KafkaDeferredDataSource: ``format("kafka_deferred")``, to read and to write."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql import datasource
from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from ..errors import OptionError
from ..source import data_source
from ..source.spark.shown_errors import shows_our_errors

if TYPE_CHECKING:
    from .options.sink_options import SinkOptions

#: Spark 4.0 hands a stream's rows to Python as rows.
HAS_ARROW_WRITER = hasattr(datasource, "DataSourceStreamArrowWriter")

_OF_READS = {"subscribe", "subscribepattern", "assign"}
_OF_WRITES = {"topic", "delivery", "batchid", "sinktopic"}


@shows_our_errors
class KafkaDeferredDataSource(data_source.KafkaDeferredDataSource):
    """Kafka for Structured Streaming: a source of group members, and a sink of transactions.

    Examples
    --------
    >>> spark.readStream.format("kafka_deferred").options(**{  # doctest: +SKIP
    ...     "kafka.bootstrap.servers": "127.0.0.1:9092",
    ...     "kafka.group.id": "orders-etl",
    ...     "subscribe": "orders",
    ... }).load()
    >>> orders.writeStream.format("kafka_deferred").options(**{  # doctest: +SKIP
    ...     "kafka.bootstrap.servers": "127.0.0.1:9092",
    ...     "topic": "orders-clean",
    ...     "checkpointLocation": "/checkpoints/orders",
    ... }).start()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Check the options; the user sees an error here at ``load()``, ``start()`` or ``save()``.

        Spark says later whether this is to read or to write.

        Raises
        ------
        OptionError
            Names the option, its value, and the allowed values.
        """
        super().__init__(options)
        if not self._parses_now(self._given) and not _OF_WRITES.isdisjoint(self._given):
            _checked(self._given)

    def _parses_now(self, given: Mapping[str, str]) -> bool:
        """Whether the options can only be those of a read."""
        return not _OF_READS.isdisjoint(given) and _OF_WRITES.isdisjoint(given)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one micro-batch; pure.

        ``overwrite``, of output mode complete, appends each result as Spark's sink does.

        Raises
        ------
        OptionError, KafkaRebalanceError
            An option or a column is not allowed.
        """
        from .columns import Columns
        from .writing import Writing

        options = _checked(self._given).for_stream()
        writing = Writing(options, Columns.checked(schema, options.topic))
        if not HAS_ARROW_WRITER:
            from .row_writer import RowWriter

            return RowWriter(writing, schema)
        from .stream_writer import StreamWriter

        return StreamWriter(writing)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame; pure.

        Raises
        ------
        OptionError, KafkaRebalanceError
            An option, a column or the save mode is not allowed.
        """
        from .batch_writer import BatchWriter
        from .columns import Columns
        from .writing import Writing

        if overwrite:
            raise OptionError("mode", "overwrite", "append: Kafka's topics are not overwritten")
        options = _checked(self._given).for_batch()
        return BatchWriter(
            Writing(options, Columns.checked(schema, options.topic)), options.batch_id
        )


def _checked(given: Mapping[str, str]) -> SinkOptions:
    """Check the sink's options, and say which have no effect."""
    from .options.sink_options import SinkOptions

    options = SinkOptions.checked(given)
    data_source.say_what_has_no_effect(options.without_effect)
    return options
