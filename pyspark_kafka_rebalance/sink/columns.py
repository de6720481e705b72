"""The columns that the sink takes: those of Spark's Kafka sink, with its messages. Pure.

=============  ====================================================  ===============================
column         types                                                 without it
=============  ====================================================  ===============================
``value``      string, binary                                        refused
``key``        string, binary                                        records have no key
``headers``    array<struct<key:string,value:binary>>                records have no headers
``topic``      string                                                option ``topic`` is needed
``partition``  int                                                   by key, as Java's producer does
``timestamp``  timestamp                                             the time of the task
=============  ====================================================  ===============================

Names are compared with case. Other columns are ignored, and ``topic`` is if there is the option;
both as Spark does. Spark's sink has no ``timestamp``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import KafkaRebalanceError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_TEXT = ("string", "binary")

#: In the order in which Spark checks them, with their types as Spark names them.
_TYPES = {
    "topic": ("string",),
    "key": _TEXT,
    "value": _TEXT,
    "headers": ("array<struct<key:string,value:binary>>",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Where the columns are.

    Attributes
    ----------
    topic : int, optional
        None: all records go to the topic of the option.
    encoded : tuple of (str, int)
        What the encoder takes, and where it is.
    """

    topic: int | None
    encoded: tuple[tuple[str, int], ...]

    @classmethod
    def checked(cls, schema: StructType, topic: str | None) -> Columns:
        """Find the columns.

        Parameters
        ----------
        schema : pyspark.sql.types.StructType
        topic : str, optional
            The option.

        Raises
        ------
        KafkaRebalanceError
            One is missing, or has another type; in the words of Spark's sink.
        """
        found: dict[str, int] = {}
        for at, column in enumerate(schema):
            name = column.name
            if name not in _TYPES or name in found or (name == "topic" and topic is not None):
                continue
            found[name] = at
        for name, allowed in _TYPES.items():
            if name in found:
                _check(name, schema[found[name]].dataType.simpleString(), allowed)
            elif name == "topic" and topic is None:
                raise KafkaRebalanceError(
                    "topic option required when no 'topic' attribute is present. Use the topic "
                    "option for setting a topic."
                )
            elif name == "value":
                raise KafkaRebalanceError("Required attribute 'value' not found")
        return cls(
            found.get("topic"), tuple((name, at) for name, at in found.items() if name != "topic")
        )


def _check(name: str, given: str, allowed: tuple[str, ...]) -> None:
    # As Spark compares types unless spark.sql.caseSensitive is set.
    if given.lower() not in allowed:
        raise KafkaRebalanceError(
            f"{name} attribute unsupported type {given}. {name} must be a(n) {' or '.join(allowed)}"
        )
