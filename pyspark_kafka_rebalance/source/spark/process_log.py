"""The log of Spark's Python processes: lines like Spark's own.

Spark starts a Python process for the schema, one for the plan, one for the planner, and some in
each executor. Their standard error becomes part of the driver's or the executor's log. Logging is
not configured in them, so Python would print bare messages there, without time, level and logger.
Here our lines, and kafka-python's, get Spark's default pattern,
``%d{yy/MM/dd HH:mm:ss} %p %c: %m%n%ex``, or one line of JSON each, with the fields that
``spark.log.structuredLogging.enabled`` gives Spark's lines. The processes do not know that setting,
so an environment variable asks for it.

If anything configures logging in such a process, as ``spark.sql.pyspark.worker.logging.enabled``
does, that takes precedence: this replaces only Python's handler of last resort.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import traceback
from typing import Any

#: An environment variable; "json" asks for one JSON object per line.
CHOICE = "PYSPARK_KAFKA_REBALANCE_LOG"

_OURS = ("pyspark_kafka_rebalance", "kafka")

_LEVELS = {"WARNING": "WARN", "CRITICAL": "FATAL"}


def is_sparks_process() -> bool:
    """Whether Spark has started this Python process; False in the application's own."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")


def log_like_spark() -> None:
    """Format our lines like Spark's in this process from now on; idempotent."""
    before = logging.lastResort
    if before is not None and not isinstance(before, LastResort):
        as_json = os.environ.get(CHOICE, "").lower() == "json"
        logging.lastResort = LastResort(before, StructuredLines() if as_json else SparkLines())


class LastResort(logging.Handler):
    """Handles the records of loggers without a handler, in place of Python's own.

    Other packages' records go to ``before``, unchanged; ours are formatted as ``lines``.
    """

    def __init__(self, before: logging.Handler, lines: logging.Formatter) -> None:
        super().__init__(before.level)
        self._before = before
        self.setFormatter(lines)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line to the present ``sys.stderr``, in one piece."""
        if record.name.partition(".")[0] not in _OURS:
            self._before.handle(record)
            return
        try:
            sys.stderr.write(f"{self.format(record)}\n")
            sys.stderr.flush()
        except Exception:  # as logging's handlers do: a full log stops nothing
            self.handleError(record)


class SparkLines(logging.Formatter):
    """Lines in the pattern of Spark's ``log4j2-defaults.properties``, with whole logger names."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(level)s %(name)s: %(message)s", "%y/%m/%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Use Log4j's names of levels."""
        record.__dict__["level"] = _LEVELS.get(record.levelname, record.levelname)
        return super().formatMessage(record)


class StructuredLines(logging.Formatter):
    """JSON as Spark's structured logging writes it; ``SPARK_LOG_SCHEMA`` of PySpark reads it."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "ts": f"{second}.{int(record.created % 1 * 1000):03d}Z",
            "level": _LEVELS.get(record.levelname, record.levelname),
            "msg": record.getMessage(),
            "context": {},
        }
        if record.exc_info and record.exc_info[0] is not None:
            kind, error, stack = record.exc_info
            frames = traceback.extract_tb(stack)
            line["exception"] = {
                "class": kind.__name__,
                "msg": str(error),
                "stacktrace": [
                    {"class": None, "method": f.name, "file": f.filename, "line": str(f.lineno)}
                    for f in frames
                ],
            }
        return json.dumps({**line, "logger": record.name})
