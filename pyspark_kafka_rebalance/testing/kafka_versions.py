"""KafkaVersion: the requirements of a version of Apache Kafka. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The default version.
KAFKA_VERSION = "4.3.0"

_OLDEST = (1, 0, 0)
_SCALA_2_13_SINCE = (2, 4, 0)
_OWN_QUORUM_SINCE = (3, 3, 0)

#: The clients of ZooKeeper 3.4 cannot parse an address as Java 14 and later print it.
_ZOOKEEPER_3_5_SINCE = (2, 4, 0)
_ZOOKEEPER_FOR_JAVA_17 = "3.5.9"


@dataclass(frozen=True)
class KafkaVersion:
    """A version of Apache Kafka, from 1.0.0 on.

    Parameters
    ----------
    number : str
        As Maven Central has it: ``"3.9.1"``.

    Raises
    ------
    ValueError
        It is no such number, or older than 1.0.0.

    Examples
    --------
    >>> KafkaVersion("2.3.1").scala, KafkaVersion("2.3.1").needs_zookeeper
    ('2.12', True)
    >>> KafkaVersion("3.9.1").scala, KafkaVersion("3.9.1").needs_zookeeper
    ('2.13', False)
    """

    number: str

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\d+\.\d+\.\d+", self.number) or self._parts < _OLDEST:
            raise ValueError(
                f"version={self.number!r}; allowed: a version of Apache Kafka such as 3.9.1, not "
                f"before {'.'.join(map(str, _OLDEST))}"
            )

    @property
    def scala(self) -> str:
        """The newest Scala that the broker was built with: part of its artifact's name."""
        return "2.13" if self._parts >= _SCALA_2_13_SINCE else "2.12"

    @property
    def needs_zookeeper(self) -> bool:
        """Whether the brokers need a ZooKeeper; later ones form a quorum of their own (KRaft)."""
        return self._parts < _OWN_QUORUM_SINCE

    @property
    def zookeeper(self) -> str | None:
        """The version of ZooKeeper's client to take; None: the broker's own dependency."""
        return _ZOOKEEPER_FOR_JAVA_17 if self._parts < _ZOOKEEPER_3_5_SINCE else None

    @property
    def _parts(self) -> tuple[int, ...]:
        return tuple(map(int, self.number.split(".")))
