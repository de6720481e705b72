"""KafkaDeferredDataSource: ``format("kafka_deferred")``."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Mapping, MutableMapping
from dataclasses import replace
from functools import partial

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from ..errors import OptionError
from ..settings.problems import Problems
from ..transport.kafka_python_version import require_supported_version
from .checkpoint.location_check import refuse_no_folder
from .options.source_options import SourceOptions
from .options.table_options import CARRIER, TableOptions, given_options
from .spark.refused_stream import RefusedStreamReader
from .spark.schema import spark_ddl, spark_schema
from .spark.shown_errors import shows_our_errors
from .spark.spark_versions import reader_for_this_spark
from .stream_reader import StreamReader

log = logging.getLogger(__name__)

#: Every set of options has some of these, unless a table has them.
_NEEDED = {
    "kafka.bootstrap.servers",
    "bootstrap.servers",
    "subscribe",
    "subscribepattern",
    "assign",
}

_NO_TABLE_OPTIONS = (
    "exactly one of subscribe, subscribePattern and assign. If this reads a table: create it "
    "without a list of columns; Spark does not hand a table's OPTIONS to a source in Python, and "
    "only the columns that this source has given the table carry them"
)

#: With more members than this one driver gains nothing.
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
            Names the option, its value, and the allowed values.
        """
        super().__init__(options)
        self._given, self._makes_table = given_options(options)
        # Spark makes this object once for each load(), and all queries of the load from its copies.
        self._load = secrets.token_hex(8)
        self._parsed: SourceOptions | None = None
        if not self._parses_now(self._given):
            # Perhaps a table is read, whose columns carry its options; else schema() says so.
            return
        self._parsed = _checked(self._given)
        say_what_has_no_effect(self._parsed.without_effect)
        _say_what_shows(self._parsed)

    def _parses_now(self, given: Mapping[str, str]) -> bool:
        """Whether the options are complete enough to be examined before Spark says what for."""
        return not _NEEDED.isdisjoint(given)

    @classmethod
    def name(cls) -> str:
        """The name for ``format()``."""
        return "kafka_deferred"

    def schema(self) -> StructType:
        """Return the columns; see ``schema.py``."""
        parsed = self._parsed
        if parsed is None:
            parsed = _checked(self._given)
            say_what_has_no_effect(parsed.without_effect)
            _say_what_shows(parsed)
        schema = spark_schema(parsed)
        if self._makes_table:
            self._carry_options(schema, parsed)
        return schema

    def _carry_options(self, schema: StructType, parsed: SourceOptions) -> None:
        of_source = {
            name: text
            for name, text in self._given.items()
            if name not in {ignored.lower() for ignored in parsed.without_effect}
        }
        of_table = TableOptions.of(of_source)
        schema[CARRIER].metadata = of_table.metadata()
        if of_table.withheld:
            names = ", ".join(of_table.withheld)
            log.warning("the table does not keep %s: each read must give its own", names)

    def _options_for(self, schema: StructType) -> SourceOptions:
        """Return the options, together with a table's own if a table is read.

        Raises OptionError if they are bad or incomplete, or the columns are not those of this
        source.
        """
        parsed = self._parsed
        if parsed is None:
            table = TableOptions.in_columns(schema)
            if table is None:
                raise OptionError("subscribe", None, _NO_TABLE_OPTIONS)
            parsed = _checked(table.with_those_of(self._given))
            say_what_has_no_effect(parsed.without_effect)
        ours = spark_schema(parsed)
        if [(c.name, c.dataType) for c in schema] != [(c.name, c.dataType) for c in ours]:
            raise OptionError(
                "schema", "user-specified", f"no value: the schema is fixed ({spark_ddl(parsed)})"
            )
        return replace(parsed, load=self._load)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the stream's reader; pure until Spark's first call on it."""
        try:
            options = self._options_for(schema).for_stream()
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
        ImportError
            This version of kafka-python is not supported.
        """
        require_supported_version()
        from .batch import KafkaDeferredBatchReader  # not at the top: as in stream_reader.py

        return KafkaDeferredBatchReader(self._options_for(schema).for_batch())


def _checked(given: Mapping[str, str]) -> SourceOptions:
    """Parse and check all options; OptionError names all problems."""
    readers = min(os.cpu_count() or 1, MAX_DEFAULT_READERS)
    parsed, problems = SourceOptions.examine(given, default_readers=readers)
    if (tls := parsed.client_config.get("ssl_context")) is not None:
        problems.of(tls.context, None)  # the planner will need the stores on this machine
    if (location := parsed.checkpoint_location) is not None:
        problems.of(partial(refuse_no_folder, location), None)
    problems.raise_if_any()
    try:
        parsed.for_stream()
    except OptionError as error:
        try:
            parsed.for_batch()
        except OptionError as of_batch:
            *others, last = error.problems
            allowed = f"{last.allowed}. A batch is not possible either: {of_batch}"
            of_both = Problems()
            for problem in others:
                of_both.add(problem)
            of_both.add(OptionError(last.option, last.value, allowed, last.problem))
            of_both.raise_if_any()
    return parsed


def _say_what_shows(parsed: SourceOptions) -> None:
    tls = parsed.client_config.get("ssl_context")
    if tls is not None and tls.keystore is not None and tls.keystore.shows_its_key:
        log.warning(
            "kafka.ssl.keystore.key is not encrypted, and Spark shows it in query plans and in its "
            "event log, unless spark.redaction.regex matches it; encrypt the key and give "
            "kafka.ssl.key.password, or name its file in kafka.ssl.keystore.location"
        )


def say_what_has_no_effect(ignored: Mapping[str, str]) -> None:
    """Log one warning, if there is anything to say: the names by their reason, without values."""
    by_reason: dict[str, list[str]] = {}
    for name, why in ignored.items():
        by_reason.setdefault(why, []).append(name)
    if by_reason:
        reasons = (f"{', '.join(names)} ({why})" for why, names in by_reason.items())
        log.warning("options without effect: %s", "; ".join(reasons))
