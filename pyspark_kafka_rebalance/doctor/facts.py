"""The facts that the probes found, for ``judgement``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PythonFacts:
    """A Python, and what it has of this package and its dependencies.

    Attributes
    ----------
    command : str
        How it is started.
    executable : str
        Its ``sys.executable``; empty if it does not run.
    prefix : str
        The environment that it belongs to.
    version : tuple of int
        Three numbers.
    versions : Mapping[str, str or None]
        Versions of ``kafka``, ``pyarrow``, ``pyspark`` and this package, by import name.
    package_file, pyspark_file : str
        Where this package and PySpark were imported from; empty if they were not.
    decoder, encoder : bool
        Whether the compiled decoder and encoder can be imported.
    listed, sources : frozenset of str
        The ``pyspark_*`` modules that Spark finds, and those of them that have a data source.
    errors : Mapping[str, str]
        Why something could not be imported, by its name; ``start`` if Python did not run.
    """

    command: str
    executable: str = ""
    prefix: str = ""
    version: tuple[int, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    package_file: str = ""
    pyspark_file: str = ""
    decoder: bool = False
    encoder: bool = False
    listed: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JavaFacts:
    """The Java that Spark's scripts would start: that of JAVA_HOME, else the one on the PATH.

    Attributes
    ----------
    java_home : str
        The variable; empty if it is not set.
    executable : str
        The program that would be started; empty if the PATH has none either.
    version : int or None
        The version it reports; None if it does not run.
    has_modules : bool
        Whether it has the modules that Spark requests at every start.
    """

    java_home: str
    executable: str
    version: int | None
    has_modules: bool


@dataclass(frozen=True)
class BrokerFacts:
    """The brokers.

    Attributes
    ----------
    servers : str
        The bootstrap servers, as given.
    error : str
        Why none answered; empty if one did.
    version : tuple of int
        Kafka's release, as inferred from a broker's API versions; empty if unknown.
    may_be_newer : bool
        Whether it is the last release that can be inferred.
    has_consumer_protocol : bool
        Whether the broker's release has KIP-848's group protocol.
    consumer_protocol_is_on : bool
        Whether the cluster has it switched on (the feature ``group.version``).
    reachable : tuple of str
        The advertised addresses that accepted a connection.
    unreachable : Mapping[str, str]
        The others, and why.
    """

    servers: str
    error: str = ""
    version: tuple[int, ...] = ()
    may_be_newer: bool = False
    has_consumer_protocol: bool = False
    consumer_protocol_is_on: bool = False
    reachable: tuple[str, ...] = ()
    unreachable: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class TopicFacts:
    """A topic; ``may_read`` is None if the broker does not say."""

    name: str
    error: str = ""
    partitions: int = 0
    may_read: bool | None = None


@dataclass(frozen=True)
class GroupFacts:
    """A group; ``may_read`` is None if the broker does not say, as for a new group.

    ``of_consumers`` is False if its members are not consumers, such as Kafka Connect's workers.
    """

    group_id: str
    error: str = ""
    state: str = ""
    members: int = 0
    may_read: bool | None = None
    of_consumers: bool = True
