"""The overview of ``python -m pyspark_kafka_rebalance`` without arguments: release, commands."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from .. import __version__
from .judgement import NAME

#: What may be compiled: its folder and module.
_COMPILED = {
    "decoder": ("fetch", "_record_batch"),
    "encoder": ("produce/encoder", "_encoder"),
}

#: The commands of ``python -m``, below the package, and the purpose of each.
COMMANDS = {
    "doctor": "check Python, Java, Spark and brokers, and say what to do",
    "status": "show a consumer group: who holds what, lag, revokes, gaps",
    "transactions": "list, describe and abort open transactions, which hold readers back",
    "producer offsets": "list, set and reset the restart points of a producer group",
    "source.positions": "show where the queries of a checkpoint stand",
    "source.compiled_pyspark": "compile PySpark once, so that queries start sooner",
    "testing.spark_java": "print a JAVA_HOME with which Spark starts",
}


def overview() -> Iterator[str]:
    """The lines to print; imports neither Spark nor kafka."""
    package = Path(__file__).parents[1]
    yield f"pyspark-kafka-rebalance {__version__} in {package}"
    for what, (folder, module) in _COMPILED.items():
        found = PathFinder.find_spec(module, [str(package / folder)]) is not None
        yield f"compiled {what}: {'there' if found else 'missing, see doctor'}"
    yield ""
    for command, what in COMMANDS.items():
        joined = f"{NAME} {command}" if command == "doctor" else f"{NAME}.{command}"
        yield f"  python -m {joined:<52} {what}"
