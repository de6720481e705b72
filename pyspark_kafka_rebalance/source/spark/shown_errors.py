"""Has Spark show only our line of an error, without its stack and the stacks of its causes.

Spark's Python processes send an error to the JVM as text, and the user sees that text: all
tracebacks first, the cause's before ours, and our line last. The processes leave the stacks out if
the variable below is set when the error is written, and they end with that error. So we set it at
the one boundary where our errors pass to Spark, and only in Spark's own processes; the stacks go to
the log at DEBUG. An error that is neither ours nor kafka-python's is a bug, and keeps its stack.
"""

from __future__ import annotations

import functools
import inspect
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from ...errors import KafkaRebalanceError
from .process_log import is_sparks_process

log = logging.getLogger(__name__)

#: Every supported Spark has it; for the workers of UDFs, the JVM sets it as
#: spark.sql.execution.pyspark.udf.hideTraceback.enabled says.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

_Class = TypeVar("_Class", bound=type)


def shows_our_errors(spark_calls: _Class) -> _Class:
    """Decorate a class so that Spark shows only our line of its methods' errors.

    This wraps the methods that the class's own body defines, except private ones.
    """
    for name, method in list(vars(spark_calls).items()):
        called_by_spark = not name.startswith("_") or name in ("__init__", "__getstate__")
        if called_by_spark and inspect.isfunction(method):
            setattr(spark_calls, name, _read(method) if name == "read" else _call(method))
    return spark_calls


def _call(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        with _showing():
            return method(*arguments, **named)

    return call


def _read(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``read``, which raises while Spark iterates over its result."""

    @functools.wraps(method)
    def read(*arguments: Any, **named: Any) -> Iterator[Any]:
        with _showing():
            yield from method(*arguments, **named)

    return read


@contextmanager
def _showing() -> Iterator[None]:
    try:
        try:
            yield
        except ImportError:
            raise  # kafka-python may be missing, or be another version
        except Exception as error:
            if (ours := _ours_for(error)) is None:
                raise
            raise ours from error
    except KafkaRebalanceError as error:
        log.debug("raised to Spark: %s", error, exc_info=True)
        if is_sparks_process():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _ours_for(error: Exception) -> KafkaRebalanceError | None:
    """Return our error for one of kafka-python's; None for any other."""
    if "kafka" not in sys.modules:  # the process for the schema does not need it
        return None
    from kafka import errors as kafka_errors

    from ...fetch.connections import explain_final

    if not isinstance(error, kafka_errors.KafkaError):
        return None
    final = explain_final(error, "a request to Kafka")
    return final or KafkaRebalanceError(f"a request to Kafka failed: {error!r}")
