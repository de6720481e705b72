"""The overview of ``python -m pyspark_kafka_rebalance`` without arguments: release, commands."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from .. import __version__
from .judgement import NAME

#: The commands of ``python -m``, below the package, and the purpose of each.
COMMANDS = {
    "doctor": "check Python, Java, Spark and brokers, and say what to do",
    "status": "show a consumer group: who holds what, lag, revokes, gaps",
    "producer offsets": "list, set and reset the restart points of a producer group",
    "source.positions": "show where the queries of a checkpoint stand",
    "source.compiled_pyspark": "compile PySpark once, so that queries start sooner",
    "testing.spark_java": "print a JAVA_HOME with which Spark starts",
}


def overview() -> Iterator[str]:
    """The lines to print; imports neither Spark nor kafka."""
    package = Path(__file__).parents[1]
    compiled = PathFinder.find_spec("_record_batch", [str(package / "fetch")]) is not None
    yield f"pyspark-kafka-rebalance {__version__} in {package}"
    yield f"compiled decoder: {'there' if compiled else 'missing, see doctor'}"
    yield ""
    for command, what in COMMANDS.items():
        joined = f"{NAME} {command}" if command == "doctor" else f"{NAME}.{command}"
        yield f"  python -m {joined:<52} {what}"
