"""The facts that the probes found, for ``judgement``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PythonFacts:
    """A Python, and its installations of this package and its dependencies."""

    command: str  #: how it is started
    executable: str = ""  #: its ``sys.executable``; empty if it does not run
    prefix: str = ""  #: the environment that it belongs to
    version: tuple[int, ...] = ()
    #: Of ``kafka``, ``pyarrow``, ``pyspark`` and this package, by import name.
    versions: Mapping[str, str | None] = field(default_factory=dict)
    package_file: str = ""  #: where it was imported from; empty if it was not
    pyspark_file: str = ""  #: likewise
    decoder: bool = False  #: whether the compiled decoder can be imported
    encoder: bool = False  #: likewise the encoder
    listed: frozenset[str] = frozenset()  #: the ``pyspark_*`` modules that Spark finds
    sources: frozenset[str] = frozenset()  #: the listed ones with a data source
    #: Why something could not be imported, by its name; ``start`` if Python did not run.
    errors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JavaFacts:
    """The Java that Spark's scripts would start: that of JAVA_HOME, else the one on the PATH."""

    java_home: str  #: the variable; empty if it is not set
    executable: str  #: empty if the PATH has none either
    version: int | None  #: None if it does not run
    has_modules: bool  #: whether it has the modules that Spark requests at every start


@dataclass(frozen=True)
class BrokerFacts:
    """The brokers' addresses and release, and the cluster's features."""

    servers: str  #: the bootstrap servers, as given
    error: str = ""  #: why none answered; empty if one did
    version: tuple[int, ...] = ()  #: as inferred from a broker's API versions; empty if unknown
    may_be_newer: bool = False  #: it is the last release that can be inferred
    has_consumer_protocol: bool = False  #: by the broker's release (KIP-848)
    consumer_protocol_is_on: bool = False  #: in the cluster (the feature ``group.version``)
    reachable: tuple[str, ...] = ()  #: the advertised addresses that accepted a connection
    unreachable: Mapping[str, str] = field(default_factory=dict)  #: the others, and why


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
