"""KafkaDeferredDataSource: ``format("kafka_deferred")``."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import MutableMapping
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ..errors import OptionError
from .checkpoint.location_check import refuse_no_folder
from .options import SourceOptions
from .refused_stream import RefusedStreamReader
from .schema import spark_ddl
from .shown_errors import shows_our_errors
from .spark_versions import reader_for_this_spark
from .stream_reader import StreamReader

log = logging.getLogger(__name__)

#: With more members than this one driver gains nothing; DESIGN's default.
MAX_DEFAULT_READERS = 8


@shows_our_errors
class KafkaDeferredDataSource(DataSource):
    """Kafka for Structured Streaming as members of a consumer group, and for batch reads.

    Examples
    --------
    >>> spark.readStream.format("kafka_deferred").options(**{  # doctest: +SKIP
    ...     "kafka.bootstrap.servers": "127.0.0.1:9092",
    ...     "kafka.group.id": "orders-etl",
    ...     "subscribe": "orders",
    ... }).load()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Parse and validate the options; the user sees an error here at ``load()``.

        Raises
        ------
        OptionError
            The options suit neither a stream nor a batch; Spark says only later which is wanted.
            Names the option, its value, and what is allowed.
        """
        super().__init__(options)
        readers = min(os.cpu_count() or 1, MAX_DEFAULT_READERS)
        parsed = SourceOptions.parse(options, default_readers=readers)
        # Spark makes this object once for each load(), and all queries of the load from its copies.
        self._parsed = replace(parsed, load=secrets.token_hex(8))
        if (tls := self._parsed.client_config.get("ssl_context")) is not None:
            tls.context()  # the planner will need the stores on this machine
        if (location := self._parsed.checkpoint_location) is not None:
            refuse_no_folder(location)
        if parsed.group_id and "groupidprefix" in parsed.given:
            log.warning("groupIdPrefix is ignored, because kafka.group.id names the group")
        self._schema_asked = False
        try:
            self._parsed.for_stream()
        except OptionError as error:
            try:
                self._parsed.for_batch()
            except OptionError as of_batch:
                allowed = f"{error.allowed}. A batch is not possible either: {of_batch}"
                raise OptionError(error.option, error.value, allowed, error.problem) from None

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "kafka_deferred"

    def schema(self) -> str:
        """Return the columns as DDL; see ``schema.py``."""
        self._schema_asked = True
        return spark_ddl(self._parsed)

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the source right after it asked for the schema, and does not ask if the
        # user gave one. The schema is fixed, as with Spark's own Kafka source. streamReader() could
        # compare the two, but an error raised there reaches the user garbled.
        if not self._schema_asked:
            raise OptionError(
                "schema",
                "user-specified",
                f"no value: the schema is fixed ({spark_ddl(self._parsed)})",
            )
        return self.__dict__

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream's reader; pure until Spark's first call on it."""
        try:
            options = self._parsed.for_stream()
        except OptionError as error:
            # An error raised here would reach the user garbled.
            return RefusedStreamReader(error)
        return reader_for_this_spark(StreamReader, options)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch's reader.

        Raises
        ------
        OptionError
            An option asks for something that only a stream can do.
        """
        from .batch import KafkaDeferredBatchReader  # not at the top: as in stream_reader.py

        return KafkaDeferredBatchReader(self._parsed.for_batch())
