"""KafkaDeferredDataSource: ``format("kafka_deferred")``."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader
from pyspark.sql.types import StructType

from ..errors import OptionError
from .options import SourceOptions
from .schema import spark_ddl
from .stream import KafkaDeferredStreamReader

#: More members than this share one driver's work to no end; DESIGN's default.
MAX_DEFAULT_READERS = 8


class KafkaDeferredDataSource(DataSource):
    """Kafka for Structured Streaming as members of a consumer group.

    Examples
    --------
    >>> spark.readStream.format("kafka_deferred").options(**{  # doctest: +SKIP
    ...     "kafka.bootstrap.servers": "127.0.0.1:9092",
    ...     "kafka.group.id": "orders-etl",
    ...     "subscribe": "orders",
    ... }).load()
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        """Parse and validate the options: an error here is what the user sees at ``load()``.

        Raises
        ------
        OptionError
            Names the option, its value, and what is allowed.
        """
        super().__init__(options)
        readers = min(os.cpu_count() or 1, MAX_DEFAULT_READERS)
        self._parsed = SourceOptions.parse(options, default_readers=readers)
        self._schema_asked = False

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "kafka_deferred"

    def schema(self) -> str:
        """The columns, as DDL; see ``schema.py``."""
        self._schema_asked = True
        return spark_ddl(self._parsed)

    def __getstate__(self) -> dict[str, Any]:
        # Spark pickles the source right after it asked for the schema, and does not ask when the
        # user gave one. As with Spark's own Kafka source the schema is fixed; streamReader() could
        # compare the two, but what it raises reaches the user garbled.
        if not self._schema_asked:
            raise OptionError(
                "schema", "user-specified", f"none: it is fixed ({spark_ddl(self._parsed)})"
            )
        return self.__dict__

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """The reader; pure until Spark's first call on it."""
        return KafkaDeferredStreamReader(self._parsed)
