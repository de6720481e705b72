"""What Spark shows of an error: our line, without the stack and those of what caused it.

Spark's Python processes send the JVM an error as text, which is what the user gets to see: all
tracebacks first, the cause's before ours, and our line last. They leave the stacks out if the
variable below is set when the error is written, and end with that error. So it is set at the one
boundary where our errors leave for Spark, in Spark's own processes alone; the stacks go to the log
at DEBUG. An error that is neither ours nor kafka-python's is a defect, and keeps its stack.
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

from kafka import errors as kafka_errors

from ..errors import KafkaRebalanceError
from ..fetch.connections import explain_final

log = logging.getLogger(__name__)

#: Of every Spark that is supported; the JVM sets it for the workers of UDFs by
#: spark.sql.execution.pyspark.udf.hideTraceback.enabled.
_HIDE_TRACEBACK = "SPARK_HIDE_TRACEBACK"

_Class = TypeVar("_Class", bound=type)


def shows_our_errors(spark_calls: _Class) -> _Class:
    """Have Spark show our line of what the methods of this class raise, as a decorator of it.

    Those that its own body defines, beside private ones.
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
    """Of ``read``, which raises while Spark iterates over what it returned."""

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
        except kafka_errors.KafkaError as error:
            final = explain_final(error, "a request to Kafka")
            raise final or KafkaRebalanceError(f"a request to Kafka failed: {error!r}") from error
    except KafkaRebalanceError as error:
        log.debug("told to Spark: %s", error, exc_info=True)
        if _is_sparks_process():
            os.environ[_HIDE_TRACEBACK] = "1"
        raise


def _is_sparks_process() -> bool:
    """Whether Spark has started this process, and it ends with the error."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
